"""How samples are divided among workers and steps, and what is said of it before the first step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain.contract import Member, Plan
from heterotrain.data.sampler import (
    CARRY,
    DROP,
    PARTIAL,
    Position,
    Rules,
    coming_shares,
    epoch_order,
    micro_batches,
    rank_slice,
)
from heterotrain.training.life import remarks_on_division

BATCHES = st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any)


@given(batches=BATCHES, samples=st.integers(1, 300))
def test_a_steps_slices_are_disjoint_and_cover_it(batches: list[int], samples: int) -> None:
    samples = min(samples, sum(batches))
    taken = [range(*rank_slice(batches, rank, samples)) for rank in range(len(batches))]
    assert [index for part in taken for index in part] == list(range(samples))


@given(batches=BATCHES)
def test_a_full_step_gives_every_rank_its_batch(batches: list[int]) -> None:
    sizes = [len(range(*rank_slice(batches, rank, sum(batches)))) for rank in range(len(batches))]
    assert sizes == batches


@given(length=st.integers(1, 400), plans=st.lists(BATCHES, min_size=1, max_size=8), seed=st.integers(0, 5))
def test_every_sample_once_per_epoch_while_batches_change_at_every_step(
    length: int, plans: list[list[int]], seed: int
) -> None:
    position, rules = Position(), Rules(length)
    order = epoch_order(length, seed, 0).tolist()
    seen: list[int] = []
    while position.epoch == 0:
        batches = plans[position.step % len(plans)]
        samples = rules.samples(position, sum(batches))
        for rank in range(len(batches)):
            start, stop = rank_slice(batches, rank, samples)
            seen += order[position.cursor + start : position.cursor + stop]
        position = rules.advance(position, samples, sum(batches))
    assert sorted(seen) == list(range(length))
    assert position.cursor == 0


@given(start=st.integers(0, 99), samples=st.integers(0, 300), most=st.integers(0, 70), least=st.integers(1, 2))
def test_micro_batches_cover_a_part_in_order_and_hold_their_limit(
    start: int, samples: int, most: int, least: int
) -> None:
    parts = micro_batches(start, start + samples, most, least)
    sizes = [stop - begin for begin, stop in parts]
    assert [index for part in parts for index in range(*part)] == list(range(start, start + samples))
    assert max(sizes) - min(sizes) <= 1
    if samples >= least:
        assert min(sizes) >= least
        assert most == 0 or max(sizes) <= max(most, 2 * least - 1)
        assert most == 0 or least > 1 or len(parts) == -(-samples // most)


@given(batches=BATCHES, length=st.integers(2, 400))
def test_with_batch_norm_no_worker_ever_has_a_single_sample(batches: list[int], length: int) -> None:
    total = max(2, sum(batches))
    batches = [*batches, total - sum(batches)]
    position, rules, seen = Position(), Rules(length, least=2), []
    while position.epoch == 0:
        samples = rules.samples(position, total)
        parts = [rank_slice(batches, rank, samples, least=2) for rank in range(len(batches))]
        assert all(stop - start != 1 for start, stop in parts)
        seen += [position.cursor + index for part in parts for index in range(*part)]
        position = rules.advance(position, samples, total)
    assert seen == list(range(length))


def steps_of(rules: Rules, batch: int) -> list[int]:
    """Samples of all the job's steps."""
    position, sizes = Position(), []
    while not rules.is_over(position):
        sizes.append(rules.samples(position, batch))
        position = rules.advance(position, sizes[-1], batch)
    assert position.step == rules.steps_in_all(Position(), batch) == len(sizes)
    return sizes


@pytest.mark.parametrize(
    ("last_step", "sizes"),
    [
        (PARTIAL, [10, 10, 5, 10, 10, 5, 10, 10, 5]),
        (DROP, [10, 10, 10, 10, 10, 10]),
        (CARRY, [10, 10, 10, 10, 10, 10, 10, 5]),
    ],
)
def test_what_does_not_fill_a_step_is_a_smaller_one_or_left_out_or_carried_on(last_step: str, sizes: list[int]) -> None:
    assert steps_of(Rules(25, last_step=last_step, epochs=3), 10) == sizes


