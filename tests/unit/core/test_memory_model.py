"""The model of a worker's memory: its bound holds on affine worlds with noise, and nothing is invented."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heterotrain_operator.core.prediction.memory_model import MEBIBYTE, MemoryUse, failed, fitting_batch, measured

GIBIBYTE = 1024 * MEBIBYTE

NOISE = 0.01


def learned(*points: tuple[int, float], limit_mib: float | None = 1024) -> MemoryUse:
    """What is remembered after peaks, in MiB, at these batches."""
    memory = MemoryUse()
    for batch, mib in points:
        memory = measured(memory, batch, mib * MEBIBYTE, None if limit_mib is None else limit_mib * MEBIBYTE)
    return memory


@pytest.mark.parametrize(
    ("points", "limit_mib", "most", "growth"),
    [
        ([], 1024, None, None),
        ([(64, 500)], 1024, None, 64 * 972 // 525),  # in proportion to its memory
        ([(64, 500), (64, 510), (64, 490)], 1024, None, 117),
        ([(64, 1020)], 1024, None, 64),  # it has run
        ([(64, 500)], None, None, None),
        ([(64, 500), (96, 600)], None, None, None),
        ([(64, 600), (128, 970)], 1024, 128, None),  # it has run within the limit
        ([(64, 990), (128, 1020)], 1024, 64, None),  # nothing below it was seen to need less
    ],
)
def test_bound_and_growth_rest_on_what_has_run(
    points: list[tuple[int, float]], limit_mib: float | None, most: int | None, growth: int | None
) -> None:
    known = learned(*points, limit_mib=limit_mib)
    assert (known.greatest_batch, known.greatest_growth) == (most, growth)


def test_bound_comes_near_the_limit_and_nearer_the_further_the_batches_span() -> None:
    ideal = 0.95 * 1024 / 4 - 300 / 4
    near, far = (learned((8, 332), (batch, 300 + 4 * batch)).greatest_batch for batch in (32, 128))
    assert near is not None
    assert far is not None
    assert 32 < near < far
    assert 0.85 * ideal < far <= ideal


@pytest.mark.parametrize(
    ("points", "batch", "least", "most"),
    [
        ([(64, 400), (128, 420)], 200, 65, 199),  # a line that promised otherwise is bent
        ([(64, 500), (128, 900)], 200, 129, 150),  # one that predicted it is left alone
        ([(64, 500)], 128, None, None),  # it says nothing of a slope that was not seen
        ([(128, 500)], 100, None, None),  # what had fitted is known no longer
        ([(128, 500), (200, 600)], 100, None, None),
    ],
)
def test_failure_corrects_a_line(
    points: list[tuple[int, float]], batch: int, least: int | None, most: int | None
) -> None:
    bound = failed(learned(*points), batch).greatest_batch
    if least is None or most is None:
        assert bound is None
    else:
        assert bound is not None
        assert least <= bound <= most


def test_greatest_batch_known_to_fit_is_below_the_one_asked_about() -> None:
    memory = learned((64, 500), (128, 900))
    assert [fitting_batch(memory, below) for below in (200, 128, 64)] == [128, 64, 0]
    assert fitting_batch(learned((64, 1000)), 128) == 0, "more than is usable"


def test_larger_limit_ends_what_was_learned_by_failing() -> None:
    memory = replace(learned((64, 500)), guessed_batch=32)
    assert measured(memory, 64, 500 * MEBIBYTE, GIBIBYTE).guessed_batch == 32
    assert measured(memory, 64, 500 * MEBIBYTE, 2 * GIBIBYTE).guessed_batch == 0


FIXED = st.floats(50, 4000)

SLOPE = st.floats(0, 40)

TRAVEL = st.lists(st.tuples(st.integers(1, 2000), st.floats(-NOISE, NOISE)), min_size=1, max_size=30)


@given(FIXED, SLOPE, st.floats(100, 80_000), TRAVEL)
def test_bound_never_takes_more_than_the_limit_on_affine_worlds_with_noise(
    fixed: float, slope: float, limit: float, travel: list[tuple[int, float]]
) -> None:
    def peak(batch: int) -> float:
        return fixed + slope * batch

    memory = MemoryUse()
    for batch, noise in travel:
        if peak(batch) * (1 + NOISE) > limit:
            continue
        memory = measured(memory, batch, peak(batch) * (1 + noise) * MEBIBYTE, limit * MEBIBYTE)
        bound = memory.greatest_batch
        assert bound is None or peak(bound) <= limit


@given(FIXED, SLOPE, TRAVEL, st.floats(100, 40_000), st.floats(1, 4))
def test_bound_rises_with_the_limit_and_falls_with_the_peak(
    fixed: float, slope: float, travel: list[tuple[int, float]], limit: float, factor: float
) -> None:
    points = [(batch, (fixed + slope * batch) * (1 + noise)) for batch, noise in travel]
    memory = learned(*points, limit_mib=limit)
    bound = memory.greatest_batch
    assume(bound is not None)
    assert bound is not None
    more = replace(memory, limit_mib=int(memory.limit_mib * factor)).greatest_batch
    assert more is not None
    assert more >= bound
    heavier = replace(memory, high_mib=int(memory.high_mib * factor)).greatest_batch
    assert heavier is not None
    assert heavier <= bound
    assert bound >= memory.low_batch


NUMBERS = st.integers() | st.integers(-5, 300)

FIGURES = st.none() | st.floats() | st.floats(0, 2**36)


@given(
    st.builds(
        MemoryUse,
        limit_mib=NUMBERS,
        low_batch=NUMBERS,
        low_mib=NUMBERS,
        high_batch=NUMBERS,
        high_mib=NUMBERS,
    ),
    NUMBERS,
    FIGURES,
    FIGURES,
)
def test_nonsense_has_an_answer(memory: MemoryUse, batch: int, peak: float | None, limit: float | None) -> None:
    for known in (memory, measured(memory, batch, peak, limit), failed(memory, batch)):
        bound = known.greatest_batch
        assert bound is None or bound >= known.low_batch >= 1
        growth = known.greatest_growth
        assert growth is None or growth >= known.low_batch >= 1
        assert fitting_batch(known, batch) < max(batch, 1)
