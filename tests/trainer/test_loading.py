"""What a step gets is what it asked for, and how a sample looks depends on nothing but the sample."""

import random
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

import heterotrain
from heterotrain.data.augmentation import Draw, drawing
from heterotrain.data.loading import Loader, Prefetch, Samples, Source
from heterotrain.data.order import Order
from heterotrain.data.sampler import Position, Rules, Share, coming_shares, epoch_order

CPU = torch.device("cpu")
LENGTH, SEED = 100, 3


class Indices(Dataset):
    """Each sample is its own index."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index


SHARDED: DistributedSampler[int] = DistributedSampler(Indices(), num_replicas=2, rank=0)


class Drawn(Indices):
    """Each sample is a random number; `seeded` ones are drawn from the global random states."""

    def __init__(self) -> None:
        self.seeded = heterotrain.seeded(lambda: (torch.rand(()).item(), random.random(), np.random.rand()))

    def __getitem__(self, index: int) -> tuple[float, ...]:
        return (torch.rand((), generator=heterotrain.sample_generator()).item(), *self.seeded())


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def batches_of(dataset: Dataset, *wanted: Samples) -> list:
    with Loader(Source(dataset, collate_fn=list), SEED, CPU) as loader:
        loader.ask(wanted)
        return list(loader)


class Unseeded(Indices):
    """Draws from the global random state."""

    def __getitem__(self, index: int) -> float:
        return float(torch.rand(()))


def test_a_share_is_given_out_only_if_it_is_the_one_asked_for() -> None:
    position, sizes = Position(), [6, 10]

    def coming() -> Iterator[Share]:
        return coming_shares(Rules(LENGTH, epochs=3), position, sizes, 0)

    def expected(share: Share) -> list[int]:
        return epoch_order(LENGTH, SEED, share.epoch)[share.start : share.stop].tolist()

    with Loader(Source(Indices(), collate_fn=list), SEED, CPU) as loader:
        prefetch = Prefetch(loader, Order(LENGTH, SEED), coming)
        as_foreseen = [Share(0, 0, 6), Share(0, 16, 22)]
        replayed_and_of_another_plan = [Share(0, 16, 22), Share(0, 32, 48), Share(1, 0, 3)]
        for share in as_foreseen + replayed_and_of_another_plan:
            position = Position(0, share.epoch, share.start)
            sizes = [share.stop - share.start, 10]
            assert prefetch.batch(share) == expected(share)


def test_coming_shares_are_those_of_the_steps_and_end_with_the_job() -> None:
    shares = list(coming_shares(Rules(25, epochs=2), Position(), [4, 4, 2], 1))
    assert shares[:3] == [Share(0, 4, 8), Share(0, 14, 18), Share(0, 22, 24)]
    assert len(shares) == 6
    assert len(list(coming_shares(Rules(25, epochs=2, steps=4), Position(), [4, 4, 2], 1))) == 4
    parts = coming_shares(Rules(25, epochs=1), Position(), [4, 4, 2], 1, most=3)
    assert list(parts)[:2] == [Share(0, 4, 6), Share(0, 6, 8)]


@pytest.mark.parametrize(("sizes", "least"), [([0, 4], 1), ([2, 2], 2)])
def test_a_worker_that_gets_no_samples_expects_none(sizes: list[int], least: int) -> None:
    """With steps of three samples and of two, and none of a single sample, rank 0 is left without."""
    assert list(coming_shares(Rules(5, least, steps=10**9), Position(), sizes, 0)) == []


def test_a_sample_looks_the_same_on_every_worker_and_different_in_each_epoch() -> None:
    ((a, b, c),) = batches_of(Drawn(), Samples(((0, [5, 6, 7]),)))
    assert batches_of(Drawn(), Samples(((0, [7]),)), Samples(((0, [5, 9]),)))[0] == [c]
    assert batches_of(Drawn(), Samples(((0, [7]),)), Samples(((0, [5, 9]),)))[1][0] == a
    ((again,),) = batches_of(Drawn(), Samples(((1, [5]),)))
    assert len({*a, *b, *again}) == 12


def test_seeded_transforms_leave_the_global_random_states_alone() -> None:
    def states() -> list:
        return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]

    before = states()
    batches_of(Drawn(), Samples(((0, [1, 2]),)))
    assert states() == before


def test_samples_loaded_in_one_call_are_drawn_by_their_index() -> None:
    with drawing(Draw(SEED, 0)):
        with pytest.raises(RuntimeError, match="needs the index of the sample"):
            heterotrain.sample_generator()
        known = torch.rand((), generator=heterotrain.sample_generator(5)).item()
    assert batches_of(Drawn(), Samples(((0, [5]),)))[0][0][0] == known


def test_settings_of_a_loader_are_taken_over_but_for_batch_size_and_order() -> None:
    loader = DataLoader(Indices(), batch_size=7, sampler=RandomSampler(Indices()), collate_fn=sum, timeout=0)
    source = Source.of(loader)
    assert (source.length, source.batch_size, source.collate_fn) == (LENGTH, 7, sum)
    batches = BatchSampler(RandomSampler(Indices()), 5, drop_last=False)
    assert Source.of(DataLoader(Indices(), batch_sampler=batches)).batch_size == 5


def test_loading_processes_of_workers_draw_differently_and_again_the_same_after_the_same_seed() -> None:
    def first(uid: str, seed: int = 3) -> float:
        torch.manual_seed(seed)
        with Loader(Source(Unseeded(), num_workers=1, collate_fn=list), SEED, CPU, uid) as loader:
            loader.ask([Samples(((0, [0]),))])
            return next(loader)[0]

    assert first("a") == first("a") != first("b")
    assert first("a") != first("a", seed=4)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (Stream(), TypeError, "no length and no index"),
        (DataLoader(Stream(), batch_size=2), TypeError, "no length and no index"),
        ([], ValueError, "the data set is empty"),
        (DataLoader(Indices(), sampler=SHARDED), ValueError, "DistributedSampler"),
        (DataLoader(Indices(), batch_sampler=BatchSampler(SHARDED, 5, False)), ValueError, "DistributedSampler"),
        (DataLoader(Indices(), batch_size=None), ValueError, "makes no batches"),
    ],
)
def test_data_that_cannot_be_divided_is_refused(data: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Source.of(data)


class Buckets:
    """A batch sampler that keeps neighbours together, and shuffles its batches with Python's random numbers."""

    def __iter__(self) -> Iterator[list[int]]:
        batches = [list(range(start, min(start + 6, LENGTH))) for start in range(0, LENGTH, 6)]
        random.shuffle(batches)
        yield from batches

    def __len__(self) -> int:
        return 17