@given(
    length=st.integers(2, 60),
    batch=st.integers(2, 90),
    least=st.sampled_from([1, 2]),
    last_step=st.sampled_from([PARTIAL, DROP, CARRY]),
)
def test_each_epoch_begins_with_a_step_of_the_usual_samples(
    length: int, batch: int, least: int, last_step: str
) -> None:
    """Steps of the usual samples are those that are measured, so every job has some."""
    rules = Rules(length, least, last_step, epochs=4)
    position, first = Position(), {}
    while not rules.is_over(position):
        samples = rules.samples(position, batch)
        if position.cursor == 0:
            first.setdefault(position.epoch, samples)
        position = rules.advance(position, samples, batch)
    if last_step == CARRY:
        first = {0: first[0]}  # later epochs may begin with what is left at the job's end
    assert set(first.values()) == {rules.usual_samples(batch)}


@given(length=st.integers(1, 60), batch=st.integers(1, 90), epochs=st.integers(1, 5))
def test_carried_samples_are_each_seen_once_per_epoch(length: int, batch: int, epochs: int) -> None:
    rules = Rules(length, last_step=CARRY, epochs=epochs)
    shares = list(coming_shares(rules, Position(), [batch], 0))
    absolute = [share.epoch * length + index for share in shares for index in range(share.start, share.stop)]
    assert absolute == list(range(epochs * length))
    assert {share.stop - share.start for share in shares[:-1]} <= {batch}


@given(
    length=st.integers(1, 60),
    batch=st.integers(1, 90),
    last_step=st.sampled_from([PARTIAL, DROP, CARRY]),
    epochs=st.integers(1, 4),
    steps=st.none() | st.integers(1, 30),
)
def test_the_number_of_steps_is_known_from_every_position(
    length: int, batch: int, last_step: str, epochs: int, steps: int | None
) -> None:
    rules, position = Rules(length, last_step=last_step, epochs=epochs, steps=steps), Position()
    known = rules.steps_in_all(position, batch)
    while not rules.is_over(position):
        assert rules.steps_in_all(position, batch) == known
        position = rules.advance(position, rules.samples(position, batch), batch)
    assert position.step == known


@pytest.mark.parametrize("last_step", [PARTIAL, DROP, CARRY])
def test_an_endless_job_tells_of_its_end_and_goes_on(last_step: str) -> None:
    rules, position = Rules(25, last_step=last_step, epochs=2, endless=True), Position()
    assert rules.steps_in_all(position, 10) == Rules(25, last_step=last_step, epochs=2).steps_in_all(position, 10)
    for _ in range(20):
        assert not rules.is_over(position)
        position = rules.advance(position, rules.samples(position, 10), 10)
    assert position.epoch > 5


def plan(*batches: int) -> Plan:
    members = tuple(Member(f"w-{rank}", f"u-{rank}", "", "cpu", batch) for rank, batch in enumerate(batches))
    return Plan(1, 1, "step", members)


@pytest.mark.parametrize(
    ("length", "batch", "remark"),
    [
        (1500, 1400, "1 of 2 steps of each epoch is smaller, of 100 samples instead of 1400"),
        (2801, 1400, "1 of 3 steps of each epoch is smaller, of 1 samples instead of 1400"),
        (900, 1400, "each epoch is one step of its 900 samples, which are fewer than the global batch of 1400"),
    ],
)
def test_where_many_steps_are_smaller_it_is_said_how_many_and_what_cures_it(
    length: int, batch: int, remark: str
) -> None:
    [found] = remarks_on_division(Rules(length), plan(batch - 10, 10))
    assert found.startswith(remark)
    assert "training.lastStep: Carry" in found


def test_a_smaller_step_is_the_last_of_its_epoch_or_one_of_the_last_two() -> None:
    assert Rules(25, last_step=PARTIAL).smaller_steps(10) == (5,)
    assert Rules(21, least=2).smaller_steps(10) == (9, 2)
    assert Rules(5, least=2).smaller_steps(2) == ()
    assert Rules(7, last_step=DROP).smaller_steps(10) == (7,)
    assert Rules(7, last_step=CARRY).smaller_steps(10) == ()
