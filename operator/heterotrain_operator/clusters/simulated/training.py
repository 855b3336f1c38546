"""The steps that members take under a plan, vectorised over workers and steps, in virtual time.

A step takes as long as its slowest member and the communication after it. Counters are kept as trainers keep them: they
begin with a plan's version, and the first steps under it are not measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from heterotrain.contract import PHASE_REFORMING, PHASE_STARTING, PHASE_TRAINING, Member, Plan
from heterotrain_operator.clusters.simulated.counters import Counted, FollowedPlan
from heterotrain_operator.clusters.simulated.draws import Draws, Matrix
from heterotrain_operator.clusters.simulated.events import Death, EndOfWorker, Preemption
from heterotrain_operator.clusters.simulated.influences import Influence, Influences, Trainee, concerns
from heterotrain_operator.clusters.simulated.pod import SimulatedPod
from heterotrain_operator.clusters.simulated.scenario import Scenario
from heterotrain_operator.clusters.simulated.steps import Steps, mean_seconds
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.split.passes import at_once

Pods = dict[str, SimulatedPod]

MOST_NUMBERS = 1_000_000
"""So many own times are computed at once at most."""


class Training:
    """Who trains, how far they are, and what a step takes. The clock belongs to whoever lets time pass.

    `executed` counts the steps that were ever executed, `step` those committed, which a restart from a checkpoint takes
    back.
    """

    def __init__(self, scenario: Scenario, draws: Draws, influences: Influences) -> None:
        self._scenario, self._draws, self._influences = scenario, draws, influences
        self.executed = self.step = 0
        self.on_steps: Callable[[Steps], None] | None = None
        self._followed: FollowedPlan | None = None
        self._next: Plan | None = None
        self._switch_at = 0
        self._meets_at: float | None = None
        self._began = 0.0
        ends = (event for event in scenario.events if isinstance(event, EndOfWorker))
        self._ends = sorted(ends, key=lambda event: event.at)

    # --- what is to be followed -------------------------------------------------------------------------------

    def publish(self, plan: Plan) -> None:
        """A plan is there to be followed: one of the same generation some steps later, one of another generation once
        all its members are ready and have met.
        """
        self._next = plan
        self._switch_at = self.executed + self._scenario.timing.switch_steps
        self._meets_at = None

    @property
    def last_step_at(self) -> float:
        """When the last step ended, on the clock."""
        return self._began

    def next_moment(self) -> float:
        """When something here is due that takes time but no steps."""
        return math.inf if self._meets_at is None else self._meets_at

    def is_training(self, pods: Pods) -> bool:
        """Whether steps are taken: all members of the followed plan are there, and no other generation gathers."""
        followed = self._followed
        if followed is None or self._gathers:
            return False
        members = [pods.get(pod.name) for pod in followed.pods]
        seats = zip(members, followed.plan.members, strict=True)
        present = [pod for pod, member in seats if pod is not None and pod.uid == member.uid and pod.is_ready]
        if len(present) < len(members):
            return False
        followed.pods = present
        return True

    def tend(self, pods: Pods, now: float) -> None:
        """Do what is due by the clock: let a new generation gather and begin; let survivors of a failure wait."""
        if self._gathers:
            self._gather(pods, now)
        elif self._followed is not None and not self.is_training(pods):
            for pod in self._followed.pods:
                if pod.exit_code is None and pod.metrics.phase == PHASE_TRAINING:
                    pod.metrics = replace(pod.metrics, phase=PHASE_REFORMING, in_collective=True)

    @property
    def _gathers(self) -> bool:
        """Whether the newest plan is of other members than the one followed, or of another generation."""
        followed, new = self._followed, self._next
        if new is None:
            return False
        return followed is None or (
            followed.plan.generation != new.generation
            or [member.uid for member in new.members] != [pod.uid for pod in followed.pods]
        )

    def _gather(self, pods: Pods, now: float) -> None:
        assert self._next is not None
        members = [pods.get(member.name) for member in self._next.members]
        present = [
            pod
            for pod, member in zip(members, self._next.members, strict=True)
            if pod is not None and pod.uid == member.uid and pod.is_ready
        ]
        if len(present) < len(members):
            self._meets_at = None
            return
        if self._meets_at is None:
            self._meets_at = now + self._scenario.timing.rendezvous_seconds
            if self._meets_at > now:
                for pod in present:
                    pod.metrics = replace(pod.metrics, phase=PHASE_STARTING)
        if now >= self._meets_at:
            self._meets_at = None
            before = [] if self._followed is None else self._followed.pods
            if not {pod.uid for pod in before} & {pod.uid for pod in present}:
                every = self._scenario.checkpoint_steps
                self.step = self.step - self.step % every if every else 0
            self._follow(self._next, present)
            self._began = now

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
        for pod, member in zip(pods, plan.members, strict=True):
            pod.metrics = self._first_metrics(plan, member)
        return self._kill_beyond_limits()

    @property
    def _epoch(self) -> int:
        return self.step // self._scenario.epoch_steps

    def _first_metrics(self, plan: Plan, member: Member) -> WorkerMetrics:
        return WorkerMetrics(
            plan_version=plan.version,
            generation=plan.generation,
            batch_size=member.batch_size,
            step=self.step,
            epoch=self._epoch,
            total_steps=self._scenario.total_steps or 0,
            phase=PHASE_TRAINING,
        )

    def _kill_beyond_limits(self) -> bool:
        """Kill members whose memory does not hold their batches; whether there are any."""
        assert self._followed is not None
        killed = False
        for pod, member in zip(self._followed.pods, self._followed.plan.members, strict=True):
            use = pod.memory
            if use is not None and use.limit_bytes is not None and use.peak_bytes(at_once(member)) > use.limit_bytes:
                pod.end_out_of_memory(f"out of memory (limit {use.limit_bytes / 2**20:.0f} MiB)")
                killed = True
        return killed

    # --- steps -------------------------------------------------------------------------------------------------

    def run(self, pods: Pods, until: float, most: int | None = None) -> int:
        """Take steps that end by `until` on the clock, at most `most`; how many it were.

        It ends early when a member dies.
        """
        taken, trains = 0, self.is_training(pods)
        if trains:
            trains = not self._kill_beyond_limits()
        while trains and (most is None or taken < most):
            killed = self._switch()
            if killed:
                break
            done = self._some(until, math.inf if most is None else most - taken)
            taken += done
            died = self._happen(pods)
            over = self._scenario.total_steps is not None and self.step >= self._scenario.total_steps
            if over:
                self._finish()
            trains = bool(done) and not (died or over)
        if taken:
            self._report()
        return taken

    def _switch(self) -> bool:
        """Follow a newer plan of this generation if it is time. Returns whether that kills somebody."""
        if self._next is None or self._followed is None or self.executed < self._switch_at:
            return False
        self._report()
        return self._follow(self._next, self._followed.pods)

    def _some(self, until: float, left: float) -> int:
        """Steps under one plan, without an event in between, that end by `until`; how many."""
        followed = self._followed
        assert followed is not None
        means = mean_seconds(followed.pods, followed.plan.batch_sizes)
        count = self._count(until, left, means)
        noise = self._draws.peek(count)[:, followed.columns]
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
            self._commit(followed, steps, influence)
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
        if self._next is not None:
            count = min(count, self._switch_at - self.executed)
        if self._scenario.total_steps is not None:
            count = min(count, self._scenario.total_steps - self.step)
        for event in self._ends:
            if event.at > self.executed:
                count = min(count, event.at - self.executed)
                break
        return max(int(count), 1)

    def _commit(self, followed: FollowedPlan, steps: Steps, influence: Influence | None) -> None:
        done = len(steps.seconds)
        self._draws.skip(done)
        self.executed += done
        self.step += done
        skipped = min(followed.unmeasured, done)
        followed.unmeasured -= skipped
        if skipped < done:
            weight = self._scenario.job.smoothing
            followed.measure(steps.own_seconds[skipped:], steps.seconds[skipped:], weight)
        followed.counted.add_use(steps, influence)

    def _report(self) -> None:
        """Write what was counted into the members' metrics."""
        if self._followed is not None:
            self._followed.report(self.step, self._epoch, self._first_metrics)

    def _happen(self, pods: Pods) -> bool:
        """What is due at this step: workers die. Returns whether one did."""
        died = False
        while self._ends and self._ends[0].at <= self.executed:
            event = self._ends.pop(0)
            for pod in pods.values():
                if pod.exit_code is None and concerns(event.workers, pod.name, pod.group):
                    _end(pod, event, self.step)
                    died = True
        return died

    def _finish(self) -> None:
        assert self._followed is not None
        self._report()
        for pod in self._followed.pods:
            pod.last_step = self.step
            pod.end(0, finished=True)


def _end(pod: SimulatedPod, event: EndOfWorker, step: int) -> None:
    pod.last_step = step
    match event:
        case Preemption():
            pod.end(143, message="its node was taken away", disrupted=True)
        case Death(_, _, exit_code, out_of_memory, message):
            pod.end(exit_code, message=message)
            pod.out_of_memory = out_of_memory
