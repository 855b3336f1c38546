"""Whatever is found in place of a plan, last words or records, the answer is a value within bounds or a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from heterotrain.contract import (
    MAX_EVICTED,
    MAX_PLAN_BYTES,
    EvaluationRecord,
    Member,
    Plan,
    PlanError,
    Server,
    StepRecord,
    Termination,
    TrainingConfig,
    parse_plan,
)
from heterotrain.foreign import MAX_WHOLE, as_text
from hostile import spoilt_text

PLAN = Plan(
    7,
    2,
    "step",
    (Member("a", "u1", "10.0.0.7:29500", "cpu", 96), Member("b", "u2", "10.0.0.8:29500", "gpu", 160, 64)),
)
DOCUMENT = json.loads(PLAN.to_json())
UIDS = [f"u-{number}" for number in range(MAX_EVICTED)]
WORDS = json.loads(Termination(False, 7, "why", True, True, True, True).to_json())


def plan_with(change: dict[str, Any], **member: Any) -> str:
    """The plan's document with other fields, and its first member's."""
    first, *others = DOCUMENT["members"]
    document = DOCUMENT | {"members": [first | member, *others]} | change
    if "batchSize" in member:
        document["globalBatchSize"] = sum(each["batchSize"] for each in document["members"])
    return json.dumps(document)


@pytest.mark.parametrize("number", [10**400, MAX_WHOLE + 1, -1, 7.0, True, "7", None, [7], float("nan")])
@pytest.mark.parametrize("field", ["version", "generation", "globalBatchSize", "schema", "continues"])
def test_number_of_a_plan_that_is_none_or_beyond_bounds_is_refused_by_its_name(field: str, number: object) -> None:
    with pytest.raises(PlanError, match=f"^{field}: "):
        parse_plan(plan_with({field: number}))


@pytest.mark.parametrize("number", [10**400, MAX_WHOLE + 1, -1, True, "7"])
@pytest.mark.parametrize("field", ["batchSize", "microBatchSize"])
def test_number_of_a_member_that_is_none_or_beyond_bounds_is_refused_by_its_place(field: str, number: object) -> None:
    document = json.loads(plan_with({}))
    document["members"][1][field] = number
    with pytest.raises(PlanError, match=rf"^members\[1\]\.{field}: "):
        parse_plan(json.dumps(document))


@pytest.mark.parametrize("field", ["name", "uid", "address", "group"])
@pytest.mark.parametrize("text", ["\ud800", "x" * 254, 7, "a\x1b[2J", "a\u202eb"])
def test_text_of_a_member_that_cannot_be_exported_is_refused(field: str, text: object) -> None:
    with pytest.raises(PlanError, match=rf"^members\[0\]\.{field}: "):
        parse_plan(plan_with({}, **{field: text}))


def test_plan_longer_than_a_config_map_holds_is_refused() -> None:
    with pytest.raises(PlanError, match=f"at most {MAX_PLAN_BYTES} are read"):
        parse_plan(plan_with({"more": "x" * MAX_PLAN_BYTES}))


@given(spoilt_text(DOCUMENT))
def test_any_plan_is_within_bounds_or_refused(text: str) -> None:
    try:
        plan = parse_plan(text)
    except PlanError as error:
        assert len(str(error).encode()) < 1000
        return
    numbers = [plan.version, plan.generation, plan.global_batch_size, *plan.batch_sizes]
    assert all(type(number) is int and 0 <= number <= MAX_WHOLE for number in numbers)
    assert parse_plan(plan.to_json().encode()) == plan


@given(spoilt_text(WORDS, {"finished": True, "step": 3}))
def test_any_last_words_are_within_bounds(text: str) -> None:
    words = Termination.from_text(text)
    assert type(words.step) is int
    assert 0 <= words.step <= MAX_WHOLE
    assert len(words.message) <= 4096
    words.message.encode()
    assert len(words.to_json()) <= 4096


def test_of_a_long_text_that_is_not_ours_the_end_is_kept() -> None:
    assert Termination.from_text("x" * 9999 + "the error").message.endswith("the error")


STEP = StepRecord(1.0, 2, 0, 3, 4, 4, 0.1, 0.2, 0.5, "")
EVALUATION = EvaluationRecord(1.0, 2, {"accuracy": 0.5})
CONFIG = TrainingConfig(epochs=3, checkpoint_path="/c", target_value=0.5)


@given(spoilt_text(*(json.loads(each.to_json()) for each in (STEP, EVALUATION, CONFIG))))
def test_any_record_or_config_is_one_that_can_be_written_again_or_refused(text: str) -> None:
    for kind in (StepRecord, EvaluationRecord, TrainingConfig):
        try:
            found = kind.from_json(text)
        except ValueError as error:
            assert len(str(error).encode(errors="replace")) < 1000
            continue
        assert repr(kind.from_json(found.to_json())) == repr(found)


SERVER = {"name": "server", "uid": "u9", "address": "10.0.0.9:29500"}


def test_plan_names_a_server_that_is_no_member() -> None:
    plan = replace(PLAN, server=Server(**SERVER))
    assert parse_plan(plan.to_json()) == plan
    assert "server" not in DOCUMENT


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ([], "^server: expected an object"),
        ({"name": "server"}, "^server.uid: expected str"),
        (SERVER | {"address": "x" * 254}, "^server.address: "),
        (SERVER | {"uid": "u1"}, "^server: .* is a member"),
    ],
)
def test_server_of_a_plan_that_is_none_is_refused(server: object, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        parse_plan(plan_with({"server": server}))


def test_plan_says_what_it_continues_and_who_is_evicted_only_if_it_does() -> None:
    assert not {"evicted", "continues"} & DOCUMENT.keys()
    assert (parse_plan(PLAN.to_json()).evicted, parse_plan(PLAN.to_json()).continues) == ((), 0)
    without = replace(PLAN, continues=1, evicted=tuple(UIDS))
    document = json.loads(without.to_json())
    assert (document["evicted"], document["continues"]) == (UIDS, 1)
    assert parse_plan(without.to_json()) == without


@pytest.mark.parametrize(
    ("found", "why"),
    [
        *((found, "^evicted: expected list") for found in (None, "u3", {"u3": 1}, 7, True)),
        *((["u3", uid], r"^evicted\[1\]: ") for uid in ("\ud800", "x" * 254, 7, None, ["u3"])),
        (["u3", "u2"], "^evicted: 'u2' is a member"),
        ([*UIDS, "one more"], f"^evicted: {MAX_EVICTED + 1} workers are more than {MAX_EVICTED}"),
    ],
    ids=lambda found: str(found)[:40],
)
def test_who_is_evicted_is_a_list_of_few_uids_that_are_no_members(found: object, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        parse_plan(plan_with({"evicted": found}))


@pytest.mark.parametrize(
    ("foreign", "plain"),
    [
        ("\x1b]0;pwned\x07\x1b[2J\x1b[31mall is well\x1b[8m\u202e\r\nnext", "all is well  \nnext"),
        ("\x1b[", ""),
        ("\x9b31m\ud800", " 31m?"),
        ("plain: naïve 日本", "plain: naïve 日本"),
    ],
)
def test_foreign_words_cannot_control_a_terminal(foreign: str, plain: str) -> None:
    assert as_text(foreign, 100) == plain
    assert Termination.from_text(json.dumps({**WORDS, "message": foreign})).message == plain
