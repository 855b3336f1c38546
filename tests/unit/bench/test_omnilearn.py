"""OmniLearn's rule is simulated beside ours, on workers whose times are those that were recorded."""

from __future__ import annotations

import omnilearn
import omnilearn_accuracy
import pytest
from bsp_setting import PAPER_CORES
from omnilearn_setting import PHASE_EPOCHS, law


@pytest.mark.parametrize("workload", PHASE_EPOCHS)
def test_times_follow_a_line_through_what_is_recorded(workload: str) -> None:
    found = law(workload)
    assert found.error < 0.15
    assert min(found.fixed, found.per_sample) > 0
    assert found.lost < min(map(min, PAPER_CORES.values())) / 32


def test_only_a_global_batch_that_is_not_fixed_grows_under_omnilearn() -> None:
    growing, fixed, ours = (
        omnilearn.play(("alexnet", policy, place, 0.02, 0))
        for policy, place in (("OmniLearn", "fig. 8"), ("OmniLearn", "HL8"), ("Optimal", "fig. 8"))
    )
    assert (growing.growth > 0.05, fixed.growth, ours.growth) == (True, 0, 0)
    assert all(12 <= int(batch) <= 96 for batch in growing.batches.split(" / "))
    assert 2 <= growing.adjustments <= 10
    assert fixed.oracle_seconds < fixed.seconds


def test_weighted_gradients_train_alike_under_any_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(omnilearn_accuracy, "MODELS", {"cnn": omnilearn_accuracy.Model(4, 2)})
    equal, unequal, plain = (
        omnilearn_accuracy.train(("cnn", level, rule, 0))
        for level, rule in ((1, "weighted"), (8, "weighted"), (8, "plain"))
    )
    one_image = 1 / 297
    assert unequal.accuracy == pytest.approx(equal.accuracy, abs=1.5 * one_image)
    assert abs(plain.accuracy - equal.accuracy) > abs(unequal.accuracy - equal.accuracy)
