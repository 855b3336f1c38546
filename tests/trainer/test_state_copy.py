"""Copies of a state are apart from it, and share among themselves what it shares."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from heterotrain.state import checkpoint
from heterotrain.state.state_copy import StateCopy


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
