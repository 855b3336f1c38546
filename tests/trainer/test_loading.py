"""What a step gets is what it asked for, and how a sample looks depends on nothing but the sample."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
)

import heterotrain
from heterotrain.augmentation import Draw, drawing
from heterotrain.loading import Loader, Prefetch, Samples, Source
from heterotrain.sampler import Position, Share, coming_shares, epoch_order

CPU = torch.device("cpu")
LENGTH, SEED = 100, 3


class Indices(Dataset):
    """Each sample is its own index."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index


WEIGHTED = BatchSampler(WeightedRandomSampler([1.0] * LENGTH, 9), 5, drop_last=False)


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
        return coming_shares(position, sizes, 0, LENGTH, epochs=3, steps=None)

    def expected(share: Share) -> list[int]:
        return epoch_order(LENGTH, SEED, share.epoch)[share.start : share.stop].tolist()

    with Loader(Source(Indices(), collate_fn=list), SEED, CPU) as loader:
        prefetch = Prefetch(loader, LENGTH, SEED, coming)
        as_foreseen = [Share(0, 0, 6), Share(0, 16, 22)]
        replayed_and_of_another_plan = [Share(0, 16, 22), Share(0, 32, 48), Share(1, 0, 3)]
        for share in as_foreseen + replayed_and_of_another_plan:
            position = Position(0, share.epoch, share.start)
            sizes = [share.stop - share.start, 10]
            assert prefetch.batch(share) == expected(share)


def test_the_loader_is_asked_anew_only_when_steps_come_otherwise_than_foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    ask = Loader.ask
    monkeypatch.setattr(Loader, "ask", lambda loader, wanted: asked.append(wanted) or ask(loader, wanted))
    shares = list(coming_shares(Position(), [6, 10], 0, LENGTH, epochs=3, steps=None))
    with Loader(Source(Indices(), collate_fn=list), SEED, CPU) as loader:
        prefetch = Prefetch(loader, LENGTH, SEED, lambda: iter(shares))
        for share in shares:
            prefetch.batch(share)
        assert len(asked) == 1
        prefetch.batch(shares[0])
        prefetch.batch(shares[0])
        assert len(asked) == 3


def test_coming_shares_are_those_of_the_steps_and_end_with_the_job() -> None:
    shares = list(coming_shares(Position(), [4, 4, 2], 1, 25, epochs=2, steps=None))
    assert shares[:3] == [Share(0, 4, 8), Share(0, 14, 18), Share(0, 22, 24)]
    assert len(shares) == 6
    assert len(list(coming_shares(Position(), [4, 4, 2], 1, 25, epochs=2, steps=4))) == 4
    parts = coming_shares(Position(), [4, 4, 2], 1, 25, epochs=1, steps=None, most=3)
    assert list(parts)[:2] == [Share(0, 4, 6), Share(0, 6, 8)]


@pytest.mark.parametrize(("sizes", "least"), [([0, 4], 1), ([2, 2], 2)])
def test_a_worker_that_gets_no_samples_expects_none(sizes: list[int], least: int) -> None:
    # With steps of three samples and of two, and none of a single sample, rank 0 is left without.
    assert list(coming_shares(Position(), sizes, 0, 5, epochs=None, steps=10**9, least=least)) == []


def test_a_sample_looks_the_same_whoever_loads_it_and_anew_in_each_epoch() -> None:
    ((a, b, c),) = batches_of(Drawn(), Samples(0, [5, 6, 7]))
    assert batches_of(Drawn(), Samples(0, [7]), Samples(0, [5, 9]))[0] == [c]
    assert batches_of(Drawn(), Samples(0, [7]), Samples(0, [5, 9]))[1][0] == a
    ((again,),) = batches_of(Drawn(), Samples(1, [5]))
    assert len({*a, *b, *again}) == 12


def test_seeded_transforms_leave_the_global_random_states_alone() -> None:
    def states() -> list:
        return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]

    before = states()
    batches_of(Drawn(), Samples(0, [1, 2]))
    assert states() == before


def test_outside_a_session_transforms_draw_as_they_always_did() -> None:
    torch.manual_seed(0)
    first = Drawn()[5]
    assert Drawn()[5] != first
    torch.manual_seed(0)
    assert Drawn()[5][:2] == first[:2]


def test_samples_loaded_in_one_call_are_drawn_by_their_index() -> None:
    with drawing(Draw(SEED, 0, None)):
        with pytest.raises(RuntimeError, match="needs the index of the sample"):
            heterotrain.sample_generator()
        known = torch.rand((), generator=heterotrain.sample_generator(5)).item()
    assert batches_of(Drawn(), Samples(0, [5]))[0][0][0] == known


def test_a_subset_passes_each_sample_on_by_itself() -> None:
    assert (
        batches_of(Subset(Drawn(), [9, 5]), Samples(0, [0, 1]))[0]
        == batches_of(Subset(Drawn(), [9, 5]), Samples(0, [0]), Samples(0, [1]))[0]
        + batches_of(Subset(Drawn(), [9, 5]), Samples(0, [1]))[0]
    )


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
            loader.ask([Samples(0, [0])])
            return next(loader)[0]

    assert first("a") == first("a") != first("b")
    assert first("a") != first("a", seed=4)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (Stream(), TypeError, "no length and no index"),
        (DataLoader(Stream(), batch_size=2), TypeError, "no length and no index"),
        ([], ValueError, "the data set is empty"),
        (DataLoader(Indices(), sampler=WeightedRandomSampler([1.0] * LENGTH, 9)), ValueError, "WeightedRandomSampler"),
        (DataLoader(Indices(), sampler=RandomSampler(Indices(), replacement=True)), ValueError, "sampler of its own"),
        (DataLoader(Indices(), batch_size=None), ValueError, "makes no batches"),
        (DataLoader(Indices(), batch_sampler=[[1, 2]]), ValueError, "batch_sampler of its own"),
        (DataLoader(Indices(), batch_sampler=WEIGHTED), ValueError, "WeightedRandomSampler"),
    ],
)
def test_data_that_cannot_be_divided_is_refused(data: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Source.of(data)


def test_a_collate_fn_is_given_in_one_place() -> None:
    with pytest.raises(ValueError, match="collate_fn: give it to the DataLoader"):
        Source.of(DataLoader(Indices()), list)
