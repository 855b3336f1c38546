from hypothesis import given
from hypothesis import strategies as st

from heterotrain.sampler import Position, advance, epoch_order, rank_slice, step_samples

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