@pytest.mark.parametrize(
    ("loader", "length"),
    [
        (DataLoader(Indices(), sampler=WeightedRandomSampler([0.0, *[1.0] * (LENGTH - 1)], 30)), 30),
        (DataLoader(Indices(), sampler=RandomSampler(Indices(), replacement=True)), LENGTH),
        (DataLoader(Indices(), sampler=SubsetRandomSampler(range(10))), 10),
        (DataLoader(Indices(), batch_sampler=Buckets()), LENGTH),
        (DataLoader(Indices(), batch_sampler=[[1, 2], [0]]), 3),
    ],
)
def test_a_sampler_is_asked_for_the_whole_order_under_the_numbers_of_seed_and_epoch(
    loader: DataLoader[int], length: int
) -> None:
    source = Source.of(loader)
    one, other = (Order(source.length, SEED, source.sampler) for _ in range(2))
    random.seed(5)
    assert one.of(3).tolist() == other.of(3).tolist()
    assert one.length == len(one.of(7)) == length
    assert one.checksum(2) == other.checksum(2) > 0
    if not isinstance(source.sampler, list):
        assert one.of(3).tolist() != one.of(4).tolist()
        assert one.of(3).tolist() != Order(source.length, SEED + 1, source.sampler).of(3).tolist()
    if isinstance(source.sampler, Buckets):
        assert all(
            abs(a - b) == 1 for part in one.of(3).split(6)[:5] for a, b in pairwise(part.tolist()) if a // 6 == b // 6
        )


class Moody:
    """Its own random numbers go on from one epoch to the next."""

    def __init__(self) -> None:
        self.numbers = random.Random(3)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.sample(range(LENGTH), 10))


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (Moody(), "Moody: its order is another each time"),
        ([[LENGTH]], "beyond the data set's 100 samples"),
        ([], "yields no samples"),
        (["a"], "does not yield indices"),
    ],
)
def test_an_order_that_workers_would_not_agree_on_is_refused(sampler: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Order(LENGTH, SEED, sampler)


class Growing:
    """A sampler of more samples in each epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(5 + self.epoch))


def test_all_epochs_have_as_many_samples() -> None:
    order = Order(LENGTH, SEED, Growing())
    with pytest.raises(ValueError, match="has 8 samples in epoch 3, and had 5 in the first"):
        order.of(3)
