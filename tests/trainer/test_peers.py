"""Messages of other workers are read within bounds, or refused in words; no message ends in another error."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterotrain.contract import Member, Plan
from heterotrain.data.evaluation import Sums
from heterotrain.peers import PeerError, parse_facts, parse_sums, parse_text, parse_traits
from hostile import spoilt_text

PLAN = Plan(7, 2, "step", (Member("a", "u1", "10.0.0.7:29500", "cpu", 96),))
FACTS = {
    "plan": PLAN.to_json(),
    "pending": "",
    "losses": [[0.5, 1.0], [0.25, 0.5]],
    "target_reached": False,
    "evaluation": {"step": -1, "values": {"accuracy": 0.5}, "target_reached": True},
    "saved_step": 3,
}
SUMS = {"samples": 4, "sums": {"accuracy": [3.0, 4.0]}}


def test_facts_are_read_as_they_were_sent() -> None:
    facts = parse_facts(json.dumps(FACTS | {"colour": "red"}).encode())
    assert (facts.plan, facts.pending, facts.saved_step) == (PLAN, None, 3)
    assert facts.losses == ((0.5, 1.0), (0.25, 0.5))
    assert facts.evaluation == FACTS["evaluation"]


@pytest.mark.parametrize("change", [{"plan": "{}"}, {"losses": [[1]]}, {"saved_step": 10**400}, {"evaluation": 3}])
def test_facts_that_are_none_are_refused_as_another_workers(change: dict[str, Any]) -> None:
    with pytest.raises(PeerError, match="the worker that has committed most"):
        parse_facts(json.dumps(FACTS | change).encode())


def test_sums_of_all_workers_are_added() -> None:
    whole = Sums.of([json.dumps(SUMS).encode()] * 2)
    assert whole.samples == 8
    assert whole.values() == {"accuracy": 0.75}


@pytest.mark.parametrize("figure", [1e38, -1e300, math.inf, math.nan])
def test_the_figures_of_a_training_that_diverges_are_understood(figure: float) -> None:
    sent = {"losses": [[figure, 1.0]], "evaluation": {"step": 3, "values": {"error": figure}}}
    facts = parse_facts(json.dumps(FACTS | sent).encode())
    assert repr(facts.losses) == repr(((figure, 1.0),))
    assert repr(facts.evaluation["values"]) == repr({"error": figure})
    whole = Sums.of([json.dumps({"samples": 4, "sums": {"error": [figure, 1.0]}}).encode()])
    assert repr(whole.values()) == repr({"error": figure})


@pytest.mark.parametrize("parse", [parse_facts, parse_sums, parse_traits])
@settings(max_examples=150)
@given(spoilt_text(FACTS, SUMS))
def test_any_message_is_read_or_refused_as_another_workers(parse: Callable[[bytes], object], text: str) -> None:
    try:
        json.dumps(repr(parse(text.encode(errors="surrogatepass")))).encode()
    except PeerError as error:
        assert len(str(error).encode(errors="replace")) < 1500


@given(st.binary())
def test_any_short_text_is_read_or_refused_as_another_workers(data: bytes) -> None:
    try:
        assert len(parse_text(data, 5)) <= 5
    except PeerError as error:
        assert "cannot be understood" in str(error)
