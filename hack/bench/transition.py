"""How long the workers that stay stand still when others join, leave, are swapped, killed, stopped or cut off, beside a
restart of the same job and beside torchrun's restart of a plain script of the same model.

    PYTHONPATH=tests .venv/bin/python hack/bench/transition.py [--workers 3 8] [--repetitions 10] [--parts planned]

Real processes on this machine, which share its cores, train a perceptron of 10 million parameters with SGD and
momentum; the benchmark writes the plans that an operator would write, and workers that join warm up before, as those do
that an operator starts. Idle time is what lies between the last step with the members before and the first with those
after, on a worker that stays, less the median of the ten steps that follow (they share these cores with as many); of
several such workers the longest counts. After a fault it is the longest gap between two steps until all train again,
less the median of the ten before, and another worker joins before the next fault. A restart is what a job does without
elastic membership: all workers stop at a checkpoint, and new processes go on from it. Of torchrun (`--max-restarts`;
DistributedDataParallel, a checkpoint every 15 steps) one worker is killed, and its steps until the one that was reached
before count as repeated. The exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, pairwise, product
from pathlib import Path

import runner
import tables_measured
import transition_torchrun

from heterotrain import contract
from heterotrain import worker_metrics as table
from heterotrain.contract import StepRecord, TrainingConfig
from heterotrain_operator.clusters.local.partition import Partition
from trainer.gang import Gang, free_port, with_children

WORKER = str(Path(__file__).with_name("transition_worker.py"))
PER_WORKER = 4
"""Samples of a worker in a step."""

GOAL_SECONDS = 0.3
"""Of planned changes."""

HEARTBEAT_SECONDS = 5.0


@contextlib.contextmanager
def killed(gang: Gang, victim: int) -> Iterator[None]:
    """A worker that has ended without a word."""
    gang.processes[victim].send_signal(signal.SIGKILL)
    yield


@contextlib.contextmanager
def stopped(gang: Gang, victim: int) -> Iterator[None]:
    """A worker that the kernel does not run."""
    gang.processes[victim].send_signal(signal.SIGSTOP)
    yield


@contextlib.contextmanager
def cut_off(gang: Gang, victim: int) -> Iterator[None]:
    """A worker that runs, and that no packet of the others reaches, nor any of its own them."""
    partition = Partition(
        lambda: {str(number): with_children(process.pid) for number, process in enumerate(gang.processes)}
    )
    partition.cut(str(victim))
    try:
        yield
    finally:
        partition.close()


Fault = Callable[[Gang, int], contextlib.AbstractContextManager[None]]
FAULTS: dict[str, tuple[int, Fault, float]] = {
    "kill of a worker": (-1, killed, 1.0),
    "kill of the leader": (0, killed, 2.0),
    "stop of a worker": (-1, stopped, HEARTBEAT_SECONDS + 1.0),
    "stop of the leader": (0, stopped, HEARTBEAT_SECONDS + 1.0),
    "partition of a worker": (-1, cut_off, HEARTBEAT_SECONDS + 1.0),
    "partition of the leader": (0, cut_off, HEARTBEAT_SECONDS + 1.0),
}
"""By name: the worker's place in the plan, what happens to it, and the goal in seconds."""

RESTART = "restart from a checkpoint"
TORCHRUN = "torchrun, kill of a worker"
NO_GOAL = (RESTART, TORCHRUN)
STEPS_BESIDE = 10
STEPS_BETWEEN = 15


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of members: seconds that the survivor which stood still longest was `idle`, its usual `step` beside it
    in seconds, and the samples that were lost, and those that were computed again, over all workers."""

    what: str
    workers: int
    idle: float
    step: float
    lost: int
    repeated: int


class Measured:
    """A job whose members change; `members` are the numbers of those that train."""

    def __init__(self, gang: Gang, workers: int) -> None:
        self.members = list(range(workers))
        self._gang = gang
        self._workers = workers
        self._total = PER_WORKER * workers
        self._changes: list[tuple[str, int, list[int]]] = []

    def change(self, what: str, *, leave: int = 0, join: int = 0) -> None:
        """Publish a plan in which the newest members are gone and new ones are there, and wait until all follow it."""
        gang = self._gang
        joined = [len(gang.members) + number for number in range(join)]
        for number in joined:
            gang.start(0)
            gang.await_phase(number, contract.PHASE_WAITING)
        stay = self.members[: len(self.members) - leave]
        self.members = stay + joined
        share, rest = divmod(self._total, len(self.members))
        plan = gang.change({number: share + (place < rest) for place, number in enumerate(self.members)})
        gang.await_generation(*self.members)
        gang.await_step(int(gang.metric(0, table.STEP.name) or 0) + STEPS_BETWEEN)
        self._changes.append((what, plan.version, stay))

    def results(self) -> list[Transition]:
        """What all workers' records say about the changes so far."""
        gang = self._gang
        records = {number: gang.series(number) for number in range(len(gang.members))}
        by_step: Counter[int] = Counter()
        for record in chain.from_iterable(records.values()):
            by_step[record.step] += record.samples
        last = min(records[number][-1].step for number in self.members)
        lost = sum(max(0, self._total - by_step[step]) for step in range(last))
        repeated = int(gang.metric(0, table.STEPS_REPLAYED.name) or 0) * self._total
        found = []
        for what, version, stay in self._changes:
            idle, usual = max(idle_of(records[number], version) for number in stay)
            found.append(Transition(what, self._workers, idle, usual, lost, repeated))
        return found


