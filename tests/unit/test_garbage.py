"""Cycles of garbage are searched seldom, and as before once that is over."""

from __future__ import annotations

import gc

import pytest

from heterotrain_operator.garbage import ALLOCATIONS, seldom_collected


def test_garbage_is_searched_seldom_only_as_long_as_it_is_asked_for() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), seldom_collected():
        assert gc.get_threshold() == (ALLOCATIONS, *before[1:])
        raise KeyError
    assert gc.get_threshold() == before
