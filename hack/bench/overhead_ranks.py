"""What one worker's bookkeeping costs in a large group: the other members are simulated, and nothing is sent.

Only what grows with the number of members is measured: dividing a step among them, exchanging signals, comparing their
checksums, and reading a plan. What gloo takes for larger messages and more peers is not in it.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from rich.table import Table
from torch import nn

from heterotrain.contract import Member, Plan, TrainingConfig, parse_plan
from heterotrain.data.sampler import Position, Rules, coming_shares
from heterotrain.groups.control import Checksums, PendingSignals, Signals
from heterotrain.groups.generation import Generation
from heterotrain.job.planfile import check_successor
from heterotrain.job.plans import Plans
from heterotrain.state.hyperparameters import Hyperparameters
from heterotrain.state.replica_check import ReplicaChecksum
from heterotrain.state.replica_watch import MOST_STEPS, ReplicaWatch
from heterotrain.state.training_state import TrainingState
from heterotrain.training.running_step import RunningStep

DATASET_LENGTH = 1_281_167
EPOCHS = 90
BATCH_SIZES = (8, 24, 40, 56)  # by turns
BLOCKS = 7
BLOCK_SECONDS = 0.01
STEP, EXCHANGE, PLAN = "step", "exchange", "plan"


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU microseconds of one thing that one of `ranks` workers does once per `per`."""

    what: str
    per: str
    ranks: int
    microseconds: float


class SimulatedGroup:
    """A process group in which every collective has completed at once, with this worker's part alone."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size

    def sum(self, tensor: torch.Tensor) -> torch.futures.Future[Any]:
        """A future that has ended."""
        end: torch.futures.Future[Any] = torch.futures.Future()
        end.set_result([tensor])
        return end


def plan_of(ranks: int) -> Plan:
    """A plan of so many members with unequal batches."""
    members = tuple(
        Member(f"job-group-{rank}", f"uid-{rank:032}", f"job-group-{rank}.job.namespace.svc:29500", "group", size)
        for rank, size in ((rank, BATCH_SIZES[rank % len(BATCH_SIZES)]) for rank in range(ranks))
    )
    return Plan(1, 1, "step", members)


def actions(ranks: int) -> Iterator[tuple[str, str, Callable[[], object]]]:
    """What a worker in the middle of so many does, and how often."""
    plan = plan_of(ranks)
    plans = Plans(plan, None)
    plans.rank = ranks // 2
    module = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    state = TrainingState(module, optimizer, DATASET_LENGTH, TrainingConfig(epochs=EPOCHS))
    rules = Rules(DATASET_LENGTH, epochs=EPOCHS)
    begin, whole = Position(), plan.global_batch_size
    yield "divide the step among all", STEP, lambda: RunningStep.at(begin, plans.split, plans.rank, rules)
    yield "is it a step of the usual size", STEP, lambda: rules.usual_samples(plans.split.global_batch_size)
    shares = itertools.chain.from_iterable(
        coming_shares(rules, begin, plan.batch_sizes, plans.rank) for _ in itertools.count()
    )
    yield "the next samples to load", STEP, partial(next, shares)
    yield "go on to the next position", STEP, lambda: rules.advance(begin, whole, whole)
    yield "how many steps in all", STEP, lambda: rules.steps_in_all(begin, plans.split.global_batch_size)

    # only these of a generation are used
    group = cast(Generation, SimulatedGroup(plans.rank, ranks))
    checksums = Checksums(1.0, 2.0)
    signals = Signals(samples=32.0)
    yield "send signals and checksums", EXCHANGE, partial(PendingSignals, signals, checksums, group)
    pending = PendingSignals(signals, checksums, group)
    yield "receive everybody's", EXCHANGE, pending.read
    watch = ReplicaWatch(Hyperparameters(optimizer), ReplicaChecksum(module, optimizer), state)
    everybodys = [checksums] * ranks
    for exact, kinds in ((True, "of one kind"), (False, "of several kinds")):

        def compare(exact: bool = exact) -> None:
            watch.exact = exact
            watch.compare(everybodys, plan.members)

        yield f"compare replicas, machines {kinds}", EXCHANGE, compare

    yield "write a plan (the leader)", PLAN, plan.to_json
    document = plan.to_json().encode()
    yield "read a plan", PLAN, partial(parse_plan, document)
    yield "check that it may follow", PLAN, partial(check_successor, plan, plan)

    def divide_first() -> None:
        following = Plans(plan, None)
        following.rank = plans.rank
        RunningStep.at(begin, following.split, following.rank, rules)

    yield "divide its first step", PLAN, divide_first


def cpu_microseconds(act: Callable[[], object]) -> float:
    """The median over some blocks of calls, of this thread's CPU time per call."""
    act()
    calls, seconds = 1, 0.0
    while seconds < BLOCK_SECONDS:
        calls = calls if seconds == 0 else 1 + round(calls * 1.2 * BLOCK_SECONDS / max(seconds, BLOCK_SECONDS / 100))
        seconds = _block(act, calls)
    return statistics.median(_block(act, calls) for _ in range(BLOCKS)) / calls * 1e6


def _block(act: Callable[[], object], calls: int) -> float:
    begin = time.thread_time()
    for _ in range(calls):
        act()
    return time.thread_time() - begin


def measure(numbers: Sequence[int]) -> list[Cost]:
    """All costs for groups of these numbers of workers."""
    return [Cost(what, per, ranks, cpu_microseconds(act)) for ranks in numbers for what, per, act in actions(ranks)]


def per_step(costs: Sequence[Cost], ranks: int) -> float:
    """Microseconds of a step of so many workers, with an exchange after as many steps as there are at most.

    Machines of several kinds, whose replicas take longer to compare, are not counted twice.
    """
    return sum(
        cost.microseconds / (MOST_STEPS if cost.per == EXCHANGE else 1)
        for cost in costs
        if cost.ranks == ranks and cost.per != PLAN and "of one kind" not in cost.what
    )


def render(costs: Sequence[Cost]) -> Table:
    """A column for each number of ranks."""
    numbers = list(dict.fromkeys(cost.ranks for cost in costs))
    table = Table(title="simulated ranks: CPU µs of one worker's bookkeeping")
    table.add_column("what")
    table.add_column("once per")
    for ranks in numbers:
        table.add_column(f"{ranks} ranks", justify="right")
    for what, per in dict.fromkeys((cost.what, cost.per) for cost in costs):
        table.add_row(what, per, *(f"{cost.microseconds:.1f}" for cost in costs if cost.what == what))
    table.add_section()
    table.add_row(f"all, an exchange every {MOST_STEPS} steps", STEP, *(f"{per_step(costs, n):.1f}" for n in numbers))
    return table
