"""Checkpoints take one copy of the state at most, and those that are damaged, in whatever way, are passed over."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from torch import nn

from heterotrain.state import checkpoint
from heterotrain.state.checkpoint import CheckpointError, StoreError
from heterotrain.state.state_copy import StateCopy
from trainer.gang import REPOSITORY


def copied(state: dict[str, Any], later: list[torch.Tensor]) -> dict[str, Any]:
    copy = StateCopy(state, later)
    copy.begin()
    copy.fill()
    return copy.state


def test_copies_are_apart_from_the_state_and_share_what_it_shares() -> None:
    whole = torch.arange(12.0)
    parameter = nn.Parameter(torch.ones(2, 2))
    versions = OrderedDict(weight=parameter)
    versions._metadata = {"": {"version": 1}}  # type: ignore[attr-defined]
    state: dict[str, Any] = {
        "windows": [whole[2:4], whole.view(3, 4).t()],
        "parameter": versions,
        "empty": torch.empty(0, 3),
        "sparse": torch.eye(3).to_sparse(),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "plain": {"a": [1, (2.5, None)], "names": {"x", "y"}},
        "half": torch.tensor(1.5, dtype=torch.bfloat16),
    }
    found = copied(state, [whole, parameter])
    assert found["windows"][0].untyped_storage()._cdata == found["windows"][1].untyped_storage()._cdata
    assert found["windows"][1].stride() == (1, 4)
    assert type(found["parameter"]["weight"]) is nn.Parameter
    assert found["parameter"]._metadata == versions._metadata  # type: ignore[attr-defined]
    before = {"windows": [whole[2:4].clone(), whole.view(3, 4).t().clone()]}
    whole.zero_()
    parameter.data.zero_()
    state["plain"]["a"].append(3)
    state["plain"]["names"].add("z")
    assert all(torch.equal(one, other) for one, other in zip(found["windows"], before["windows"], strict=True))
    assert found["parameter"]["weight"].sum() == 4
    assert found["plain"] == {"a": [1, (2.5, None)], "names": {"x", "y"}}
    assert found["empty"].shape == (0, 3)
    assert torch.equal(found["sparse"].to_dense(), torch.eye(3))
    assert found["conjugate"].item() == 1 - 2j
    assert found["half"].item() == 1.5
    assert checkpoint.unpack(checkpoint.pack(found)).keys() == state.keys()


def test_what_a_buffer_shares_with_a_parameter_is_copied_at_once() -> None:
    parameter = nn.Parameter(torch.ones(4))
    copy = StateCopy({"weight": parameter}, [parameter], [parameter.detach()[:2]])
    copy.begin()
    with torch.no_grad():
        parameter.zero_()
    copy.fill()
    assert copy.state["weight"].sum() == 4


STATE = 200_000_000
"""Bytes."""


def measured(script: str, *arguments: str) -> dict[str, float]:
    """What a script of this folder says that it took of memory, in bytes, in a process of its own."""
    run = subprocess.run(
        [sys.executable, str(REPOSITORY / "tests" / "trainer" / "scripts" / script), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "trainer-image")},
        timeout=240,
    )
    found: dict[str, float] = json.loads(run.stdout)
    assert found["state"] == STATE
    return found


def test_a_checkpoint_takes_one_copy_of_the_state_at_most(tmp_path: Path) -> None:
    found = measured("snapshot_memory.py", str(tmp_path))
    assert found["waiting"] < 0.1 * STATE, found
    assert 0.9 * STATE < found["beside"] < 1.1 * STATE, found
    assert found["kept after beside"] < 0.1 * STATE, found
    assert found["inherited"] < 0.1 * STATE, "processes that load data do not keep it"


def test_a_state_is_handed_over_without_a_copy_of_it() -> None:
    found = measured("transfer_memory.py")
    # Two windows at the sender and two at the taker are under way.
    assert found["in place"] < 0.5 * STATE, found
    assert 0.9 * STATE < found["into new"] < 1.5 * STATE, found


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


def test_what_whoever_leads_next_would_meet_too_is_the_fault_of_the_folder(
    tmp_path: Path, state: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, fatal in ((errno.ENOSPC, True), (errno.ESTALE, False)):
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", lambda _, number=number: (_ for _ in ()).throw(OSError(number, "no")))
            with pytest.raises(CheckpointError, match=f"to {tmp_path}: no .{errno.errorcode[number]}.") as raised:
                checkpoint.write(tmp_path, 1, state, keep=2)
        assert isinstance(raised.value, StoreError) is fatal
    (tmp_path / "step-0000000002.pt").write_bytes(b"damaged")
    with pytest.raises(StoreError, match=f"none of the checkpoints in {tmp_path} can be read"):
        checkpoint.read_newest(tmp_path)


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
    """As a leader that was stopped while it wrote, and its successor; the second is whole while the first writes. What
    a leader that was killed has left goes."""
    (tmp_path / ".step-0000000001.pt.0a1b2c3d.partial").write_bytes(b"half")
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
