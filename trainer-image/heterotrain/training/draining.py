"""How a worker leaves groups for good: what all say in them last, and when each worker releases them."""

from __future__ import annotations

import logging
import threading

import torch

from heterotrain.groups.generation import Collective, CollectiveError, Generation

log = logging.getLogger(__name__)

_RELEASE_SECONDS = 5.0


class Draining:
    """One worker's goodbye in its present groups, and the groups from which it has gone over to others."""

    def __init__(self) -> None:
        self._retired = RetiredGroups()
        self._farewell: Collective | None = None

    def drain_barrier(self, generation: Generation) -> None:
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
            log.info("other workers ended before this one: %s", error)

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


class RetiredGroups:
    """Releases them beside training: to close connections takes gloo several turns of its threads, which wait for a
    processor meanwhile."""

    def __init__(self) -> None:
        self._kept: list[tuple[Generation, Collective]] = []
        self._releasing: list[threading.Thread] = []

    def add(self, generation: Generation, farewell: Collective) -> None:
        """Keep these groups until the `farewell` has arrived everywhere."""
        self._kept.append((generation, farewell))

    def release_ended(self) -> None:
        """Begin to release those in which all have said goodbye."""
        ended = [generation for generation, farewell in self._kept if farewell.has_ended]
        self._kept = [each for each in self._kept if each[0] not in ended]
        self._releasing = [thread for thread in self._releasing if thread.is_alive()]
        for generation in ended:
            # The end of the interpreter waits for it: a thread of gloo's at work then would take the process down.
            thread = threading.Thread(target=generation.leave, name="heterotrain-release", daemon=False)
            try:
                thread.start()
            except RuntimeError:  # this worker may have no more threads
                generation.leave()
            else:
                self._releasing.append(thread)

    def release_all(self) -> None:
        """Release all of them, and wait until that is done. Whoever has not said goodbye finds its groups broken."""
        kept, self._kept = self._kept, []
        for generation, farewell in kept:
            if not farewell.has_ended:
                generation.break_up("this worker does not need them any more")
            generation.leave()
        for thread in self._releasing:
            thread.join()
        self._releasing = []
