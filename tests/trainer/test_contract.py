import json
import subprocess
import sys
from dataclasses import replace

import pytest

from heterotrain.contract import (
    MAX_METRICS,
    Evaluated,
    EvaluationRecord,
    Member,
    Plan,
    PlanError,
    StepRecord,
    Termination,
    TrainingConfig,
    parse_plan,
)
from trainer.gang import REPOSITORY

PLAN = Plan(
    7,
    2,
    "step",
    (Member("a", "u1", "10.0.0.7:29500", "cpu", 96), Member("b", "u2", "10.0.0.8:29500", "gpu", 160)),
)


def test_a_plan_and_a_config_survive_their_documents() -> None:
    assert parse_plan(PLAN.to_json()) == PLAN
    assert (PLAN.global_batch_size, PLAN.leader) == (256, "a")
    limited = replace(PLAN, members=(PLAN.members[0], replace(PLAN.members[1], micro_batch_size=64)))
    assert parse_plan(limited.to_json()) == limited
    assert limited.to_json().count("microBatchSize") == 1, "left out where there is no limit"
    config = TrainingConfig(epochs=3, seed=9, checkpoint_path="/checkpoints", target_value=0.1, last_step="Drop")
    assert TrainingConfig.from_json(config.to_json()) == config


MEMBER = json.loads(PLAN.to_json())["members"][0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"members": [MEMBER | {"batchSize": -1}]}, "negative"),
        ({"members": [MEMBER | {"microBatchSize": -1}]}, "negative"),
        ({"members": [MEMBER, MEMBER]}, "twice"),
        ({"schema": 2}, "schema: 2 is newer"),
        ({"version": "7"}, "version: expected int"),
        ({"version": True}, "version: expected int"),
        ({"applyAt": "never"}, "applyAt"),
        ({"leader": "b"}, "leader: 'b' is not the first member"),
        ({"globalBatchSize": 255}, "globalBatchSize: 255, but the members' batches add up to 256"),
        ({"members": []}, "at least one member"),
        ({"members": [{"name": "a"}]}, r"members\[0\]"),
        ({"members": ["a"]}, r"members\[0\]: expected an object"),
    ],
)
def test_a_plan_that_must_not_be_followed_says_why(change: dict[str, object], reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        parse_plan(json.dumps(json.loads(PLAN.to_json()) | change))


def test_config_of_a_newer_operator_is_read_without_what_is_not_known() -> None:
    config = TrainingConfig(epochs=3, seed=9)
    newer = json.dumps(json.loads(config.to_json()) | {"colour": {"red": 1}, "essential": ["epochs"]})
    assert TrainingConfig.from_json(newer) == config
    assert TrainingConfig.unknown_in(newer) == ("'colour'",)


def test_what_a_newer_operator_calls_essential_must_be_known() -> None:
    known = json.loads(TrainingConfig().to_json())
    newer = json.dumps(known | {"colour": "red", "essential": [*known, "colour"]})
    with pytest.raises(ValueError, match=r"does not know: 'colour'; use an image of the operator's version"):
        TrainingConfig.from_json(newer)


def test_rates_that_follow_the_batch_are_essential_and_else_not_sent() -> None:
    config = TrainingConfig(epochs=3, learning_rate_scaling="Sqrt", learning_rate_own_batch=64)
    sent = json.loads(config.to_json())
    assert sent["essential"] == ["learning_rate_scaling", "learning_rate_own_batch"] == list(sent)[-3:-1]
    assert TrainingConfig.from_json(config.to_json()) == config
    assert not any("learning_rate" in name or name == "essential" for name in json.loads(TrainingConfig().to_json()))


@pytest.mark.parametrize(
    "change", [{"epochs": 10**400}, {"smoothing": "0.2"}, {"endless": 1}, {"device": None}, {"essential": 3}]
)
def test_config_with_a_malformed_field_is_refused_by_its_name(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"^HETEROTRAIN_CONFIG: {next(iter(change))}: expected"):
        TrainingConfig.from_json(json.dumps(json.loads(TrainingConfig().to_json()) | change))


def test_last_words_of_any_kind_are_understood() -> None:
    words = Termination(finished=True, step=12, message="done")
    assert Termination.from_text(words.to_json()) == words
    led = Termination(finished=True, step=12, leader=False)
    assert Termination.from_text(led.to_json()) == led
    assert words.leader is None
    asked = Termination(finished=False, step=3, asked_to_stop=True)
    assert Termination.from_text(asked.to_json()) == asked
    evaluated = Termination(finished=True, step=9, evaluated=Evaluated(9, (("accuracy", 0.5),)))
    assert Termination.from_text(evaluated.to_json()) == evaluated
    hungry = Termination(finished=False, message="CUDA out of memory", out_of_memory=True)
    assert Termination.from_text(hungry.to_json()) == hungry
    assert Termination.from_text("Killed\n") == Termination(finished=False, message="Killed")
    assert len(Termination(finished=False, message="x" * 9000).to_json().encode()) <= 4096


def test_a_torn_line_is_no_step_record() -> None:
    record = StepRecord(1.0, 2, 0, 3, 4, 4, 0.1, 0.2, None, "")
    assert StepRecord.from_json(record.to_json()) == record
    for line in (record.to_json()[:-5], '{"step": 1}'):
        with pytest.raises(ValueError):
            StepRecord.from_json(line)


def test_records_of_a_newer_trainer_are_read_without_what_is_not_known() -> None:
    step = StepRecord(1.0, 2, 0, 3, 4, 4, 0.1, 0.2, float("nan"), "")
    newer = StepRecord.from_json(step.to_json()[:-1] + ', "joules": [1]}')
    assert repr(newer) == repr(step)
    evaluation = EvaluationRecord(1.0, 2, {"accuracy": 0.5})
    assert EvaluationRecord.from_json(evaluation.to_json()[:-1] + ', "joules": [1]}') == evaluation
    for line, other in ((step.to_json(), EvaluationRecord), (evaluation.to_json(), StepRecord)):
        with pytest.raises(ValueError):
            other.from_json(line)


def test_the_contract_imports_without_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; "
        "import heterotrain.contract, heterotrain.worker_metrics, heterotrain; print(heterotrain.__all__)"
    )
    path = str(REPOSITORY / "trainer-image")
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": path})


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"step": 1},
        {"step": -1, "metrics": {"a": 1}},
        {"step": True, "metrics": {"a": 1}},
        {"step": 10**400, "metrics": {"a": 1}},
        {"step": 1, "metrics": {"a": "1", "": 1, "b" * 64: 1, "c": 10**400, "d": True, "e\n": 1, "f": float("nan")}},
    ],
)
def test_evaluation_that_cannot_be_one_is_not_believed(document: object) -> None:
    assert Evaluated.from_document(document) is None


def test_evaluation_has_bounds() -> None:
    found = Evaluated.of(3, [(f"metric-{number}", number) for number in range(1000)])
    assert found is not None
    assert len(found.metrics) == MAX_METRICS
    longest = Evaluated.of(2**53, [("\u2260" * 62 + chr(65 + number), -1.7976931348623157e308) for number in range(16)])
    words = Termination(finished=False, step=2**53, message="x" * 9000, evaluated=longest)
    assert len(words.to_json()) <= 4096
