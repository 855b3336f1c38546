"""What the workers of a group do together, in a step and between two: whatever fails breaks the group."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from heterotrain.gradients.counting import GlobalCount
from heterotrain.gradients.losses import Losses
from heterotrain.gradients.reduction import StepReduction
from heterotrain.groups.arrival import await_arrival
from heterotrain.groups.control import Signals, gather_documents, sum_over_ranks
from heterotrain.groups.generation import CollectiveError, Generation
from heterotrain.reporting.timing import StepClock
from heterotrain.state.buffers import SharedBuffers
from heterotrain.state.replica_check import ReplicaError
from heterotrain.state.training_state import TrainingState
from heterotrain.training.draining import Draining
from heterotrain.training.exchange import Exchange
from heterotrain.training.handing_on import hand_on_changes
from heterotrain.training.subject import Subject


class Collectives:
    """One worker's side of them; `generation` and `reduction` are None alone, before the first meeting, and after the
    end."""

    def __init__(
        self, subject: Subject, state: TrainingState, losses: Losses, exchange: Exchange, clock: StepClock
    ) -> None:
        self.generation: Generation | None = None
        self.reduction: StepReduction | None = None
        self.buffers = SharedBuffers(subject.module)
        self.losses = losses
        self.exchange = exchange
        self.clock = clock
        self._subject = subject
        self._state = state
        self._draining = Draining()

    @property
    def broken(self) -> str:
        """Why the present groups are of no use any more; empty if they are of use, or if there are none."""
        return "" if self.reduction is None else self.reduction.error

    @property
    def in_collective(self) -> bool:
        """Whether this worker has done its own part of the step and only waits for the others."""
        return self.reduction is not None and self.reduction.in_collective

    def fail(self, error: Exception) -> None:
        """A collective failed here: give the present groups up, for all."""
        assert self.reduction is not None
        self.reduction.fail(error)

    def give_up(self, why: str) -> None:
        """Break the present groups, for all members, who then meet again. Does nothing alone."""
        if self.reduction is not None:
            self.fail(CollectiveError(why))

    def together(self, act: Callable[[Generation], None]) -> bool:
        """Do with all members what may fail in their groups; False as `share_buffers`. True alone."""
        if self.generation is None:
            return True
        if self.broken:
            return False
        try:
            with self._only_waiting():
                act(self.generation)
        except ReplicaError:
            # All find it at once, and whoever ends first must not cut off what others have not read.
            self.drain_barrier()
            self.await_release()
            raise
        except RuntimeError as error:
            self.fail(error)
            return False
        return True

    @contextlib.contextmanager
    def _only_waiting(self) -> Iterator[None]:
        """Inside, this worker waits for the others, and so is not taken for the one that hangs."""
        reduction = self.reduction
        if reduction is None:
            yield
            return
        before, reduction.in_collective = reduction.in_collective, True
        try:
            yield
        finally:
            reduction.in_collective = before

    def gather(self, document: bytes) -> list[bytes] | None:
        """All workers' documents, by rank; None if that failed, and the group is `broken`."""
        if self.generation is None:
            return [document]
        gathered: list[bytes] = []
        arrived = self.together(lambda generation: gathered.extend(gather_documents(document, generation)))
        return gathered if arrived else None

    def share_buffers(self) -> bool:
        """Make the buffers of all workers equal; False if the groups broke, and this group is `broken`."""
        return self.together(self.buffers.merge)

    def unite(self) -> bool:
        """Wait until all that is committed has arrived, make the buffers of all workers equal, and check that all else
        is equal; False as `share_buffers`. Raises ReplicaError if the workers differ."""
        device = self._subject.device
        arrived = self.together(lambda generation: await_arrival(generation, device))
        shared = arrived and self.share_buffers() and self.share_epoch_loss()
        return shared and self.together(self.exchange.compare_all)

    def send_count(self, count: float, samples: int) -> None:
        """Send what this worker's loss of the running step counts; the loss was scaled as if all workers' counts were
        `samples`."""
        if self.generation is None or self.reduction is None or self.reduction.error:
            return
        try:
            self.reduction.count = GlobalCount(count, samples, self.generation)
        except RuntimeError as error:
            self.fail(error)

    @property
    def loss_factor(self) -> float:
        """By what to multiply this worker's part of the loss, once the step's gradients have arrived."""
        reduction = self.reduction
        return 1.0 if reduction is None or reduction.count is None else reduction.count.factor()

    @property
    def total_count(self) -> float | None:
        """What all workers have counted in the step, once its gradients are there; None if nobody counts, and alone."""
        reduction = self.reduction
        return None if reduction is None or reduction.count is None else reduction.count.total()

    def share_epoch_loss(self) -> bool:
        """All workers know the sums of the epoch's losses so far; False as `share_buffers`."""
        epoch = self.losses.epoch
        if self.generation is None:
            epoch.receive(*epoch.send())

        def share(generation: Generation) -> None:
            sums = torch.tensor(epoch.send(), dtype=torch.float64)
            sum_over_ranks(sums, generation)
            epoch.receive(*sums.tolist())

        return self.together(share)

    def hand_on_changes(self, source: int, *, takes: bool) -> bool:
        """Workers without samples (`takes`) take over what the script did to gradients and hyperparameters at rank
        `source`; False as `unite`."""

        def hand_on(generation: Generation) -> None:
            assert self.reduction is not None
            subject, witness = self._subject, self.reduction.witness
            hand_on_changes(subject.trained, subject.hyperparameters, witness, source, generation, takes=takes)
            self.clock.bucket_done()

        return self.together(hand_on)

    def begin_exchange(self, step_seconds: float) -> None:
        """Send the others this worker's messages; see `Exchange`."""
        self._draining.release_ended()
        self.together(lambda generation: self.exchange.begin(step_seconds, generation))

    def receive(self) -> Signals | None:
        """What was sent in the step that is just committed; None if it did not arrive."""
        received: list[Signals | None] = [None]

        def receive(generation: Generation) -> None:
            received[0] = self.exchange.receive(self._state.position.step, generation)

        self.together(receive)
        return received[0]

    def drain_barrier(self) -> None:
        """All have what they need of one another in the present groups. Whoever leaves waits for this to arrive
        everywhere (`await_release`): a connection that is closed takes along what it has not delivered."""
        self.together(self._draining.drain_barrier)

    def await_release(self) -> None:
        """Wait until no member needs this worker any more, as far as they said goodbye."""
        self._draining.await_release()
