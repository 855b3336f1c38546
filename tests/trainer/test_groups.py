"""Process groups between two workers: what they leave behind, and how a state gets from one to the other."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from heterotrain.contract import Member, Plan
from heterotrain.groups import generation as generation_module
from heterotrain.groups.control import broadcast_document, packs, sum_over_ranks
from heterotrain.groups.convening.roster import Number
from heterotrain.groups.generation import Collective, CollectiveError, Generation
from heterotrain.groups.sockets import SocketCutter
from heterotrain.state import checkpoint, state_transfer
from heterotrain.state.checkpoint import CheckpointError
from heterotrain.state.state_transfer import Place, hand_over
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
    generations = [Generation(PLAN, Number(1, 0), rank, SocketCutter()) for rank in range(2)]
    at_once([lambda each=each: each.make_groups(store) for each in generations])
    yield generations[0], generations[1]
    for each in generations:
        each.leave()


def every(_: Place) -> bool:
    """Whether a tensor is the same on all workers: of these states each is."""
    return True


def in_model(path: Place) -> bool:
    """Of these states only the model's are."""
    return path[0] == "model"


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
            lambda: hand_over(own, 0, pair[0], takes=False, shared=every),
            lambda: hand_over(theirs, 0, pair[1], takes=True, shared=every),
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
            lambda: hand_over({"tensor": tensor}, 0, pair[0], takes=False, shared=every),
            lambda: hand_over({"tensor": tensor}, 0, pair[1], takes=True, shared=every),
        ]
    )
    torch.testing.assert_close(received["tensor"], tensor, rtol=0, atol=0, check_stride=False)


