"""Taking guards out of the decisions: what is replaced, and that it is put back."""

from __future__ import annotations

import importlib
from inspect import Parameter, signature

import ablation
import pytest
import simulated
from ablation import Change, known, replaced
from simulated_scenarios import by_name

from heterotrain_operator.core.batching import rebalance, rollback


def test_all_that_is_listed_can_be_taken_out_of_the_decisions() -> None:
    assert set(known()) == set(ablation.WITHOUT)
    assert set(ablation.CASES) <= set(by_name())


def test_what_stands_in_for_a_function_is_called_as_that_is() -> None:
    """A call that fails shows only where somebody looks at the whole table, which takes half an hour."""
    functions = [each for changes in known().values() for each in changes if callable(each.value)]
    assert len(functions) >= 5
    for each in functions:
        original = signature(getattr(importlib.import_module(f"{ablation.CORE}.{each.module}"), each.name))
        named = {name: None for name, it in original.parameters.items() if it.kind is Parameter.KEYWORD_ONLY}
        assert callable(each.value)
        signature(each.value).bind(*([None] * (len(original.parameters) - len(named))), **named)


def test_a_guard_is_replaced_where_it_was_imported_and_put_back_even_after_an_error() -> None:
    before = rollback.reviewed
    with pytest.raises(RuntimeError), replaced(known()["rollback"]):
        assert rebalance.reviewed is rollback.reviewed is not before
        raise RuntimeError
    assert rebalance.reviewed is rollback.reviewed is before


def test_decisions_that_fail_without_a_guard_are_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise ValueError("math domain error")

    monkeypatch.setattr(simulated, "one", fails)
    assert ablation.one(("rollback", "jump 2x", 3, 0)).off
    with pytest.raises(ValueError, match="math domain"):
        ablation.one(("", "jump 2x", 3, 0))


def test_a_guard_that_is_gone_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ablation.WITHOUT, "gone", (Change("batching.rollback", "NOT_THERE", 0.0),))
    assert "gone" not in known()
