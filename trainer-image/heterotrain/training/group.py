"""The workers that train together at the moment, as one of them sees it: meet, agree, fail, meet again."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from heterotrain.contract import MEMBERS_MAY_END, MEMBERS_STAY, Plan
from heterotrain.data.evaluation import Evaluation
from heterotrain.gradients.gradient_sum import GradientSum
from heterotrain.gradients.losses import Losses
from heterotrain.gradients.reduction import Reducing, StepReduction
from heterotrain.gradients.wire import wire_for
from heterotrain.groups.assembly import Assembly, MembershipError
from heterotrain.groups.control import sum_over_ranks
from heterotrain.groups.generation import Generation, is_collective_error
from heterotrain.groups.making import DEVICE, Traits
from heterotrain.groups.succession import Succession
from heterotrain.job.plans import Plans
from heterotrain.reporting.timing import StepClock
from heterotrain.state.replica_check import ReplicaError, difference, kind_of_machine
from heterotrain.state.structure import checksum
from heterotrain.state.training_state import TrainingState
from heterotrain.training.agreeing import Agreement
from heterotrain.training.collectives import Collectives
from heterotrain.training.exchange import Exchange
from heterotrain.training.gathering import KIND, Gathering, Meeting
from heterotrain.training.subject import Subject
from heterotrain.training.traits import traits_of

_CLOSING_SECONDS = 1.0


class Group(Collectives):
    """One worker's side of its group."""

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
        super().__init__(subject, state, losses, exchange, clock)
        self._plans = plans
        self._evaluation = evaluation
        self._reducing = Reducing()
        self._gathering: Gathering | None = None
        self._agreement = Agreement(
            subject=subject,
            state=state,
            plans=plans,
            losses=losses,
            exchange=exchange,
            evaluation=evaluation,
            buffers=self.buffers,
        )
        exchange.transition.prepare = self._prepare

    @property
    def protocol(self) -> int:
        """How the members of these groups meet; see `heterotrain.contract`."""
        return MEMBERS_MAY_END if self.repeats else MEMBERS_STAY

    @property
    def repeats(self) -> bool:
        """Whether a step that failed is done again in place. True alone."""
        return self.generation is None or self.generation.repeats

    @property
    def ends_by_itself(self) -> bool:
        """Whether the job is over as soon as this worker's script has ended it. True alone."""
        return self.generation is None

    @property
    def may_lack_sums(self) -> bool:
        """Whether sums that have not arrived may be missing in what this worker has committed: its groups broke, and a
        failed step cannot be repeated in them."""
        return bool(self.broken) and not self.repeats

    @property
    def is_new(self) -> bool:
        """Whether this worker has never come to the same state as others."""
        return self._gathering is None or not self._gathering.has_met

    @property
    def is_out(self) -> bool:
        """Whether others have gone on without this worker, as they say."""
        return self._gathering is not None and self._gathering.assembly.is_out

    @property
    def assembly(self) -> Assembly:
        """Who is there, once a plan has named this worker."""
        assert self._gathering is not None
        return self._gathering.assembly

    def make_ready(self) -> None:
        """Make what sums gradients, which takes seconds in a new process; meanwhile no worker waits for it."""
        subject = self._subject
        if subject.passes.gradients is not None:
            return
        # What it tries with DistributedDataParallel must not be summed over the workers.
        now, self._reducing.now = self._reducing.now, None
        subject.passes.gradients = GradientSum(
            subject.module, self._reducing, subject.device, always_touch=subject.find_unused_parameters
        )
        self._reducing.now = now

    def take_changes(self) -> bool:
        """All are about to begin an epoch, before which their scripts may have changed what is trained; whether this
        one has. Breaks the group as `share_buffers`, raises ReplicaError if some have changed something else, and what
        `Subject.take_changes` raises."""
        subject = self._subject
        changed = subject.take_changes()
        if changed:
            self._state.structure = subject.structure
            if self.generation is not None:
                self.make_ready()

        def compare(generation: Generation) -> None:
            checksums = torch.zeros(generation.world_size, dtype=torch.float64)
            checksums[generation.rank] = checksum(subject.structure)
            sum_over_ranks(checksums, generation)
            found = difference("", checksums.tolist(), exact=True)
            if found is not None:
                names = ", ".join(self._plans.active.members[rank].name for rank in found.ranks)
                raise ReplicaError(
                    f"the scripts of {names} train other parameters, or in other groups, than the others' from epoch "
                    f"{self._state.position.epoch} on; what a script changes between two epochs must depend on the "
                    "epoch alone"
                )

        self.together(compare)
        return changed

    def join(self, meeting: Meeting, deadline_seconds: float) -> None:
        """Meet the members of the active plan for the first time. Raises as `form` does, and JobOverError if the job is
        done meanwhile."""
        subject, plans, gathering = self._subject, self._plans, self._gathering
        self.make_ready()
        self._forget("another plan has taken its place")
        if gathering is None:
            own = {DEVICE: subject.device.type, KIND: kind_of_machine(subject.device)}
            traits = own | traits_of(subject, self._state, self._evaluation)
            gathering = self._gathering = Gathering(meeting, plans, traits)
            transition = self.exchange.transition
            transition.begin, transition.abandon = gathering.begin_to_make, gathering.abandon
            transition.announce = gathering.announce
        gathering.begin()
        if plans.rank == 0 and not gathering.joins:
            self._agreement.resume()
        self.form(deadline_seconds)

    def _forget(self, why: str) -> None:
        """Let go of groups that came to nothing."""
        self.give_up(why)
        self.reduction = None
        if self.generation is not None:
            self.generation.leave()
            self.generation = None

    # --- meeting --------------------------------------------------------------------------------------------------

    def form(self, deadline_seconds: float) -> None:
        """Leave the present groups, meet the members in new ones and come to the same state as they.

        If that fails in turn the group is `broken` again. Raises MembershipError if those who are needed do not come in
        time, or one has left for good, CheckpointError if the state does not fit, ValueError if the workers' scripts
        are not the same.
        """
        gathering = self._gathering
        assert gathering is not None
        self._reducing.now = None
        self.exchange.transition.drop("the members meet again")
        self._draining.release_all()
        if self.generation is not None:
            if not self.repeats:
                raise MembershipError(
                    f"{self.broken}; over nccl a failed step is not repeated in place, the job goes on from its newest "
                    "checkpoint (training.backend: gloo repeats it)"
                )
            self.generation.leave()
        gathering.assembly.broken(self._state.position.step)
        making = gathering.make(deadline_seconds)
        self._settle_in(making.generation, making.traits, again=gathering.has_met)

    def _settle_in(self, generation: Generation, traits: Sequence[Traits], *, again: bool = False) -> None:
        """Use these groups, in which all members come to the same state; `again`: after a failure."""
        assert self._gathering is not None
        self.generation = generation
        wire = wire_for(generation, self._subject.device)
        self.reduction = StepReduction(generation, self.clock, wire, self._subject.accumulator)
        self._gathering.assembly.cut_with(generation.break_up)
        if self.protocol < MEMBERS_MAY_END:
            self._gathering.assembly.stay_together()  # one that is silent may go on, and without it nobody does
        self.exchange.compare_bits(len({each.get(KIND) for each in traits}) == 1)
        try:
            self._agreement.reach(generation, self._gathering, again=again)
            if self._subject.take_changes():  # with a state that was taken over
                self.make_ready()
            self._reducing.now = self.reduction
            self._gathering.has_met = True
        except RuntimeError as error:
            if not is_collective_error(error):
                raise
            self.fail(error)
            return
        self._gathering.assembly.agreed(self._state.position.step)

    # --- another generation of members ----------------------------------------------------------------------------

    def _prepare(self, plan: Plan) -> Succession:
        assert self._gathering is not None
        stays = self.protocol < MEMBERS_MAY_END
        return self._gathering.prepare(plan, "over nccl members change with a restart alone" if stays else "")

    def enter(self) -> None:
        """Go over to the groups of the next generation, which are made. If its members do not come to the same state,
        it is `broken`, and they meet again as members of that generation."""
        succession, old = self.exchange.transition.take(), self.generation
        assert succession.rank is not None and self._gathering is not None
        generation, traits = succession.take()
        self._gathering.assembly.offer(None)
        self._reducing.now = None
        self._plans.adopt(succession.plan, succession.rank)
        self._draining.retire(old)
        self._settle_in(generation, traits)

    # --- while they train -----------------------------------------------------------------------------------------

    def contributes(self) -> None:
        """This worker begins to contribute to a step."""
        if self._gathering is not None:
            self._gathering.assembly.contributes()

    def may_commit(self) -> bool:
        """Whether the step that is summed may be committed; if not, the group is `broken`. True alone."""
        if self.generation is None or self._gathering is None or self._gathering.may_commit():
            return True
        self.give_up("this worker is no member of the present groups any more")
        return False

    @property
    def may_write(self) -> bool:
        """Whether this worker is a member of an attempt that goes on. True alone."""
        return self._gathering is None or self._gathering.may_commit()

    def committed(self) -> None:
        """A step is committed."""
        if self._gathering is not None:
            self._gathering.assembly.committed(self._state.position.step)

    def leave_early(self, why: str) -> None:
        """This worker leaves before the end; the others learn of it and need not wait. Does nothing alone."""
        if self._gathering is not None:
            self._gathering.assembly.leaves(why)
        if self.reduction is not None:
            self.fail(MembershipError(why))

    def job_is_over(self) -> None:
        """The job's last step is committed, so nobody joins any more."""
        if self._gathering is not None:
            self._gathering.assembly.announce_job_finished()

    def leave(self) -> None:
        """The training is over: leave the group for good."""
        self._reducing.now = None
        self._subject.passes.gradients = None
        self.exchange.transition.drop("the training is over", wait=True)
        self.await_release()
        self.reduction = None
        self.exchange.restart()
        self._draining.release_all()
        if self.generation is not None:
            self.generation.leave()
            self.generation = None
        if self._gathering is not None:
            self._gathering.assembly.close(_CLOSING_SECONDS)
