"""What a step gets is what it asked for, and how a sample looks depends on nothing but the sample."""

import os
import random
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

import heterotrain
from heterotrain.data.augmentation import Draw, drawing
from heterotrain.data.bijection import keyed_order
from heterotrain.data.loading import Loader, Prefetch, Samples
from heterotrain.data.order import KEYED, LARGE, PERMUTATION, Order
from heterotrain.data.sampler import Position, Rules, Share, coming_shares, epoch_order
from heterotrain.data.source import Source

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


class Opened(Indices):
    """A data set of which a loading process opens a file."""

    def __init__(self) -> None:
        self.handle, self.path = "", "a path"

    def __getitem__(self, index: int) -> str:
        mine = get_worker_info()
        assert mine is not None and (mine.dataset is self or isinstance(mine.dataset, (Subset, ConcatDataset)))
        return f"{index} {self.handle} {hasattr(self, 'path')}"


def open_file(kind: type[Dataset], _process: int) -> None:
    info = get_worker_info()
    assert info is not None and type(info.dataset) is kind
    whole = info.dataset.datasets[0] if isinstance(info.dataset, ConcatDataset) else info.dataset
    opened = whole.dataset if isinstance(whole, Subset) else whole
    assert isinstance(opened, Opened)
    opened.handle = "open"
    del opened.path


@pytest.mark.parametrize(
    ("method", "wrap"),
    [
        ("spawn", lambda data: data),
        ("fork", lambda data: Subset(data, [7, 8])),
        ("fork", lambda data: ConcatDataset([data])),
    ],
)
def test_a_loading_process_has_the_very_data_set_of_the_script(method: str, wrap: Callable[[Opened], Dataset]) -> None:
    dataset = wrap(Opened())
    init = partial(open_file, type(dataset))
    loader = DataLoader(dataset, num_workers=1, worker_init_fn=init, multiprocessing_context=method, collate_fn=list)
    with Loader(Source.of(loader), SEED, CPU) as loading:
        loading.ask([Samples(((0, [0]), (1, [1])))])
        assert [each.split()[1:] for each in next(loading)] == [["open", "False"]] * 2


class Plus(Subset[int]):
    """A part of a data set, changed on its way."""

    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        return 1000 + int(self.dataset[self.indices[index]])

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


def test_a_subset_that_loads_in_its_own_way_is_asked_itself() -> None:
    assert batches_of(Plus(Indices(), [7, 8]), Samples(((0, [0]), (1, [1])))) == [[1007, 1008]]


class Scaled(DataLoader[int]):
    def __iter__(self) -> Iterator[int]:  # type: ignore[override]
        return (2 * each for each in super().__iter__())


class Prefetching(DataLoader[int]):
    def _get_iterator(self) -> Iterator[int]:  # type: ignore[override]
        return iter([1])


class Named(DataLoader[int]):
    """A loader with settings of its own; how it iterates is torch's."""

    def __init__(self) -> None:
        super().__init__(Indices(), batch_size=5)
        self.collate_fn = sum

    def __len__(self) -> int:
        return 3


class Wrapping:
    """What gives batches and is no DataLoader."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize("loader", [Scaled(Indices()), Prefetching(Indices()), Wrapping()])
def test_a_loader_that_iterates_in_its_own_way_is_refused_and_one_with_other_settings_taken(loader: object) -> None:
    with pytest.raises(TypeError, match=rf"{type(loader).__name__} is .*plain DataLoader"):
        Source.of(loader)  # type: ignore[arg-type]
    source = Source.of(Named())
    assert (source.length, source.batch_size, source.collate_fn) == (LENGTH, 5, sum)


def test_loading_processes_of_workers_draw_differently_and_again_the_same_after_the_same_seed() -> None:
    def first(uid: str, seed: int = 3) -> float:
        torch.manual_seed(seed)
        with Loader(Source(Unseeded(), num_workers=1, collate_fn=list), SEED, CPU, uid) as loader:
            loader.ask([Samples(((0, [0]),))])
            return next(loader)[0]

    assert first("a") == first("a") != first("b")
    assert first("a") != first("a", seed=4)


class Groups(Dataset[int]):
    """Who loads a sample, by its process group."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        return os.getpgid(0)


def test_a_signal_to_a_workers_process_group_does_not_end_its_loading_processes() -> None:
    """They load what a worker needs that leaves in order."""
    with Loader(Source(Groups(), num_workers=1, collate_fn=list), SEED, CPU) as loader:
        loader.ask([Samples(((0, [0]),))])
        assert next(loader) != [os.getpgid(0)]


