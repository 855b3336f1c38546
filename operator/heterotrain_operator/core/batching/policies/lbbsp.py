"""LB-BSP's two ways to balance: by predicted speed on CPUs (Algorithm 1), step by step on accelerators (Algorithm 2).

Where a job has both kinds, samples go between the CPU and the GPU groups by speed, and within each kind by its own way.
A simulation with `interval: 1` and no delays is the paper's blocking update per iteration.

Two departures from Algorithm 2, which otherwise never settles if it is asked once per interval, and stays slow after a
change. Whether the roles are reversed is tested before samples move: a window that covers all of `D` steps always finds
the leader ahead, so five samples would swing for ever. And the fine phase ends where the workers drift apart again. Its
`D` counts steps of the job. A worker that the coarse step would leave without samples is approached by fine ones, down
to its least batch, where `core/stragglers` judges it (the paper: to be removed).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from heterotrain_operator.core.batching.policy import Policy, Proposal, Seat, multiples_of_seats
from heterotrain_operator.core.batching.words import moved, slowest
from heterotrain_operator.core.model import Job
from heterotrain_operator.core.remembered.batching import Batching
from heterotrain_operator.core.split.allocation import split_proportionally

LEADS_BELOW = 0.95
"""Used part of its memory limit above which no worker is given more. Source: LB-BSP, Algorithm 2."""

APART = 1.3
"""Times the least spread of a fine phase at which the workers have drifted apart. An absolute bound, or single windows,
would let noise end the phase again and again."""

THOUSANDTHS = 1000

LED, LAGGED, FINE = 1, 2, 4
LEAST_SPREAD = 8
"""What a worker's policy notes: these bits, and above them the least spread of the fine phase in thousandths. A worker
that has led and one that has lagged are remembered, not the present pair: noise near the balance makes others the
slowest and the fastest at every look."""


class Phase(NamedTuple):
    """So many `samples` move at a time, once the roles were the same for so many `steps` of the job."""

    samples: int
    steps: int

    def windows(self, job: Job) -> int:
        """Control intervals that hold these steps."""
        return math.ceil(self.steps / max(job.interval, 1))


class Move(NamedTuple):
    """So many samples at least, from a rank to another one."""

    source: int
    target: int
    samples: int


COARSE_PHASE, FINE_PHASE = Phase(5, 5), Phase(1, 20)
"""Source: LB-BSP, Algorithm 2."""


def propose(job: Job, seats: Sequence[Seat], batching: Batching) -> Proposal:
    """Batches by speed for groups on CPUs, and five samples or one from the slowest to the fastest of those on GPUs.

    Of an own time `t_k` at `b_k` samples the speed is `v_k = b_k / t_k`, and `b_k <- B * v_k / sum(v)`, rounded so that
    the sum stays (LB-BSP, Algorithm 1). Predicted own times are those of the job's predictor.
    """
    ranks = [rank for rank, seat in enumerate(seats) if seat.group.device != "cpu" and not seat.held and seat.batch > 0]
    batches = [seat.batch for seat in seats]
    notes = {rank: seats[rank].memory.noted for rank in ranks}
    if len(ranks) < len(seats):
        batches = _by_speed(job, seats, ranks)
    why = ""
    if len(ranks) > 1:
        notes, move, why = _stepped(job, seats, ranks)
        if move is not None:
            batches = _with_move(seats, batches, *move)
    memories = tuple(
        seat.memory._replace(noted=notes[rank]) if rank in notes else seat.memory for rank, seat in enumerate(seats)
    )
    if batches == [seat.batch for seat in seats]:
        kept = f"LBBSP keeps the batches: {slowest(seats)}"
        return Proposal(None, f"{kept}; {why}" if why else kept, memories)
    reason = moved(seats, batches, None)
    return Proposal(tuple(batches), f"{reason}; {why}" if why else reason, memories)


def _by_speed(job: Job, seats: Sequence[Seat], stepping: Sequence[int]) -> list[int]:
    """The global batch in proportion to speed; of those that go step by step the sum, shared as it is now."""
    speeds = [0.0 if seat.estimate is None else seat.batch / seat.estimate.mean_seconds for seat in seats]
    bounds, multiples = [seat.bounds for seat in seats], multiples_of_seats(seats)
    batches = list(split_proportionally(speeds, job.global_batch, bounds, multiples))
    if stepping:
        part = split_proportionally(
            [float(seats[rank].batch) for rank in stepping],
            sum(batches[rank] for rank in stepping),
            [bounds[rank] for rank in stepping],
            [multiples[rank] for rank in stepping] if multiples else (),
        )
        for rank, batch in zip(stepping, part, strict=True):
            batches[rank] = batch
    return batches


def _stepped(job: Job, seats: Sequence[Seat], ranks: Sequence[int]) -> tuple[dict[int, int], Move | None, str]:
    """What is noted of these ranks, which samples move between two of them, and what else happened, in words."""
    noted = {rank: seats[rank].memory.noted for rank in ranks}
    # A newcomer has noted nothing of the phase.
    fine = max(noted.values()) >= FINE
    least = max(noted.values()) // LEAST_SPREAD if fine else 0
    series = {rank: seats[rank].memory.series.windows for rank in ranks}
    if not all(series.values()):
        return noted, None, "some worker's last steps are not known"
    seconds = {rank: series[rank][-1].seconds for rank in ranks}
    straggler = max(ranks, key=lambda rank: seconds[rank])
    leaders = [rank for rank in ranks if series[rank][-1].memory_share <= LEADS_BELOW]
    if not leaders:
        return noted, None, f"every worker uses more than {LEADS_BELOW:.0%} of its memory"
    leader = min(leaders, key=lambda rank: seconds[rank])
    if fine:
        spread = _spread([[window.seconds for window in series[rank]] for rank in ranks], FINE_PHASE.windows(job))
        least = min(least or spread, spread)
        if spread > APART * least:
            return dict.fromkeys(ranks, 0), None, "the workers drifted apart: large steps again"
    elif noted[leader] & LAGGED or noted[straggler] & LED or seats[straggler].batch <= COARSE_PHASE.samples:
        return dict.fromkeys(ranks, FINE), None, "near the balance: small steps from now on"
    else:
        noted[leader] |= LED
        noted[straggler] |= LAGGED
    notes = dict.fromkeys(ranks, FINE + least * LEAST_SPREAD) if fine else noted
    phase = FINE_PHASE if fine else COARSE_PHASE
    last = phase.windows(job)
    pairs = list(zip(series[leader][-last:], series[straggler][-last:], strict=False))
    if len(pairs) < last or not all(ahead.seconds < behind.seconds for ahead, behind in pairs):
        return notes, None, ""
    return notes, Move(straggler, leader, phase.samples), ""


def _spread(seconds: Sequence[Sequence[float]], windows: int) -> int:
    """The slowest mean of so many last windows over the fastest, in thousandths; 0 where there are fewer."""
    if any(len(each) < windows for each in seconds):
        return 0
    means = [fmean(each[-windows:]) for each in seconds]
    return round(THOUSANDTHS * min(max(means) / min(means), THOUSANDTHS))


def _with_move(seats: Sequence[Seat], batches: Sequence[int], source: int, target: int, samples: int) -> list[int]:
    """The batches with that move, or the part of it that bounds leave; both batches stay multiples of what they are."""
    unit = math.lcm(seats[source].group.multiple_of, seats[target].group.multiple_of)
    room = min(batches[source] - seats[source].bounds[0], seats[target].bounds[1] - batches[target])
    count = min(math.ceil(samples / unit), max(room, 0) // unit) * unit
    after = list(batches)
    after[source] -= count
    after[target] += count
    return after


POLICY = Policy(
    "LB-BSP: by predicted speed on CPUs, step by step towards balance on GPUs",
    propose,
    whole_intervals=True,
    looks_back=FINE_PHASE.windows,
)