def idle_of(records: Sequence[StepRecord], version: int) -> tuple[float, float]:
    """Idle seconds of a worker when it began to follow a plan, and its usual step from there on."""
    first = next(index for index, record in enumerate(records) if record.version >= version)
    usual = usual_step(records[first : first + STEPS_BESIDE + 1])
    return records[first].time - records[first - 1].time - usual, usual


def usual_step(records: Sequence[StepRecord]) -> float:
    """The median of the seconds between commits."""
    return statistics.median(later.time - sooner.time for sooner, later in pairwise(records))


def _gang(folder: str, workers: int, config: TrainingConfig) -> Gang:
    """Workers of a job, of whom those that join warm up before, as those do that an operator starts beside others."""
    environment = {contract.ENV_WARM_UP: "1"}
    return Gang(Path(folder), [WORKER], [PER_WORKER] * workers, config, environment=environment)


def elastic(workers: int, repetitions: int) -> list[Transition]:
    """All planned changes, one after the other, in one job."""
    config = TrainingConfig(steps=1_000_000, seed=1)
    with tempfile.TemporaryDirectory() as folder, _gang(folder, workers, config) as gang:
        gang.await_step(2 * STEPS_BETWEEN)
        job = Measured(gang, workers)
        for _ in range(repetitions):
            job.change("swap", leave=1, join=1)
            job.change("join", join=1)
            job.change("leave", leave=1)
            job.change("two leave at once", leave=2)
            job.change("two join at once", join=2)
        return job.results()


def faults(workers: int, repetitions: int) -> list[Transition]:
    """All faults, one after the other, in one job of which members go on by themselves."""
    config = TrainingConfig(steps=1_000_000, seed=1, heartbeat_timeout_seconds=HEARTBEAT_SECONDS)
    total = PER_WORKER * workers
    found: list[tuple[str, list[int], float, float, int]] = []
    with tempfile.TemporaryDirectory() as folder, _gang(folder, workers, config) as gang:
        members = list(range(workers))
        gang.await_step(2 * STEPS_BETWEEN)
        for what, (place, fault, _) in list(FAULTS.items()) * repetitions:
            victim = members.pop(place)
            survivor = members[0]
            before = replayed(gang, survivor)
            at = time.time()
            with fault(gang, victim):
                trains_on(gang, survivor, formed=before + 1)
                gang.processes[victim].send_signal(signal.SIGKILL)
            found.append((what, list(members), at, time.time(), replayed(gang, survivor) - before))
            members.append(len(gang.members))
            gang.start(0)
            gang.await_phase(members[-1], contract.PHASE_WAITING)
            gang.change(dict.fromkeys(members, PER_WORKER))
            gang.await_generation(*members)
            trains_on(gang, survivor)
        records = {number: gang.series(number) for number in range(len(gang.members))}
    return [
        fault_of(what, workers, [records[each] for each in left], (at, until), repeated * total)
        for what, left, at, until, repeated in found
    ]


def replayed(gang: Gang, number: int) -> int:
    """Steps that a worker has done again so far."""
    return int(gang.metric(number, table.STEPS_REPLAYED.name) or 0)


