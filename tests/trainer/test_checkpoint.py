"""Checkpoints that are damaged, in whatever way, are passed over: never loaded, and never another error."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from torch import nn

from heterotrain.state import checkpoint
from heterotrain.state.checkpoint import CheckpointError


@pytest.fixture
def state() -> dict[str, object]:
    model = nn.Linear(20, 20)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 20)).sum().backward()
    optimizer.step()
    return {"step": 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}


def test_a_checkpoint_with_one_flipped_bit_in_a_weight_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = torch.full((1000,), 7.0)
    checkpoint.write(tmp_path, 1, {"step": 1, "weights": weights}, keep=2)
    newest = checkpoint.write(tmp_path, 2, {"step": 2, "weights": weights}, keep=2)
    found = bytearray(newest.read_bytes())
    found[found.find(weights.numpy().tobytes()) + 2000] ^= 1
    newest.write_bytes(found)
    read = checkpoint.read_newest(tmp_path)
    assert read is not None
    assert read["step"] == 1
    assert "checkpoint of step 2 passed over" in caplog.text


def test_bytes_that_are_no_state_are_refused_whatever_is_wrong_with_them(state: dict[str, object]) -> None:
    packed = checkpoint.pack(state)
    damage = random.Random(2)
    refused = 0
    for _ in range(3000):
        data = bytearray(packed)
        for _ in range(damage.choice([1, 1, 3])):
            data[damage.randrange(1500)] = damage.randrange(256)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                checkpoint.unpack(bytes(data))
            except CheckpointError:
                refused += 1
    assert refused > 1000


def test_two_writers_of_one_step_do_not_write_into_one_file(
    tmp_path: Path, state: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a leader that was stopped while it wrote, and its successor; the second is whole while the first writes."""
    save, writers = checkpoint._save, []

    def slow(written: dict[str, Any], file: IO[bytes]) -> None:
        writers.append(file.name)
        if len(writers) == 1:
            checkpoint.write(tmp_path, 1, state, keep=2)
        save(written, file)

    monkeypatch.setattr(checkpoint, "_save", slow)
    checkpoint.write(tmp_path, 1, state, keep=2)
    assert len(set(writers)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000001.pt"]
    assert checkpoint.read_newest(tmp_path) is not None