def small_shared_memory(_: int) -> None:
    """A limit on the size of files stands in for a small /dev/shm."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


def test_where_shared_memory_is_too_small_for_loading_processes_it_is_said_what_to_do() -> None:
    source = Source([torch.ones(100_000)], num_workers=1, worker_init_fn=small_shared_memory)
    with Loader(source, SEED, CPU) as loader:
        loader.ask([Samples(((0, [0]),))])
        with pytest.raises(RuntimeError, match=r"hand batches over in /dev/shm.*num_workers"):
            next(loader)
    with Loader(replace(source, num_workers=0, worker_init_fn=None), SEED, CPU) as loader:
        loader.ask([Samples(((0, [0]),))])
        assert len(next(loader)) == 1


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
        (DataLoader(Indices(), batch_sampler=[torch.tensor([1, 2]), (0,)]), 3),
        (DataLoader(Indices(), sampler=SequentialSampler(range(10))), 10),
        (DataLoader(Indices(), sampler=RandomSampler(range(10))), 10),
    ],
)
def test_a_sampler_is_asked_for_the_whole_order_under_the_numbers_of_seed_and_epoch(
    loader: DataLoader[int], length: int
) -> None:
    source = Source.of(loader)
    one, other = (Order(source.length, SEED, source.sampler, in_batches=source.in_batches) for _ in range(2))
    random.seed(5)
    assert one.of(3).tolist() == other.of(3).tolist()
    assert one.length == len(one.of(7)) == length
    assert one.checksum(2) == other.checksum(2) > 0
    if not isinstance(source.sampler, (list, SequentialSampler)):
        assert one.of(3).tolist() != one.of(4).tolist()
        reseeded = Order(source.length, SEED + 1, source.sampler, in_batches=source.in_batches)
        assert one.of(3).tolist() != reseeded.of(3).tolist()
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


class Sized:
    """A sampler of any entries, that says that it has so many."""

    def __init__(self, entries: Callable[[], Iterator[object]], length: int) -> None:
        self.entries = entries
        self.length = length

    def __iter__(self) -> Iterator[object]:
        return self.entries()

    def __len__(self) -> int:
        return self.length


class Unsized:
    """A sampler without a length; and without an end, unless it is given one."""

    def __init__(self, entries: Callable[[], Iterator[int]] = lambda: cycle(range(LENGTH))) -> None:
        self.entries = entries

    def __iter__(self) -> Iterator[int]:
        return self.entries()


@pytest.mark.parametrize(
    ("sampler", "in_batches", "message"),
    [
        (Moody(), False, "Moody: its order is another each time"),
        ([[LENGTH]], True, "beyond the data set's 100 samples"),
        ([], False, "yields no samples"),
        (["a"], False, "does not yield indices"),
        ([(1, 2)], False, "does not yield indices"),
        ([torch.tensor([1.5])], True, "does not yield indices"),
        (Sized(lambda: cycle([5]), 130), False, r"Sized: .* says 130 by its __len__\(\), and has more than 1600"),
        (Sized(lambda: cycle([[5] * 8]), 4), True, r"Sized: .* says 4 by its __len__\(\), and has more than 1600"),
        (Unsized(), False, r"Unsized: seems never to end: it has no __len__\(\)"),
        (BatchSampler(Unsized(), 8, False), True, "BatchSampler: seems never to end"),
        (Sized(lambda: cycle([5]), sys.maxsize), False, "Sized: seems never to end"),
    ],
)
def test_an_order_that_workers_would_not_agree_on_or_that_never_ends_is_refused(
    sampler: object, in_batches: bool, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Order(LENGTH, SEED, sampler, in_batches=in_batches)


@pytest.mark.parametrize("declared", [1, 1000])
def test_a_sampler_that_ends_may_be_wrong_about_its_length(declared: int) -> None:
    assert Order(LENGTH, SEED, Sized(lambda: iter(range(30)), declared)).length == 30
    assert Order(LENGTH, SEED, Sized(lambda: iter([*range(LENGTH)] * 3), declared)).length == 3 * LENGTH


def test_a_sampler_without_a_length_may_draw_samples_often() -> None:
    assert Order(LENGTH, SEED, Unsized(lambda: iter([*range(LENGTH)] * 3))).length == 3 * LENGTH


@given(
    length=st.integers(1, 3000),
    seed=st.integers(-(2**63), 2**64),
    epoch=st.integers(0, 2**40),
    cut=st.integers(0, 3000),
)
def test_an_order_by_index_has_every_sample_once_and_its_parts_are_those_of_the_whole(
    length: int, seed: int, epoch: int, cut: int
) -> None:
    cut = min(cut, length)
    whole = keyed_order(length, seed, epoch, 0, length)
    assert whole.sort().values.tolist() == list(range(length))
    parts = [keyed_order(length, seed, epoch, 0, cut), keyed_order(length, seed, epoch, cut, length)]
    assert torch.equal(torch.cat(parts), whole)


@given(length=st.integers(LARGE + 1, 2**62), seed=st.integers(0, 2**62), start=st.integers(0, 2**62))
def test_parts_of_the_largest_orders_have_no_sample_twice(length: int, seed: int, start: int) -> None:
    start %= length
    found = keyed_order(length, seed, 0, start, min(start + 200, length))
    assert len(found.unique()) == len(found)
    assert int(found.min()) >= 0 and int(found.max()) < length


def test_an_order_by_index_looks_drawn() -> None:
    length = 100_003
    whole, places = keyed_order(length, SEED, 1, 0, length), torch.arange(length)
    for other in (places, *(keyed_order(length, *key, 0, length) for key in [(SEED, 2), (SEED + 1, 1)]), whole.roll(1)):
        correlation = torch.corrcoef(torch.stack([whole.double(), other.double()]))[0, 1]
        assert abs(float(correlation)) * length**0.5 < 5, "a normal number, about"
        assert int((whole == other).sum()) < 10


def test_large_data_sets_have_an_order_by_index_and_that_of_an_earlier_job_if_it_is_said_so() -> None:
    assert Order(LARGE, SEED).kind == PERMUTATION
    order = Order(LARGE + 1, SEED)
    assert order.kind == KEYED
    crossing = 16384 - 50
    assert (
        order.indices(1, crossing, crossing + 100) == keyed_order(LARGE + 1, SEED, 1, crossing, crossing + 100).tolist()
    )
    assert order.indices(1, LARGE - 1, LARGE + 1) == keyed_order(LARGE + 1, SEED, 1, LARGE - 1, LARGE + 1).tolist()
    assert order.indices(1, 5, 7) == [982303, 2264088], "jobs resume in it: it is to stay as it is"
    order.kind = PERMUTATION
    assert order.indices(1, 5, 9) == epoch_order(LARGE + 1, SEED, 1)[5:9].tolist()


def test_more_samples_than_can_be_put_in_order_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 4611686018427387904 can be put in order"):
        Order(2**62 + 1, SEED)


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
