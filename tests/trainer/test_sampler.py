from hypothesis import given
from hypothesis import strategies as st

from heterotrain.sampler import Position, advance, epoch_order, micro_batches, rank_slice, step_samples

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
    position = Position()
    order = epoch_order(length, seed, 0).tolist()
    seen: list[int] = []
    while position.epoch == 0:
        batches = plans[position.step % len(plans)]
        samples = step_samples(length, position.cursor, sum(batches))
        for rank in range(len(batches)):
            start, stop = rank_slice(batches, rank, samples)
            seen += order[position.cursor + start : position.cursor + stop]
        position = advance(position, samples, length)
    assert sorted(seen) == list(range(length))
    assert position.cursor == 0


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    assert epoch_order(50, 3, 1).tolist() == epoch_order(50, 3, 1).tolist()
    assert epoch_order(50, 3, 1).tolist() != epoch_order(50, 3, 2).tolist()


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
    cursor, seen = 0, []
    while cursor < length:
        samples = step_samples(length, cursor, total, least=2)
        parts = [rank_slice(batches, rank, samples, least=2) for rank in range(len(batches))]
        assert all(stop - start != 1 for start, stop in parts)
        seen += [cursor + index for part in parts for index in range(*part)]
        cursor += samples
    assert seen == list(range(length))
