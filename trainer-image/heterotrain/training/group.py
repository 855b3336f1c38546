"""The workers that train together at the moment, as one of them sees it: meet, agree, fail, meet again.

The worker that committed most is right. At the start that is the leader, which alone reads the checkpoint; after a
failure it may be any worker, and it is ahead by at most one step.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import torch

from heterotrain.data.evaluation import Evaluation
from heterotrain.gradients.counting import GlobalCount
from heterotrain.gradients.gradient_sum import GradientSum
from heterotrain.gradients.losses import Losses
from heterotrain.gradients.reduction import Reducing, StepReduction
from heterotrain.gradients.wire import wire_for
from heterotrain.groups.control import Signals, broadcast_document, broadcast_tensors, gather_documents, sum_over_ranks
from heterotrain.groups.generation import CollectiveError, Generation, is_collective_error
from heterotrain.groups.membership import MembershipError, Rendezvous
from heterotrain.job.plans import Plans
from heterotrain.peers import parse_facts, parse_traits
from heterotrain.reporting.timing import StepClock
from heterotrain.state.buffers import SharedBuffers
from heterotrain.state.replica_check import kind_of_machine
from heterotrain.state.state_transfer import broadcast_state
from heterotrain.state.training_state import TrainingState
from heterotrain.training.exchange import Exchange
from heterotrain.training.handing_on import hand_on_changes
from heterotrain.training.subject import Subject


@dataclass(frozen=True, slots=True)
class Meeting:
    """How this worker meets the others.

    `spare_port` is the port of its own metrics server, `backend` is what carries gradients, and by the `secret` the
    workers know one another. `is_asked_to_stop` says whether this worker has to stop; `check_stop` raises if it has.
    """

    spare_port: int
    backend: str
    check_stop: Callable[[], None]
    is_asked_to_stop: Callable[[], bool]
    secret: str | None


class Group:
    """One worker's side of its group; `generation` and `reduction` are None alone, before the first meeting, and after
    the end."""

    def __init__(
        self,
        *,
        subject: Subject,
        state: TrainingState,
        plans: Plans,
        losses: Losses,
        exchange: Exchange,
        clock: StepClock,
        evaluation: Evaluation,
    ) -> None:
        self.generation: Generation | None = None
        self.reduction: StepReduction | None = None
        self.buffers = SharedBuffers(subject.module)
        self.losses = losses
        self.exchange = exchange
        self.clock = clock
        self._subject = subject
        self._state = state
        self._plans = plans
        self._evaluation = evaluation
        self._reducing = Reducing()
        self._rendezvous: Rendezvous | None = None
        self._has_met = False

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

    def join(self, meeting: Meeting, deadline_seconds: float) -> None:
        """Meet the members of the active plan for the first time. Raises as `form` does."""
        subject = self._subject
        subject.passes.gradients = GradientSum(
            subject.module, self._reducing, subject.device, always_touch=subject.find_unused_parameters
        )
        self._rendezvous = Rendezvous(
            self._plans.active,
            self._plans.rank,
            subject.device.type,
            deadline_seconds=deadline_seconds,
            spare_port=meeting.spare_port,
            check_stop=meeting.check_stop,
            backend=meeting.backend,
            secret=meeting.secret,
            is_asked_to_stop=meeting.is_asked_to_stop,
        )
        if self._plans.rank == 0:
            self._state.resume()
        self.form(deadline_seconds)

    def form(self, deadline_seconds: float) -> None:
        """Leave the present groups, meet all members in new ones and come to the same state as they.

        If that fails in turn the group is `broken` again. Raises MembershipError if not all come in time or one has
        left for good, CheckpointError if the state does not fit, ValueError if the workers' scripts are not the same.
        """
        assert self._rendezvous is not None
        self._reducing.now = None
        if self.generation is not None:
            if self.generation.backend == "nccl":
                # What nccl calls completed is only enqueued, so it is not known which steps are committed.
                raise MembershipError(
                    f"{self.broken}; over nccl a failed step is not repeated in place, the job goes on from its newest "
                    "checkpoint (training.backend: gloo repeats it)"
                )
            self.generation.leave()
        self.generation = self._rendezvous.meet(deadline_seconds)
        wire = wire_for(self.generation, self._subject.device)
        self.reduction = StepReduction(self.generation, self.clock, wire, self._subject.accumulator)
        try:
            self._agree(self.generation)
            self._reducing.now = self.reduction
            self._has_met = True
        except RuntimeError as error:
            if not is_collective_error(error):
                raise
            self.fail(error)

    def give_up(self, why: str) -> None:
        """Break the present groups, for all members, who then meet again. Does nothing alone."""
        if self.reduction is not None:
            self.fail(CollectiveError(why))

    def leave_early(self, why: str) -> None:
        """This worker leaves before the end; the others learn of it and need not wait. Does nothing alone."""
        if self._rendezvous is not None:
            self._rendezvous.announce_leaving(why)
        if self.reduction is not None:
            self.fail(MembershipError(why))

    def unite(self) -> bool:
        """Make the buffers of all workers equal, and check that all else is equal; False if the groups broke, and this
        group is `broken`. Raises ReplicaError if the workers differ."""
        return self._together(self.buffers.merge) and self._together(self.exchange.compare_all)

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

    def hand_on_changes(self, source: int, *, takes: bool) -> bool:
        """Workers without samples (`takes`) take over what the script did to gradients and hyperparameters at rank
        `source`; False as `unite`."""

        def hand_on(generation: Generation) -> None:
            assert self.reduction is not None
            subject, witness = self._subject, self.reduction.witness
            hand_on_changes(subject.trained, subject.hyperparameters, witness, source, generation, takes=takes)
            self.clock.bucket_done()

        return self._together(hand_on)

    def begin_exchange(self, step_seconds: float) -> None:
        """Send the others this worker's messages; see `Exchange`."""
        self._together(lambda generation: self.exchange.begin(step_seconds, generation))

    def receive(self) -> Signals | None:
        """What was sent in the step that is just committed; None if it did not arrive."""
        received: list[Signals | None] = [None]

        def receive(generation: Generation) -> None:
            received[0] = self.exchange.receive(self._state.position.step, generation)

        self._together(receive)
        return received[0]

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

    def gather(self, document: bytes) -> list[bytes] | None:
        """All workers' documents, by rank; None if that failed, and the group is `broken`."""
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

    def leave(self) -> None:
        """The training is over: leave the group for good."""
        self._reducing.now = None
        self._subject.passes.gradients = None
        self.reduction = None
        self.exchange.restart()
        if self._rendezvous is not None:
            self._rendezvous.leave()
        if self.generation is not None:
            self.generation.leave()
            self.generation = None

    def _agree(self, generation: Generation) -> None:
        """Take over the plan and the losses of the worker that committed most, the first of them by rank, and its state
        on workers that lag behind.

        Parameters and buffers are taken over when a worker meets the others for the first time. From then on buffers
        stay each worker's own, until they are merged.
        """
        position, rank = self._state.position, self._plans.rank
        reported = torch.zeros(3, generation.world_size, dtype=torch.int64)
        reported[:, rank] = torch.tensor([position.step, not self._has_met, self.exchange.done])
        sum_over_ranks(reported, generation)
        steps, new, done = reported
        newest, source = int(steps.max()), int(steps.argmax())
        if new.any():
            self._check_alike(generation)
        facts = parse_facts(broadcast_document(self._facts() if rank == source else None, source, generation))
        self._plans.take_over(facts)
        self.losses.take_over(facts.losses, facts.target_reached)
        self._evaluation.take_over(facts.evaluation)
        self._state.saved_step = facts.saved_step
        self.exchange.restart()
        self.exchange.done_agreed = self.exchange.done_agreed or bool(done.any())
        if int(steps.min()) < newest:
            received = broadcast_state(self._state.whole(), source, generation, takes=position.step < newest)
            if received is not None:
                with self.buffers.kept():
                    self._state.load(received)
        if new.any():
            broadcast_tensors(self._subject.tensors(), source, generation)

    def _check_alike(self, generation: Generation) -> None:
        """Raises ValueError if the workers' scripts have made different things.

        Also finds out whether all workers are machines of one kind, whose replicas must have the same bits.
        """
        own = {"kind": kind_of_machine(self._subject.device), **self._subject.traits()}
        found = list(map(parse_traits, gather_documents(json.dumps(own).encode(), generation)))
        self.exchange.compare_bits(all(each.get("kind") == own["kind"] for each in found))
        members = self._plans.active.members
        for member, theirs in zip(members, found, strict=True):
            for trait in (key for key in own if key != "kind"):
                if theirs.get(trait) != found[0].get(trait):
                    raise ValueError(
                        f"{member.name} has another {trait} than {members[0].name} ({theirs.get(trait)} and "
                        f"{found[0].get(trait)}); all workers must run the same script on the same data"
                    )

    def _facts(self) -> bytes:
        losses = {"losses": self.losses.known(), "target_reached": self.losses.target_reached}
        other = {"evaluation": self._evaluation.facts(), "saved_step": self._state.saved_step}
        return json.dumps(self._plans.facts() | losses | other).encode()