def collectives_of(generation: Generation, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What this worker takes part in from now on."""
    done: list[str] = []
    for name in ("broadcast", "exchange", "sum"):
        original = getattr(generation, name)

        def begin(*arguments: Any, name: str = name, original: Callable[..., Collective] = original) -> Collective:
            done.append(name)
            return original(*arguments)

        monkeypatch.setattr(generation, name, begin)
    return done


def test_many_small_tensors_take_few_collectives(
    pair: tuple[Generation, Generation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs milliseconds where many workers take part, and all stand still meanwhile."""
    parameters = {f"{kind}{layer}": torch.randn(1 << 20 if kind else 7) for layer in range(3) for kind in ("", "w")}
    buffers = {str(number): torch.randn(3, 4).t() for number in range(100)}
    state = {"model": parameters, "mine": buffers}
    empty = {kind: {name: torch.zeros_like(each) for name, each in those.items()} for kind, those in state.items()}
    done = collectives_of(pair[0], monkeypatch)
    _, came = at_once(
        [
            lambda: hand_over(state, 0, pair[0], takes=False, shared=in_model),
            lambda: hand_over(empty, 0, pair[1], takes=True, shared=in_model, in_place=True),
        ]
    )
    torch.testing.assert_close(came, state, rtol=0, atol=0, check_stride=False)
    assert done.count("exchange") == 4  # three large ones, and all small ones together
    assert done.count("broadcast") == 2  # the layout, and all that is not shared


@pytest.fixture
def gather(request: pytest.FixtureRequest) -> Iterator[list[Generation]]:
    """The groups of so many workers, which are threads of this process."""
    members = tuple(Member(f"w-{rank}", "", "", "", 1) for rank in range(request.param))
    store = dist.HashStore()
    generations = [
        Generation(Plan(1, 1, "step", members), Number(1, 0), rank, SocketCutter()) for rank in range(len(members))
    ]
    at_once([lambda each=each: each.make_groups(store) for each in generations])
    yield generations
    for each in generations:
        each.leave()


def received(generations: Sequence[Generation], source: int, own: Mapping[int, Any], lag: Collection[int]) -> list[Any]:
    """What each rank has then."""
    return at_once(
        [
            lambda rank=rank, each=each: hand_over(own[rank], source, each, takes=rank in lag, shared=in_model)
            for rank, each in enumerate(generations)
        ]
    )


def some_state() -> dict[str, Any]:
    return {
        "step": 7,
        "bytes": torch.randint(0, 256, (13,), dtype=torch.uint8),  # so that nothing behind it begins at whole words
        "model": {"weight": torch.randn(40, 9, dtype=torch.float64), "half": torch.randn(5).bfloat16()},
        "list": [torch.tensor(3), torch.empty(0, 4), torch.randn(3, 4).t()],
    }


@pytest.mark.parametrize("window", [1, 64, 1 << 20], ids=["one element", "64 bytes", "all"])
@pytest.mark.parametrize("lag", [{3}, {0}, {1, 3}, {0, 1, 2}], ids=str)
@pytest.mark.parametrize("gather", [4, 5], indirect=True, ids=["4 workers", "5 workers"])
def test_who_lags_behind_takes_the_state_of_the_others(
    gather: list[Generation], lag: set[int], window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_transfer, "WINDOW_BYTES", window)
    state, old = some_state(), {**some_state(), "step": 6}
    source = min(set(range(len(gather))) - lag)
    came = received(gather, source, {rank: old if rank in lag else state for rank in range(len(gather))}, lag)
    assert {rank for rank, each in enumerate(came) if each is not None} == lag
    for rank in lag:
        torch.testing.assert_close(came[rank], state, rtol=0, atol=0, check_stride=False)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_new_worker_takes_the_state_where_its_own_is(pair: tuple[Generation, Generation], in_place: bool) -> None:
    image = torch.randn(2, 3, 4, 4)
    state = {"model": {"alike": torch.randn(40), "last": image, "other": torch.randn(3)}, "mine": torch.randn(2)}
    last = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
    own = {"model": {"alike": torch.zeros(40), "last": last, "other": torch.zeros(3).double()}, "mine": torch.zeros(2)}
    _, came = at_once(
        [
            lambda: hand_over(state, 0, pair[0], takes=False, shared=in_model),
            lambda: hand_over(own, 0, pair[1], takes=True, shared=in_model, in_place=in_place),
        ]
    )
    torch.testing.assert_close(came, state, rtol=0, atol=0, check_stride=False)
    assert torch.equal(own["model"]["alike"], state["model"]["alike"]) is in_place
    assert not own["model"]["other"].any()
    assert not own["mine"].any()


@pytest.mark.parametrize("gather", [4], indirect=True)
def test_a_state_comes_from_workers_that_hold_the_same_one(gather: list[Generation]) -> None:
    """One that is laid out in another way, or was computed on another processor, would be another one in part."""
    state, swapped = some_state(), some_state()
    swapped["model"] = dict(reversed(swapped["model"].items()))
    came = received(gather, 2, {0: state, 1: swapped, 2: state, 3: some_state()}, {3})
    torch.testing.assert_close(came[3], state, rtol=0, atol=0, check_stride=False)


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

    def sends() -> None:
        """As `hand_over` begins, with a state that this machine does not have."""
        sum_over_ranks(torch.zeros(2, 2, dtype=torch.int64), pair[0])
        broadcast_document(checkpoint.pack(huge), 0, pair[0])

    with pytest.raises(CheckpointError, match=r"the state of rank 0 has 4294967296 bytes, expected at most 671"):
        at_once(
            [
                sends,
                lambda: hand_over({"model": torch.ones(1)}, 0, pair[1], takes=True, shared=every),
            ]
        )


MOST = 64
"""Bytes, so that tensors of 16 and more travel alone."""


def of(*sizes: int) -> list[torch.Tensor]:
    return [torch.zeros(size, dtype=torch.uint8) for size in sizes]


def packed(*sizes: int) -> list[list[int]]:
    return [[len(each) for each in pack] for pack in packs(of(*sizes), MOST)]


def test_a_pack_is_at_most_so_large() -> None:
    assert packed(*[15] * 9) == [[15] * 4, [15] * 4, [15]]


@given(st.lists(st.integers(0, 40)))
def test_every_other_tensor_travels_once(sizes: list[int]) -> None:
    assert sorted(size for pack in packed(*sizes) for size in pack) == sorted(filter(None, sizes))
