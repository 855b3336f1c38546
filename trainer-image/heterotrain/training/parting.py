"""How a worker parts with groups: what all say in them at last, and when each of them releases them."""

from __future__ import annotations

import logging

import torch

from heterotrain.groups.generation import Collective, CollectiveError, Generation
from heterotrain.groups.retired import RetiredGroups

log = logging.getLogger(__name__)

_RELEASE_SECONDS = 5.0


class Parting:
    """One worker's goodbye in its present groups, and the groups from which it has gone over to others."""

    def __init__(self) -> None:
        self._retired = RetiredGroups()
        self._farewell: Collective | None = None

    def say_goodbye(self, generation: Generation) -> None:
        """All have what they need of one another in these groups. Raises RuntimeError if they are broken."""
        self._farewell = generation.sum(torch.ones(1))

    def await_release(self) -> None:
        """Wait until no member needs this worker any more, as far as they said goodbye."""
        farewell, self._farewell = self._farewell, None
        if farewell is None:
            return
        try:
            farewell.wait(_RELEASE_SECONDS)
        except CollectiveError as error:
            log.info("the others did not say goodbye: %s", error)

    def retire(self, generation: Generation | None) -> None:
        """This worker has gone over to others from these groups, if it had any."""
        farewell, self._farewell = self._farewell, None
        if generation is None:
            return
        if farewell is not None:
            self._retired.add(generation, farewell)
            return
        generation.break_up("its members have gone over to others")
        generation.leave()

    def release_ended(self) -> None:
        """Begin to release those from which it has gone over and in which all have said goodbye."""
        self._retired.release_ended()

    def release_all(self) -> None:
        """Release all those from which it has gone over, and wait until that is done."""
        self._retired.release_all()
