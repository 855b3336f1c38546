"""Workers whose data differ are told apart by a few samples; what is random by itself is not compared."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import heterotrain
from heterotrain import worker_metrics as table
from heterotrain.contract import TrainingConfig
from heterotrain.data import likeness
from heterotrain.data.likeness import NOT_COMPARED, chosen, described, differ
from heterotrain.data.loading import Loader
from heterotrain.data.source import Source
from trainer.gang import Gang
from trainer.story import assert_preempted, send

CPU = torch.device("cpu")
IMAGE, OTHER = torch.rand(3, 4, generator=torch.Generator().manual_seed(1)), torch.ones(3, 4)


def text(sample: object) -> str:
    return described(lambda _: sample, [0])[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((IMAGE, 3), (IMAGE, 4)),
        ((IMAGE, 3), (OTHER, 3)),
        ((1e6 * IMAGE, torch.tensor(3)), (1e6 * IMAGE, torch.tensor(4))),
        ((1e6 * IMAGE, np.int64(3)), (1e6 * IMAGE, np.int64(4))),
        ({"tokens": [5, 6], "text": "a"}, {"tokens": [5, 7], "text": "a"}),
        ({"text": "a"}, {"text": "b"}),
        (np.array([1, 2], np.uint8), np.array([1, 9], np.uint8)),
        (np.array(["a"]), np.array(["b"])),
        (IMAGE, IMAGE.double()),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (SimpleNamespace(x=IMAGE), SimpleNamespace(x=OTHER)),
        (IMAGE.to_sparse(), OTHER.to_sparse()),
    ],
)
@pytest.mark.parametrize("exact", [True, False])
def test_samples_that_differ_are_told_apart(one: object, other: object, exact: bool) -> None:
    assert differ(text(one), text(other), exact=exact)
    assert not differ(text(one), text(one), exact=exact)


def test_machines_of_different_kinds_may_round_differently() -> None:
    rounded = (IMAGE * (1 + 1e-6), 3)
    assert differ(text((IMAGE, 3)), text(rounded), exact=True)
    assert not differ(text((IMAGE, 3)), text(rounded), exact=False)


def test_what_has_no_numbers_or_refers_to_itself_can_be_described() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for sample in (
        None,
        object(),
        endless,
        {1, 2},
        lambda: 0,
        range(10**9),
        IMAGE.to(torch.complex64),
        b"a",
        float("nan"),
    ):
        assert not differ(text(sample), text(sample), exact=True)


class Read(Dataset[torch.Tensor]):
    """What reads a sample is given."""

    def __init__(self, read: Callable[[int], Any]) -> None:
        self.read = read

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Any:
        return self.read(index)


def augmented(index: int) -> torch.Tensor:
    global_state = torch.rand(2) + random.random() + float(np.random.rand())
    return global_state + torch.rand(2, generator=heterotrain.sample_generator()) + index


def described_by(read: Callable[[int], Any], num_workers: int, seed: int = 3) -> dict[int, str]:
    source = Source(Read(read), num_workers=num_workers, collate_fn=lambda _: pytest.fail("this is no batch"))
    with Loader(source, 3, CPU, uid=f"w-{num_workers}") as loader:
        return loader.describe(chosen(50, seed))


def test_augmentation_draws_the_same_on_all_workers_and_data_with_numbers_of_their_own_are_not_compared() -> None:
    torch.manual_seed(1)
    here = described_by(augmented, 0)
    torch.manual_seed(2)
    assert described_by(augmented, 1) == here
    assert len(here) == 4 and NOT_COMPARED not in here.values()
    assert chosen(50, 3) != chosen(50, 4)
    own = np.random.default_rng()
    assert set(described_by(lambda _: own.random() < 0.5, 0, seed=5).values()) <= {
        NOT_COMPARED,
        text(True),
        text(False),
    }
    assert set(described_by(lambda _: own.random(), 1).values()) == {NOT_COMPARED}
    assert set(described_by(lambda index: [][index], 0).values()) == {NOT_COMPARED}, (
        "the loop raises it, if it comes to it"
    )
    assert not differ(NOT_COMPARED, text(1), exact=True)


def test_samples_that_take_long_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def slowly(index: int) -> int:
        read.append(index)
        return index

    monkeypatch.setattr(likeness.time, "monotonic", lambda: 3.0 * len(read))
    assert described(slowly, [4, 5, 6]) == [NOT_COMPARED] * 3
    assert read == [4, 5], "a loader's timeout is for batches of few samples, perhaps"


@pytest.mark.processes
def test_a_worker_with_other_data_is_refused_by_name_and_sample_at_the_start_and_as_a_joiner(tmp_path: Path) -> None:
    command = ["tests/trainer/scripts/loaders.py", "--workers", "1", "--out", str(tmp_path)]
    config = TrainingConfig(epochs=1000, seed=7)
    with Gang(tmp_path / "one", command, (32, 32), config) as gang:
        gang.await_step(3)
        gang.start(0, command=[*command, "--darker", "train"])
        gang.change({0: 24, 1: 24, 2: 16}, continues=1)
        assert gang.wait_for(2) == 1
        message = gang.ending(2).message
        assert "w-2 has another sample" in message and "compare_samples=False" in message
        step = gang.metric(0, table.STEP.name)
        assert step is not None
        gang.await_step(int(step) + 5)
        send(gang, signal.SIGTERM, 0, 1)
        assert_preempted(gang, 0, 1)
    command += ["--darker", "test"]
    with Gang(tmp_path / "two", command, (32, 32), config, environment={"DARKER": "w-1"}) as gang:
        assert gang.wait_for(0) == gang.wait_for(1) == 1
        for number in range(2):
            assert "w-1 has another sample" in gang.ending(number).message
            assert "of the evaluation than w-0" in gang.ending(number).message
