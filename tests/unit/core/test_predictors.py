"""What every predictor must do, and that policies decide by nothing else than what the predictor gives."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from heterotrain_operator.api.availability import NOT_YET
from heterotrain_operator.api.spec.batching import Batching
from heterotrain_operator.core.batching.policies import POLICIES, Seat
from heterotrain_operator.core.memory.batching import Batching as BatchingMemory
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.prediction import PREDICTORS, Prediction, Predictor, predictor_of
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.split.allocation import Line

GROUP = Group("g", 1)
JOB = Job("job", (GROUP,), 128, policy="Optimal")


@pytest.fixture(params=PREDICTORS)
def predictor(request: pytest.FixtureRequest) -> Predictor:
    return PREDICTORS[request.param]


def measured(seconds: float) -> Estimate:
    return Estimate(seconds, 1e-8, 100)


def test_nothing_is_predicted_of_a_worker_of_which_nothing_is_known(predictor: Predictor) -> None:
    assert predictor.predict(BatchCost(), 64, None) is None
    assert predictor.predict(BatchCost(), 0, None) is None
    assert predictor.expected(BatchCost(), 64, 10) is None


def test_prediction_at_the_present_batch_is_what_is_measured_there(predictor: Predictor) -> None:
    known = predictor.learn(predictor.learn(BatchCost(), 64, measured(0.114)), 32, measured(0.082))
    for seconds in (0.098, 0.3):
        prediction = predictor.predict(known, 48, measured(seconds))
        assert prediction is not None
        assert prediction.line.at(48) == pytest.approx(seconds)


def test_more_samples_never_take_less_time(predictor: Predictor) -> None:
    known = predictor.learn(BatchCost(), 32, measured(0.2))
    prediction = predictor.predict(known, 64, measured(0.1))
    assert prediction is not None
    assert prediction.line.at(65) > prediction.line.at(64) > 0


def test_one_batch_size_is_no_reason_for_a_promise(predictor: Predictor) -> None:
    prediction = predictor.predict(predictor.learn(BatchCost(), 64, measured(0.1)), 64, measured(0.1))
    assert prediction is not None
    assert not prediction.is_sure


def test_plan_without_samples_or_measurements_teaches_nothing(predictor: Predictor) -> None:
    known = predictor.learn(BatchCost(), 64, measured(0.1))
    assert predictor.learn(known, 0, measured(1.0)) == known
    assert predictor.learn(known, 64, None) == known


def test_what_is_learned_is_expected_before_it_is_measured_again(predictor: Predictor) -> None:
    known = predictor.learn(predictor.learn(BatchCost(), 64, measured(0.128)), 32, measured(0.064))
    estimate = predictor.expected(known, 48, 10)
    assert estimate is not None
    assert estimate.mean_seconds == pytest.approx(0.096, rel=0.05)
    assert estimate.steps == 10
    assert estimate.relative_error > 0


def test_what_is_learned_scales_with_the_speed(predictor: Predictor) -> None:
    known = predictor.learn(predictor.learn(BatchCost(), 64, measured(0.128)), 32, measured(0.064))
    before, after = predictor.expected(known, 48, 10), predictor.expected(known.scaled(2), 48, 10)
    assert before is not None
    assert after is not None
    assert after.mean_seconds == pytest.approx(2 * before.mean_seconds)


def test_first_window_is_the_estimate(predictor: Predictor) -> None:
    assert predictor.follow(None, measured(0.1)) == (measured(0.1), False)


def test_estimate_follows_a_change_that_noise_does_not_explain(predictor: Predictor) -> None:
    estimate, jumped = predictor.follow(measured(0.1), measured(0.4))
    assert jumped
    assert estimate.mean_seconds == pytest.approx(0.4, rel=0.05)
    estimate, jumped = predictor.follow(measured(0.1), measured(0.1001))
    assert not jumped
    assert 0.1 <= estimate.mean_seconds <= 0.1001


def test_lower_cpu_limit_makes_a_step_no_quicker(predictor: Predictor) -> None:
    assert predictor.factor_of_limits(1.0, 1.0) == 1
    assert predictor.factor_of_limits(1.0, 0.5) >= 1 >= predictor.factor_of_limits(0.5, 1.0) > 0


def test_job_is_predicted_by_the_predictor_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(PREDICTORS["EMA"], summary="another")
    monkeypatch.setitem(PREDICTORS, "Other", other)
    assert predictor_of(JOB) is PREDICTORS["EMA"]
    assert predictor_of(replace(JOB, prediction="Other")) is other


def test_manifest_may_name_the_predictors_that_there_are() -> None:
    (limit,) = (each for each in NOT_YET if each.path == "spec.batching.prediction")
    named = get_args(Batching.model_fields["prediction"].annotation)
    assert {name for name in named if not limit.refuses(name)} == PREDICTORS.keys()
    assert limit.refuses("Oracle")


@pytest.mark.parametrize("is_sure", [True, False])
def test_optimal_splits_by_what_the_predictor_says_alone(*, is_sure: bool) -> None:
    lines = {"fast": Line(0.0, 0.001), "slow": Line(0.0, 0.003)}

    def seat(name: str) -> Seat:
        said = replace(PREDICTORS["EMA"], predict=lambda *_: Prediction(lines[name], is_sure))
        return Seat(name, GROUP, 64, (1, 128), Estimate(lines[name].at(64), 1e-12, 100), predictor=said)

    proposal = POLICIES["Optimal"].propose(JOB, [seat("fast"), seat("slow")], BatchingMemory())
    assert proposal.batches == (96, 32)
    assert (proposal.promise is not None) is is_sure
