"""The workers that train together at the moment, as one of them sees it: meet, agree, fail, meet again.

Whoever committed most is right. At the start that is the leader, which alone reads the checkpoint; after a failure it
may be anybody, by at most one step.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch

from heterotrain.batch_norm import RunningStatistics
from heterotrain.control import Signals, broadcast_document, gather_documents, sum_over_ranks
from heterotrain.counting import GlobalCount
from heterotrain.evaluation import Evaluation
from heterotrain.exchange import Exchange
from heterotrain.gradient import ElasticModel
from heterotrain.handing_on import hand_on_changes
from heterotrain.losses import Losses
from heterotrain.membership import Generation, Rendezvous, is_collective_error
from heterotrain.plans import Plans
from heterotrain.reduction import StepReduction
from heterotrain.timing import StepClock
from heterotrain.training_state import TrainingState


class Team:
    """`generation` and `reduction` are None alone, before the first meeting, and after the end."""

    def __init__(
        self,
        *,
        model: ElasticModel,
        state: TrainingState,
        plans: Plans,
        losses: Losses,
        exchange: Exchange,
        clock: StepClock,
        device: torch.device,
        evaluation: Evaluation,
    ) -> None:
        self.generation: Generation | None = None
        self.reduction: StepReduction | None = None
        self._model = model
        self._state = state
        self._plans = plans
        self._losses = losses
        self._exchange = exchange
        self._clock = clock
        self._device = device
        self._evaluation = evaluation
        self._rendezvous: Rendezvous | None = None
        self._has_met = False
        self.statistics = RunningStatistics(model.module)

    @property
    def broken(self) -> str:
        """Why the present groups are of no use any more; empty if they are, or if there are none."""
        return "" if self.reduction is None else self.reduction.error

    def fail(self, error: RuntimeError) -> None:
        """A collective failed here: give the present groups up, for all."""
        assert self.reduction is not None
        self.reduction.fail(error)

    def join(self, spare_port: int, deadline_seconds: float, check_stop: Callable[[], None]) -> None:
        """Meet the members of the plan in force for the first time. Raises as `form` does."""
        self._rendezvous = Rendezvous(
            self._plans.in_force,
            self._plans.rank,
            self._device.type,
            deadline_seconds=deadline_seconds,
            spare_port=spare_port,
            check_stop=check_stop,
        )
        if self._plans.rank == 0:
            self._state.resume(self._state.newest_checkpoint())
        self.form(deadline_seconds)

    def form(self, deadline_seconds: float) -> None:
        """Leave the present groups, meet all members in new ones and come to the same state as they.

        If that fails in turn the team is `broken` again. Raises MembershipError if not all come in time,
        CheckpointError if the state does not fit.
        """
        assert self._rendezvous is not None
        self._model.detach()
        if self.generation is not None:
            self.generation.leave()
        self.generation = self._rendezvous.meet(deadline_seconds)
        self.reduction = self._model.reduction_over(self.generation, self._clock, self._device)
        try:
            self._agree(self.generation)
            self._model.attach(self.reduction, self._device)
            self._has_met = True
        except RuntimeError as error:
            if not is_collective_error(error):
                raise
            self.fail(error)

    def await_all(self) -> bool:
        """Wait until all are here; False if that failed, and the team is `broken`."""
        return self._together(lambda generation: sum_over_ranks(torch.zeros(1), generation))

    def merge_statistics(self) -> bool:
        """All take the running statistics of all samples; False if that failed, and the team is `broken`."""
        return self._together(self.statistics.merge)

    def tell_count(self, count: float, samples: int) -> None:
        """What this worker's loss of the running step counts; its part was scaled as if that were `samples` in all."""
        if self.generation is None or self.reduction is None or self.reduction.error:
            return
        try:
            self.reduction.count = GlobalCount(count, samples, self.generation)
        except RuntimeError as error:
            self.fail(error)

    @property
    def loss_factor(self) -> float:
        """What is left to multiply this worker's part of the loss with, once the step's gradients have arrived."""
        if self.reduction is None or self.reduction.count is None:
            return 1.0
        return self.reduction.count.factor()

    def hand_on_changes(self, source: int, *, takes: bool) -> bool:
        """Workers without samples (`takes`) take over what the script did to the gradients at rank `source`; False as
        above."""

        def hand_on(generation: Generation) -> None:
            assert self.reduction is not None
            hand_on_changes(self._model.module, self.reduction.witness, source, generation, takes=takes)
            self._clock.bucket_done()

        return self._together(hand_on)

    def begin_exchange(self, step_seconds: float) -> None:
        """Tell the others what they should know, if that is due at this step; see `Exchange`."""
        step, rate = self._state.position.step, self._state.learning_rate
        self._together(lambda generation: self._exchange.begin(step, rate, step_seconds, generation))

    def hear(self) -> Signals | None:
        """What was told in the step that is just committed; None if nothing was, or it did not arrive."""
        heard: list[Signals | None] = [None]

        def hear(generation: Generation) -> None:
            heard[0] = self._exchange.hear(self._state.position.step, generation)

        self._together(hear)
        return heard[0]

    def _together(self, act: Callable[[Generation], None]) -> bool:
        if self.generation is None:
            return True
        if self.broken:
            return False
        try:
            act(self.generation)
        except RuntimeError as error:
            self.fail(error)
            return False
        return True

    def tell_all(self, document: bytes) -> list[bytes] | None:
        """Everybody's documents, by rank; None if that failed, and the team is `broken`."""
        if self.generation is None or self.reduction is None:
            return [document]
        self.reduction.in_collective = True
        try:
            return gather_documents(document, self.generation)
        except RuntimeError as error:
            self.fail(error)
            return None
        finally:
            self.reduction.in_collective = False

    def part(self) -> None:
        """Leave for good."""
        self._model.detach()
        self.reduction = None
        self._exchange.restart()
        if self._rendezvous is not None:
            self._rendezvous.part()
        if self.generation is not None:
            self.generation.leave()
            self.generation = None

    def _agree(self, generation: Generation) -> None:
        """The plan and the losses of the first by rank who committed most, and its state where others differ.

        Buffers are taken over by those who have never met the others, and stay each worker's own from then on; merged
        statistics weigh them by the samples that they have seen.
        """
        position, rank = self._state.position, self._plans.rank
        told = torch.zeros(2, generation.world_size, dtype=torch.int64)
        told[0, rank], told[1, rank] = position.step, int(not self._has_met)
        sum_over_ranks(told, generation)
        steps, new = told
        newest, source = int(steps.max()), int(steps.argmax())
        facts = json.loads(broadcast_document(self._facts() if rank == source else None, source, generation))
        self._plans.take_over(facts)
        self._losses.take_over(facts["losses"], facts["target_reached"])
        self._evaluation.take_over(facts["evaluation"])
        self._state.saved_step = facts["saved_step"]
        self._exchange.restart()
        if int(steps.min()) < newest:
            received = broadcast_document(self._state.pack() if rank == source else None, source, generation)
            if position.step < newest:
                with self.statistics.kept():
                    self._state.load(received)
        if new.any():
            received = broadcast_document(self._model.buffers_packed() if rank == source else None, source, generation)
            if not self._has_met:
                self._model.take_buffers(received)

    def _facts(self) -> bytes:
        losses = {"losses": self._losses.known(), "target_reached": self._losses.target_reached}
        other = {"evaluation": self._evaluation.facts(), "saved_step": self._state.saved_step}
        return json.dumps(self._plans.facts() | losses | other).encode()
