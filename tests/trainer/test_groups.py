"""Process groups between two workers: what they leave behind, and how a state gets from one to the other."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from heterotrain.contract import Member, Plan
from heterotrain.groups import generation as generation_module
from heterotrain.groups.control import broadcast_document
from heterotrain.groups.generation import Collective, CollectiveError, Generation
from heterotrain.groups.sockets import SocketCutter
from heterotrain.state import checkpoint
from heterotrain.state.checkpoint import CheckpointError
from heterotrain.state.state_transfer import broadcast_state
from trainer.gang import free_port

SCRIPTS = Path(__file__).parent / "scripts"
TIMES = 12
PLAN = Plan(1, 1, "step", (Member("a", "", "", "", 1), Member("b", "", "", "", 1)))
# Of one pair of groups that gloo has lost track of.
THREADS, DESCRIPTORS = 8, 12


def kept_instead(kept: list[tuple[Any, Sequence[Collective]]]) -> Any:
    class Kept:
        def keep(self, group: Any, collectives: Sequence[Collective]) -> None:
            kept.append((group, collectives))

        def release_ended(self) -> None:
            pass

    return Kept()


@pytest.fixture
def pair() -> Iterator[tuple[Generation, Generation]]:
    """The groups of two workers, which are threads of this process."""
    store = dist.HashStore()
    generations = [Generation(PLAN, 0, rank, SocketCutter()) for rank in range(2)]
    at_once([lambda each=each: each.make_groups(store) for each in generations])
    yield generations[0], generations[1]
    for each in generations:
        each.leave()


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as threads:
        return [each.result() for each in [threads.submit(call) for call in calls]]


def test_groups_that_broke_leave_neither_threads_nor_descriptors() -> None:
    command = [sys.executable, str(SCRIPTS / "break_often.py")]
    port = str(free_port())
    workers = [
        subprocess.Popen([*command, str(rank), port, str(TIMES)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [worker.communicate(timeout=120)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    for output in outputs:
        found = json.loads(output)
        first, last = found["held"][0], found["held"][-1]
        assert len(found["held"]) == TIMES
        assert last["threads"] <= first["threads"] + THREADS
        assert last["descriptors"] <= first["descriptors"] + DESCRIPTORS


def test_a_state_gets_to_another_worker_tensor_by_tensor(pair: tuple[Generation, Generation]) -> None:
    model, other = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)), nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    own = {"step": 1, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "list": [torch.tensor(3), "x"]}
    theirs = {"step": 0, "model": other.state_dict(), "optimizer": {"state": {}}, "list": [torch.tensor(0), ""]}
    sent, received = at_once(
        [
            lambda: broadcast_state(own, 0, pair[0], takes=False),
            lambda: broadcast_state(theirs, 0, pair[1], takes=True),
        ]
    )
    assert sent is None
    assert received["step"] == 1
    assert received["list"] == [torch.tensor(3), "x"]
    assert received["model"]._metadata == own["model"]._metadata  # type: ignore[attr-defined]  # torch sets it just so
    other.load_state_dict(received["model"])
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(received["optimizer"], optimizer.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1 + 2j, 3 - 4j]).conj(),
        torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        torch.ones(3).expand(2, 3),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.empty(0, 3),
        torch.ones(2, dtype=torch.bfloat16),
    ],
    ids=["conjugated", "negated", "expanded", "transposed", "empty", "bfloat16"],
)
def test_a_tensor_that_is_a_view_of_some_kind_gets_to_another_worker(
    pair: tuple[Generation, Generation], tensor: torch.Tensor
) -> None:
    _, received = at_once(
        [
            lambda: broadcast_state({"tensor": tensor}, 0, pair[0], takes=False),
            lambda: broadcast_state({"tensor": tensor}, 0, pair[1], takes=True),
        ]
    )
    torch.testing.assert_close(received["tensor"], tensor, rtol=0, atol=0, check_stride=False)


class Lost:
    """A collective that gloo has lost track of."""

    def wait(self, *_: Any) -> None:
        raise RuntimeError("Operation timed out!")

    def is_completed(self) -> bool:
        return False


class Failed:
    """A collective that failed."""

    def wait(self, *_: Any) -> None:
        raise RuntimeError("connection closed by gloo")

    def is_completed(self) -> bool:
        return True


def test_groups_with_a_collective_lost_beside_one_that_failed_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(generation_module, "_lost_track", kept_instead(kept))
    generation = Generation(PLAN, 0, 0, SocketCutter())
    generation.gradients = generation.control = group = dist.ProcessGroup(0, 2)
    lost = generation._watched(Lost())  # type: ignore[arg-type]  # in place of gloo's
    generation._watched(Failed())  # type: ignore[arg-type]  # likewise
    with pytest.raises(CollectiveError, match="connection closed by gloo"):
        lost.wait()
    generation.break_up("connection closed by gloo")
    generation.leave()
    assert [(each, lost in collectives) for each, collectives in kept] == [(group, True)] * 2


def test_a_state_far_larger_than_ones_own_is_refused(pair: tuple[Generation, Generation]) -> None:
    huge = {"model": torch.empty(1 << 30, device="meta")}
    with pytest.raises(CheckpointError, match=r"the state of rank 0 has 4294967296 bytes, expected at most 671"):
        at_once(
            [
                lambda: broadcast_document(checkpoint.pack(huge), 0, pair[0]),
                lambda: broadcast_state({"model": torch.ones(1)}, 0, pair[1], takes=True),
            ]
        )
