"""The steps that members take under a plan, vectorised over workers and steps, in virtual time.

A step takes as long as its slowest member and the communication after it. Counters are kept as trainers keep them: they
begin with a plan's version, and the first steps under it are not measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from heterotrain.contract import PHASE_HOLDING, PHASE_REFORMING, PHASE_STARTING, PHASE_TRAINING, Plan
from heterotrain_operator.clusters.simulated.events import EndOfWorker
from heterotrain_operator.clusters.simulated.influences import Influence, Influences, Trainee
from heterotrain_operator.clusters.simulated.noise import SHARED, Draws, Matrix
from heterotrain_operator.clusters.simulated.pod import (
    SimulatedPod,
    can_change,
    end_due,
    first_metrics,
    kill_beyond_limits,
    leave,
    present_of,
    reformed,
)
from heterotrain_operator.clusters.simulated.scenario import Scenario
from heterotrain_operator.clusters.simulated.steps import Counted, FollowedPlan, Steps, unheld_seconds

Pods = dict[str, SimulatedPod]

MOST_NUMBERS = 1_000_000
"""So many own times are computed at once at most."""


class Training:
    """Who trains, how far they are, and what a step takes. The clock belongs to whoever lets time pass.

    `executed` counts the steps that were ever executed, `step` those committed; a restart from a checkpoint takes some
    of these back, which will be `repeated`.
    """

    def __init__(self, scenario: Scenario, draws: Draws, influences: Influences) -> None:
        self._scenario, self._draws, self._influences = scenario, draws, influences
        self._shared = Draws(scenario.seed, SHARED)
        self._shared.add([scenario.shared_noise])
        self.executed = self.step = self.repeated = 0
        self.on_steps: Callable[[Steps], None] | None = None
        self._followed: FollowedPlan | None = None
        self._next: Plan | None = None
        self._switch_at = 0
        self._meets_at: float | None = None
        self._reforms_at: float | None = None
        self._began = 0.0
        ends = (event for event in scenario.events if isinstance(event, EndOfWorker))
        self._ends = sorted(ends, key=lambda event: event.at)

    # --- what is to be followed -------------------------------------------------------------------------------

    def publish(self, plan: Plan) -> None:
        """A plan is there to be followed: one of the same generation some steps later, one of another generation once
        all its members are ready and have met. One that carries on finds some of them training.
        """
        followed = self._followed
        same = followed is not None and plan.generation == followed.plan.generation
        if followed is not None and same and self._is_of_others(plan) and can_change(followed.pods):
            return  # it names members that have ended
        self._next = plan
        self._switch_at = self.executed + self._scenario.timing.switch_steps
        self._meets_at = None

    @property
    def followed_plan(self) -> Plan | None:
        """The plan by which workers train; None before the first."""
        return None if self._followed is None else self._followed.plan

    @property
    def last_step_at(self) -> float:
        """When the last step ended, on the clock."""
        return self._began

    def next_moment(self) -> float:
        """When something here is due that takes time but no steps."""
        return min((at for at in (self._meets_at, self._reforms_at) if at is not None), default=math.inf)

    def is_training(self, pods: Pods) -> bool:
        """Whether steps are taken: the followed plan does not hold, and its members `are_there`."""
        return self._are_there(pods) and self._followed is not None and not self._followed.plan.holds

    def _are_there(self, pods: Pods) -> bool:
        """Whether all members of the followed plan are there, and no other generation gathers, or one that carries
        on.
        """
        followed = self._followed
        if followed is None or (self._gathers and not self._carries_on):
            return False
        present = present_of(followed.plan, pods)
        if len(present) < len(followed.pods):
            return False
        followed.pods = present
        return True

    def tend(self, pods: Pods, now: float) -> None:
        """Do what is due by the clock: let a new generation gather and begin; let survivors of a failure wait."""
        followed = self._followed
        if followed is not None and followed.plan.holds:
            self._began = max(self._began, now)  # time passes without steps
            if self._next is not None and not self._gathers:
                self._follow(self._next, followed.pods)
        if self._followed is not None and not (self._gathers and not self._carries_on) and not self._are_there(pods):
            for pod in self._followed.pods:
                if pod.exit_code is None and pod.metrics.phase in (PHASE_TRAINING, PHASE_HOLDING):
                    pod.metrics = replace(pod.metrics, phase=PHASE_REFORMING, in_collective=True)
            if can_change(self._followed.pods):
                self._reform(self._followed, pods, now)
        if self._gathers and (not self._carries_on or self._are_there(pods)):
            self._gather(pods, now)

    def _reform(self, followed: FollowedPlan, pods: Pods, now: float) -> None:
        """Members that are left train on without those that have ended. They share its batches, and what they count
        begins again under the same version.
        """
        survivors = present_of(followed.plan, pods)
        if not survivors:
            self._reforms_at = None
            return
        if self._reforms_at is None:
            self._reforms_at = max(now, self._began) + self._scenario.timing.reform_seconds
        if now < self._reforms_at:
            return
        self._report()
        plan, coming = reformed(followed.plan, survivors), self._next
        self._began, self._reforms_at = self._reforms_at, None
        self._follow(plan, survivors)
        self._next = None if coming is None or coming.generation == plan.generation else coming

    @property
    def _gathers(self) -> bool:
        """Whether the newest plan is of other members than the one followed, or of another generation."""
        followed, new = self._followed, self._next
        if new is None:
            return False
        return followed is None or followed.plan.generation != new.generation or self._is_of_others(new)

    def _is_of_others(self, plan: Plan) -> bool:
        """Whether a plan's members are others than those that train."""
        assert self._followed is not None
        return [member.uid for member in plan.members] != [pod.uid for pod in self._followed.pods]

    @property
    def _carries_on(self) -> bool:
        """Whether those that train go on until the newest plan's members have met."""
        followed, new = self._followed, self._next
        return followed is not None and new is not None and new.continues > 0 and can_change(followed.pods)

    def _gather(self, pods: Pods, now: float) -> None:
        assert self._next is not None
        present = present_of(self._next, pods)
        before = [] if self._followed is None else self._followed.pods
        carried_on = self._next.continues > 0
        holders = {pod.uid for pod in before if pod.is_ready} & {pod.uid for pod in present}
        if len(present) < len(self._next.members) or (carried_on and not holders):
            self._meets_at = None
            return
        timing = self._scenario.timing
        # Those that train already need no other groups, and take over new batches alone.
        adopted = carried_on and not self._is_of_others(self._next)
        if self._meets_at is None:
            self._meets_at = now + (0.0 if adopted else timing.rendezvous_seconds)
            if self._meets_at > now and not carried_on:
                for pod in present:
                    pod.metrics = replace(pod.metrics, phase=PHASE_STARTING)
        if now < self._meets_at:
            return
        self._meets_at = self._reforms_at = None
        if carried_on:
            self._report()
            leave(before, {pod.uid for pod in present}, self.step)
        elif not {pod.uid for pod in before} & {pod.uid for pod in present}:
            every = self._scenario.checkpoint_steps
            lost = self.step % every if every else self.step
            self.step, self.repeated = self.step - lost, self.repeated + lost
        self._follow(self._next, present)
        if not adopted:
            self._began = max(now, self._began) + timing.transition_seconds if carried_on else now

    def _follow(self, plan: Plan, pods: list[SimulatedPod]) -> bool:
        """From now on the members follow a plan: their counters begin again. Returns whether that kills somebody."""
        self._next = None
        columns = [pod.column for pod in pods]
        as_they_are = columns == list(range(len(columns)))
        kept = self._followed
        trainees = tuple(Trainee(pod.name, pod.group, pod.column, pod.begun_limit, pod.started_step) for pod in pods)
        if kept is not None and kept.trainees == trainees:
            trainees = kept.trainees  # the very same, which is quick to compare
        self._followed = FollowedPlan(
            plan,
            pods,
            trainees,
            slice(0, len(columns)) if as_they_are else np.array(columns),
            self._scenario.timing.unmeasured_steps,
            np.random.default_rng([self._scenario.seed, 4, plan.version]),
            Counted(len(pods)),
        )
        for rank, pod in enumerate(pods):
            pod.metrics = first_metrics(plan, rank, self.step, self._epoch, self._scenario.total_steps)
        return kill_beyond_limits(pods, plan)

    @property
    def _epoch(self) -> int:
        return self.step // self._scenario.epoch_steps

    # --- steps -------------------------------------------------------------------------------------------------

    def run(self, pods: Pods, until: float, most: int | None = None) -> int:
        """Take steps that end by `until` on the clock, at most `most`; how many it were.

        It ends early when a member dies.
        """
        taken, trains = 0, self.is_training(pods)
        if trains and self._followed is not None:
            trains = not kill_beyond_limits(self._followed.pods, self._followed.plan)
        while trains and (most is None or taken < most):
            killed = self._switch()
            if killed:
                break
            done = self._some(until, math.inf if most is None else most - taken)
            taken += done
            died = end_due(self._ends, self.executed, pods, self.step)
            over = self._scenario.total_steps is not None and self.step >= self._scenario.total_steps
            if over:
                self._finish()
            trains = bool(done) and not (died or over)
        if taken:
            self._report()
        return taken

    def _switch(self) -> bool:
        """Follow a newer plan of this generation if it is time. Returns whether that kills somebody."""
        if self._next is None or self._followed is None or self._gathers or self.executed < self._switch_at:
            return False
        self._report()
        return self._follow(self._next, self._followed.pods)

    def _some(self, until: float, left: float) -> int:
        """Steps under one plan, without an event in between, that end by `until`; how many."""
        followed = self._followed
        assert followed is not None
        means, throttled = unheld_seconds(followed.pods, followed.plan.batch_sizes)
        if throttled is not None:
            means = means * throttled
        count = self._count(until, left, means)
        noise = self._draws.peek(count)[:, followed.columns] * self._shared.peek(count)
        influence = self._influences.of(self.executed, count, followed.trainees)
        factors = noise if influence is None else noise * influence.true
        own = means * factors
        communication = self._scenario.communication.seconds(len(followed.pods))
        seconds = own.max(axis=1) + communication
        ends = self._began + np.cumsum(seconds)
        done = count if until == math.inf else int(np.searchsorted(ends, until, side="right"))
        if done:
            steps = Steps(
                self.executed,
                self._began,
                followed.plan,
                followed.pods,
                seconds[:done],
                own[:done],
                factors[:done],
                None if influence is None else influence.known[:done],
                communication,
            )
            self._commit(followed, steps, influence, throttled)
            if until != math.inf:
                self._began = float(ends[done - 1])
            if self.on_steps is not None:
                self.on_steps(steps)
        return done

    def _count(self, until: float, left: float, means: Matrix) -> int:
        """How many steps to try at once: to the next event, or about to `until`."""
        count = min(left, max(MOST_NUMBERS // len(means), 1))
        if until != math.inf:
            count = min(count, (until - self._began) / max(float(means.max()), 1e-9) + 2)
        if self._next is not None and not self._gathers:
            count = min(count, self._switch_at - self.executed)
        if self._scenario.total_steps is not None:
            count = min(count, self._scenario.total_steps - self.step)
        for event in self._ends:
            if event.at > self.executed:
                count = min(count, event.at - self.executed)
                break
        return max(int(count), 1)

    def _commit(
        self, followed: FollowedPlan, steps: Steps, influence: Influence | None, throttled: Matrix | None
    ) -> None:
        done = len(steps.seconds)
        self._draws.skip(done)
        self._shared.skip(done)
        self.executed += done
        self.step += done
        skipped = min(followed.unmeasured, done)
        followed.unmeasured -= skipped
        if skipped < done:
            weight = self._scenario.job.smoothing
            followed.measure(steps.own_seconds[skipped:], steps.seconds[skipped:], weight)
            followed.counted.add_use(steps, influence, throttled, skipped)

    def _report(self) -> None:
        """Write what was counted into the members' metrics."""
        if self._followed is not None:
            self._followed.report(self.step, self._epoch, self._scenario.total_steps)

    def _finish(self) -> None:
        assert self._followed is not None
        self._report()
        for rank, pod in enumerate(self._followed.pods):
            pod.last_step = self.step
            pod.end(0, finished=True, leader=rank == 0)