def trains_on(gang: Gang, number: int, formed: int = 0) -> None:
    """Wait until a worker has formed groups so many times after a failure, and trains on."""
    if formed:
        gang.await_metric(number, table.STEPS_REPLAYED.name, formed)
    gang.await_metric(number, table.STEP.name, int(gang.metric(number, table.STEP.name) or 0) + STEPS_BETWEEN)


def fault_of(
    what: str, workers: int, survivors: Sequence[Sequence[StepRecord]], times: tuple[float, float], repeated: int
) -> Transition:
    """What the survivors' records say about a fault between two times."""
    at, until = times
    worst = (0.0, 0.0)
    lost = 0
    for records in survivors:
        first = next(index for index, record in enumerate(records) if record.time >= at)
        last = max(index for index, record in enumerate(records) if record.time <= until)
        usual = usual_step(records[max(0, first - STEPS_BESIDE) : first])
        gaps = [later.time - sooner.time for sooner, later in pairwise(records[first - 1 : last + 1])]
        worst = max(worst, (max(gaps) - usual, usual))
        lost += sum(later.step > sooner.step + 1 for sooner, later in pairwise(records[first - 1 : last + 1]))
    return Transition(what, workers, *worst, lost, repeated)


def restart(workers: int, repetitions: int) -> list[Transition]:
    """All workers stop at a checkpoint, and new processes go on."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        config = TrainingConfig(steps=1_000_000, seed=1, checkpoint_path=f"{folder}/checkpoints")
        before: list[StepRecord] = []
        for generation in range(1, repetitions + 2):
            batches = [PER_WORKER] * workers
            with Gang(Path(folder), [WORKER], batches, config, generation=generation, cold=True) as gang:
                gang.await_step((before[-1].step if before else 0) + STEPS_BETWEEN)
                gang.stop()
                gang.wait()
                records = gang.series(0)
            if before:
                usual = usual_step(before[-STEPS_BESIDE:])
                idle = records[0].time - before[-1].time - usual
                found.append(Transition(RESTART, workers, idle, usual, 0, 0))
            before = records
    return found


def torchrun(workers: int, repetitions: int) -> list[Transition]:
    """One of torchrun's workers is killed, and torchrun starts all of them again."""
    found = transition_torchrun.restarts(workers, PER_WORKER, repetitions, free_port())
    return [Transition(TORCHRUN, workers, each.idle, each.step, 0, each.steps * PER_WORKER * workers) for each in found]


def goal_of(what: str) -> float | None:
    """The most seconds of standstill; None where it stands for comparison."""
    if what in NO_GOAL:
        return None
    return FAULTS[what][2] if what in FAULTS else GOAL_SECONDS


def reached(found: Sequence[Transition]) -> bool:
    """Whether all goals are reached: nobody stood still for longer, nothing was lost, and nothing repeated but the step
    in which a fault came.
    """
    return all(
        each.idle <= goal
        and not each.lost
        and each.repeated <= (PER_WORKER * each.workers if each.what in FAULTS else 0)
        for each in found
        if (goal := goal_of(each.what)) is not None
    )


PARTS = ("planned", "faults", "restarts")


def measured(part: str, workers: int, options: argparse.Namespace) -> list[Transition]:
    """One part of the measurements, with so many workers."""
    if part == "planned":
        return elastic(workers, options.repetitions)
    if part == "faults":
        return faults(workers, options.repetitions)
    return restart(workers, options.restarts) + torchrun(workers, options.restarts)


def main(arguments: Sequence[str]) -> int:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description="Measure how long survivors of a change of members stand still.")
    parser.add_argument("--workers", type=int, nargs="+", default=[3, 8], help="(3 8)")
    parser.add_argument("--repetitions", type=int, default=10, help="of each change (10)")
    parser.add_argument("--restarts", type=int, default=3, help="of each restart, and of torchrun's (3)")
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=PARTS, help="what to measure (all)")
    options = runner.options_of(parser).parse_args(arguments)
    machine = runner.machine()
    found: list[Transition] = []
    for workers, part in product(options.workers, options.parts):
        found += measured(part, workers, options)
        transitions = [asdict(each) | {"goal": goal_of(each.what)} for each in found]
        document = {"benchmark": "transition", "machine": machine, "transitions": transitions}
        # As far as it has come, for each part takes minutes.
        runner.report(document, tables_measured.transition([document]), options)
    return 0 if reached(found) else 1


if __name__ == "__main__":
    runner.command(main)
