"""Taking guards out of the decisions: what is replaced, that it is put back, and what counts as a loss."""

from __future__ import annotations

import importlib
import math
from inspect import Parameter, signature
from pathlib import Path

import ablation
import pytest
import simulated
import table
from ablation import Change, Worth, constants, known, replaced, worth_of
from simulated_scenarios import by_name

from heterotrain_operator.core.batching import rebalance, rollback
from heterotrain_operator.core.batching.policies import optimal


def test_what_can_be_taken_out_is_what_the_decisions_have(monkeypatch: pytest.MonkeyPatch):
    assert "rollback" in known()
    monkeypatch.setitem(ablation.WITHOUT, "gone", (Change("batching.rollback", "NOT_THERE", 0.0),))
    assert set(known()) < set(ablation.WITHOUT)
    assert set(ablation.CASES) <= set(by_name())


def test_what_stands_in_for_a_function_is_called_as_that_is():
    """A call that fails shows only where somebody looks at the whole table, which takes half an hour."""
    functions = [each for changes in known().values() for each in changes if callable(each.value)]
    assert len(functions) >= 5
    for each in functions:
        original = signature(getattr(importlib.import_module(f"{ablation.CORE}.{each.module}"), each.name))
        named = {name: None for name, it in original.parameters.items() if it.kind is Parameter.KEYWORD_ONLY}
        assert callable(each.value)
        signature(each.value).bind(*([None] * (len(original.parameters) - len(named))), **named)


def test_a_guard_is_replaced_where_it_was_imported_and_put_back():
    before = rollback.reviewed
    with replaced(known()["rollback"]):
        assert rebalance.reviewed is rollback.reviewed is not before
        assert rebalance.reviewed(1, 2, 3) == (1, 3)
    assert rebalance.reviewed is rollback.reviewed is before


def test_what_was_replaced_is_put_back_after_an_error():
    before = optimal.LEAST_SAVING
    with pytest.raises(RuntimeError), replaced([Change("batching.policies.optimal", "LEAST_SAVING", 0.5)]):
        assert optimal.LEAST_SAVING == 0.5
        raise RuntimeError
    assert before == optimal.LEAST_SAVING


def test_every_constant_is_halved_and_doubled():
    found = constants()
    names = {name.rpartition(" x ")[0] for name in found}
    assert len(found) == 2 * len(names)
    assert "batching.rollback.HALF_LIFE" in names
    for name, changes in found.items():
        [change] = changes
        module, constant = change.module, change.name
        assert name.startswith(f"{module}.{constant}")
        with replaced(changes):
            pass
    original = rollback.HALF_LIFE
    with replaced(found["batching.rollback.HALF_LIFE x 2"]):
        assert original * 2 == rollback.HALF_LIFE


def rows(settled: float, plans: float = 0.0, off: bool = False) -> list[simulated.Row]:
    run = simulated.Run(settled, settled, plans, 2, off, 3)
    return [simulated.row_of(by_name()[case], 3, "Optimal", [run]) for case in ("jump 2x", "drift 2x")]


def worth(settled: float, plans: float = 0.0, off: bool = False) -> Worth:
    base = {(row.case, row.workers): row for row in rows(1.01)}
    return worth_of("x", base, [rows(1.01)[0], rows(settled, plans, off)[1]])


@pytest.mark.parametrize(
    ("found", "hurts"),
    [
        (worth(1.01), False),
        (worth(0.99), False),
        (worth(1.02), True),
        (worth(1.01, plans=3.0), True),
        (worth(1.01, off=True), True),
        (worth(math.nan), False),
    ],
)
def test_a_loss_anywhere_counts(found: Worth, hurts: bool):
    assert found.hurts == hurts


def test_decisions_that_fail_without_a_guard_hurt(monkeypatch: pytest.MonkeyPatch):
    def fails(_: object) -> None:
        raise ValueError("math domain error")

    monkeypatch.setattr(simulated, "one", fails)
    found = ablation.one(("rollback", False, "jump 2x", 3, 0))
    assert found.off
    assert found.settled == ablation.BROKEN
    with pytest.raises(ValueError, match="math domain"):
        ablation.one(("", False, "jump 2x", 3, 0))


def test_the_worst_scenario_is_named():
    assert worth(1.05).worst == pytest.approx(0.04)
    assert worth(1.05).worst_case == "drift 2x, 3"


def test_a_command_measures_what_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "ablation.json"
    words = ["--without", "noise gate", "--case", "affine, independent 20 %", "--workers", "3", "--seeds", "1"]
    assert ablation.main([*words, "--processes", "1", "--out", str(file)]) == 0
    said = capsys.readouterr().out
    assert "noise gate" in said
    assert "all of it simulated" in said
    page = table.rendered(table.read([file]), "ablation")
    assert "| noise gate |" in page
    assert "Simulated, 1 scenarios with 3 workers, 1 seeds each." in page
