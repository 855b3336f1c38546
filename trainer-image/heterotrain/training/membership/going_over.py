"""How the members go over to the next generation, all at one boundary between two steps, or leave in order there.

The groups of that generation are made beside training (`transition.py`), so that going over takes no longer than it
takes to ask whether all answer in them, and to bring those that join to the same state.
"""

from __future__ import annotations

import logging
import time

import torch

from heterotrain import contract
from heterotrain.groups.control import sum_over_ranks
from heterotrain.groups.succession import Succession
from heterotrain.training.following import Following
from heterotrain.training.parts import Parts

log = logging.getLogger(__name__)

_PROBE_SECONDS = 5.0  # for all members of the next generation to answer in its groups


class GoingOver:
    """One worker's side of it."""

    def __init__(self, parts: Parts, following: Following) -> None:
        self._plans = parts.context.plans
        self._metrics = parts.context.metrics
        self._state = parts.state
        self._group = parts.group
        self._transition = parts.exchange.transition
        self._accounts = parts.accounts
        self._clock = parts.clock
        self._leaving = parts.leaving
        self._following = following

    def go_over(self) -> None:
        """Go over to the next generation of members together with all that stay, or leave in order."""
        began = time.monotonic()
        self._accounts.settle()
        if self.part():
            self._enter(began)

    def part(self) -> bool:
        """All members are about to go over to the next generation, or to leave: make the buffers equal, and look
        whether all answer in the new groups. False if they stay as they are, or as `Group.share_buffers`.

        All else is equal, or the comparisons that ride on the exchange find it: whoever joins takes it from one member,
        so nobody gets a mixture.
        """
        group, succession = self._group, self._transition.succession
        assert succession is not None
        if not group.share_buffers():
            return False
        answers = torch.tensor([succession.rank is None or _all_answer(succession)], dtype=torch.float64)
        if not group.together(lambda generation: sum_over_ranks(answers, generation)):
            return False
        assert group.generation is not None
        if answers.item() < group.generation.world_size:
            self._transition.postpone("a member did not answer in its groups")
            return False
        if succession.rank is not None and succession.number is not None:
            group.assembly.switched(succession.number)
        group.say_goodbye()
        return True

    def _enter(self, began: float) -> None:
        """The next generation begins here; it is the same step on all workers."""
        succession = self._transition.succession
        assert succession is not None
        if succession.rank is None:
            self._leaving.leave_the_others("the others go on without this worker")
        with self._metrics.phase(contract.PHASE_STARTING):  # a joiner's state may take long on its way
            self._group.enter()
        if self._group.broken:
            return
        log.info(
            "step %d: generation %d of %d workers, after %.3f s",
            self._state.position.step,
            self._plans.active.generation,
            len(self._plans.active.members),
            time.monotonic() - began,
        )
        self._following.follow()
        self._clock.restart()


def _all_answer(succession: Succession) -> bool:
    generation = succession.generation
    if generation is None:
        return False
    try:
        generation.sum(torch.ones(1)).wait(_PROBE_SECONDS)
    except RuntimeError as error:
        log.warning("groups of the next generation do not work: %s", error)
        return False
    return True
