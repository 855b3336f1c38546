"""Hands a state of 200 MB over between two threads of this process, into the taker's own tensors and into new ones;
prints what memory that took, in bytes of both together."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist

from heterotrain.contract import Member, Plan
from heterotrain.groups.convening.roster import Number
from heterotrain.groups.generation import Generation
from heterotrain.groups.sockets import SocketCutter
from heterotrain.reporting import resources
from heterotrain.state.state_transfer import Place, hand_over

LARGE, SMALL = 12_000_000, 250_000
"""Numbers of four bytes: twice 48 MB alone, and 104 times 1 MB, of which sixteen travel together."""

PLAN = Plan(1, 1, "step", (Member("a", "", "", "", 1), Member("b", "", "", "", 1)))


def state_of(value: float) -> dict[str, Any]:
    """All of it touched, so that the kernel has given its memory."""
    large = [torch.full((LARGE,), value) for _ in range(2)]
    return {"model": large + [torch.full((SMALL,), value) for _ in range(104)]}


def peak_of(groups: list[Generation], source: dict[str, Any], taker: dict[str, Any], *, shared: bool) -> float:
    """The most bytes beyond those held before, while the taker takes the source's state."""

    def is_shared(_: Place) -> bool:
        return shared

    for each in [*source["model"], *taker["model"]]:
        each.sum()  # what the kernel has reclaimed meanwhile is held again
    assert resources.forget_peak()
    before = resources.memory_bytes()
    with ThreadPoolExecutor(2) as threads:
        sent = threads.submit(hand_over, source, 0, groups[0], takes=False, shared=is_shared, in_place=True)
        came = threads.submit(hand_over, taker, 0, groups[1], takes=True, shared=is_shared, in_place=True)
        sent.result()
        state = came.result()
    peak = resources.peak_memory_bytes() - before
    assert state is not None
    assert all(bool((each == 1.0).all()) for each in state["model"])
    return peak


def main() -> None:
    store = dist.HashStore()
    groups = [Generation(PLAN, Number(1, 0), rank, SocketCutter()) for rank in range(2)]
    with ThreadPoolExecutor(2) as threads:
        for made in [threads.submit(each.make_groups, store) for each in groups]:
            made.result()
    source = state_of(1.0)
    few = {"model": [torch.ones(1)]}
    peak_of(groups, few, few, shared=True)  # whatever is needed once
    found = {
        "state": sum(each.numel() * each.element_size() for each in source["model"]),
        "in place": peak_of(groups, source, state_of(0.0), shared=True),
        "into new": peak_of(groups, source, state_of(0.0), shared=False),
    }
    for each in groups:
        each.leave()
    print(json.dumps(found))


main()
