"""Pods, their last words and statuses of any origin: each is read, and what is written of it the cluster takes."""

from __future__ import annotations

import base64
import copy
import gzip
import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft4Validator

from heterotrain.contract import Member, Plan
from heterotrain_operator.api import Problem
from heterotrain_operator.api.generate.crd import custom_resource_definition
from heterotrain_operator.clusters.kube.objects.names import MEMORY_KEY, PACKED_MEMORY_KEY, PLAN_KEY
from heterotrain_operator.clusters.kube.objects.plan_map import build_plan_map, read_plan_map
from heterotrain_operator.clusters.kube.observe.pod_facts import NO_INDEX, pod_facts, short_pod, worker_seen
from heterotrain_operator.clusters.kube.status.job_status import invalid, next_status, outcome_in, refused_status
from heterotrain_operator.clusters.kube.status.schema import checked, tolerated
from hostile import ODD_TEXT, spoilt, spoilt_text
from kube_server.api_server import Document, merged
from unit.kube.documents import JOB_UID, job, pod, read
from unit.kube.statuses import MEMORY, NOW, decision, status, training, worker

SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
STATUS = status(seen=training(1.0, 1.0, 1.6))
JOB = job()
LABEL = st.from_regex(r"\A[A-Za-z0-9_.-]{0,63}\Z") | st.sampled_from(["9" * 63, "7", "00", "1e9"])
LIMITS = st.text() | ODD_TEXT | st.sampled_from(["1e999", "9" * 5000, "0.1n", "1e18", "-1", "250m"])


def ended_with(words: str, code: int = 1) -> Document:
    """The pod of a worker that ended with these last words."""
    (trainer,) = read("pod.yaml")["status"]["containerStatuses"]
    state = {"terminated": {"exitCode": code, "reason": "Error", "message": words}}
    return pod({"status": {"containerStatuses": [{**trainer, "state": state}]}})


def admitted(document: Document) -> None:
    assert list(Draft4Validator(SCHEMA).iter_errors(document)) == []


@given(LABEL, LIMITS, spoilt_text({"finished": True, "step": 3, "message": "x", "askedToStop": True}), st.booleans())
def test_any_pod_becomes_a_worker_whose_status_is_admitted(index: str, limit: str, words: str, gone: bool) -> None:
    labels = {"heterotrain.dev/worker-index": index, "heterotrain.dev/worker-group": index}
    body = merged(ended_with(words), {"metadata": {"labels": labels}})
    body["spec"]["containers"][0]["resources"] = {"limits": {"cpu": limit}}
    body["status"]["containerStatuses"][0].pop("resources", None)
    facts = pod_facts(body, gone=gone)
    assert pod_facts(short_pod(body), gone=gone) == facts, "what is short says the same"
    assert NO_INDEX <= facts.index < 10**9
    assert facts.cpu_limit is None or 0 < facts.cpu_limit <= 1e6
    seen = replace(training(), workers=(worker_seen(facts, None, False), worker("digits-large-0")))
    admitted(checked(next_status(None, JOB, seen, decision(), MEMORY, NOW)))


@given(spoilt(STATUS))
def test_any_status_is_gone_on_from_and_what_follows_the_cluster_takes(found: Any) -> None:
    if not isinstance(found, dict):
        return
    before = copy.deepcopy(found)
    known = tolerated(found)
    assert repr(found) == repr(before)
    admitted(known)
    outcome_in(known)
    admitted(checked(next_status(known, JOB, training(), decision(), MEMORY, NOW)))
    admitted(refused_status(found, 4, invalid([Problem("spec", "x")]), NOW))


PLAN = Plan(7, 2, "step", (Member("digits-small-0", "u1", "10.0.0.7:29500", "small", 192),))
PLAN_MAP = build_plan_map(JOB, JOB_UID, PLAN.to_json(), MEMORY.to_json())
BYTES = st.binary(max_size=200) | st.binary(max_size=200).map(gzip.compress)
PACKED = BYTES.map(lambda data: base64.b64encode(data).decode()) | st.text() | ODD_TEXT
TEXTS = spoilt_text(json.loads(PLAN.to_json()), json.loads(MEMORY.to_json()))


@given(st.fixed_dictionaries({}, optional={PLAN_KEY: TEXTS, MEMORY_KEY: TEXTS | st.just("")}), PACKED, st.booleans())
def test_any_config_map_is_read_or_says_what_is_wrong(data: dict[str, str], packed: str, with_packed: bool) -> None:
    body = {**PLAN_MAP, "data": data, **({"binaryData": {PACKED_MEMORY_KEY: packed}} if with_packed else {})}
    stored = read_plan_map(body)
    assert (stored.plan is None) == (PLAN_KEY not in data or bool(stored.plan_problem))
    assert (stored.memory is None) == (not (MEMORY_KEY in data or with_packed) or bool(stored.memory_problem))
    assert len(stored.plan_problem + stored.memory_problem) < 1000


@given(spoilt(PLAN_MAP))
def test_any_object_in_place_of_a_config_map_is_read(found: Any) -> None:
    if isinstance(found, dict):
        read_plan_map(found)
