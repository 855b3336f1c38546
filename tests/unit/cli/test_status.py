"""`heterotrain status`: what a job's object says, in tables and as it is."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from heterotrain_operator.cli.cluster.job_state import JobState, read_job
from heterotrain_operator.cli.cluster.status import job_view, jobs_table
from heterotrain_operator.experiments import wording
from hostile import spoilt
from kube_server.api_server import ApiServer
from unit.cli.cluster_jobs import Trained, job_document, trained
from unit.cli.conftest import Run

Status = Callable[..., str]


@pytest.fixture(scope="module")
def digits() -> Trained:
    return trained()


@pytest.fixture
def status(config: Path, heterotrain: Run) -> Status:
    """Run `heterotrain status` with some arguments; gives what it prints."""

    def run(*arguments: str) -> str:
        said = heterotrain("status", "--kubeconfig", config, *arguments)
        assert said.code == 0
        return said.out

    return run


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the table that begins with a heading; cells stand three blanks apart."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(heading))
    body = lines[start + 1 :]
    if "" in body:
        body = body[: body.index("")]
    return [[cell.strip() for cell in line.split("   ") if cell.strip()] for line in body]


def test_jobs_are_listed_a_line_each(api: ApiServer, status: Status, digits: Trained) -> None:
    digits.put(api)
    api.restore("heterotrainingjobs", job_document("unseen"))
    said = status()
    assert said.splitlines()[0].split() == ["NAME", "PHASE", "WORKERS", "STEP", "IMBALANCE", "PLAN", "AGE"]
    first, second = rows(said, "NAME")
    assert first[:-1] == ["digits", "Running", "3/3", "60/1000", "2%", "2"]
    assert second[:-1] == ["unseen", "Unseen", "-", "-", "-", "-"]


def test_wide_list_says_why(api: ApiServer, status: Status, digits: Trained) -> None:
    digits.put(api)
    api.restore("heterotrainingjobs", job_document("dry", dryRun=True))
    first, second = rows(status("-o", "wide"), "NAME")
    assert first[0] == "digits"
    assert first[-1].startswith("Optimal keeps the batches: digits-g2-0 takes 116 ms at 27 samples")
    assert "Optimal (dry run)" in second


def test_nothing_to_list_is_said(config: Path, heterotrain: Run) -> None:
    assert heterotrain("status", "--kubeconfig", config).err == "There are no jobs in namespace team.\n"
    assert heterotrain("status", "--kubeconfig", config, "-A").err == "There are no jobs.\n"
    assert json.loads(heterotrain("status", "--kubeconfig", config, "-o", "json").out)["items"] == []


def test_job_is_shown_with_its_workers(api: ApiServer, status: Status, digits: Trained) -> None:
    digits.put(api)
    said = status("digits")
    assert said.startswith("digits in team: Running, ")
    assert (
        "policy Optimal, plan 2 of generation 1, 192 samples per step, step 60/1000, 3/3 workers, imbalance 2%\n"
        in said
    )
    assert rows(said, "WORKER") == [
        ["digits-g0-0", "110", "110 ms", "20%", "1", "2", "node-g0", "training"],
        ["digits-g1-0", "55", "110 ms", "20%", "1", "2", "node-g1", "training"],
        ["digits-g2-0", "27", "120 ms", "20%", "1", "2", "node-g2", "training"],
    ]


def test_what_a_job_has_cost_is_shown_by_group(api: ApiServer, status: Status) -> None:
    for cost, words in (
        ({"total": 3.1, "groups": [{"group": "a", "cost": 3.0}, {"group": "b", "cost": 0.1}]}, "3.10 (a 3.00, b 0.1)"),
        ({"groups": [{"group": "a", "cost": 3}, "?"]}, "3.00, without groups that have no price"),
    ):
        api.restore("heterotrainingjobs", job_document() | {"status": {"phase": "Running", "cost": cost}})
        assert f"cost {words}\n" in status("digits")


def test_conditions_that_do_not_hold_are_for_the_wide_form(api: ApiServer, status: Status, digits: Trained) -> None:
    digits.put(api)
    shown = [row[0] for row in rows(status("digits"), "CONDITION")]
    assert shown == ["Created", "Running", "Balanced", "CheckpointNotDurable"]
    everything = [row[0] for row in rows(status("digits", "-o", "wide"), "CONDITION")]
    assert {"Suspended", "Succeeded", "Failed", "Degraded"} < set(everything)


def test_waiting_workers_say_why(api: ApiServer, status: Status) -> None:
    job = job_document()
    message = 'ImagePullBackOff: Back-off pulling image "trainer:[latest]"'
    worker = {"name": "digits-g0-0", "group": "g0", "phase": "pending", "message": message}
    job["status"] = {"phase": "Created", "ready": "0/3", "workers": [worker]}
    api.restore("heterotrainingjobs", job)
    assert rows(status("digits"), "WORKER") == [["digits-g0-0", *["-"] * 5, f"pending: {message}"]]


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({}, "No operator has looked at this job yet; does one run that watches its namespace?"),
        ({"phase": "Running", "observedGeneration": 0}, "The job was changed since the operator last looked at it."),
    ],
)
def test_doubtful_status_is_called_so(changes: dict[str, Any], remark: str, api: ApiServer, status: Status) -> None:
    api.restore("heterotrainingjobs", {**job_document(), "status": changes})
    assert remark in status("digits").splitlines()


def test_status_of_another_version_is_read_with_patience() -> None:
    job = {"metadata": {"name": "j"}, "status": {"phase": "Dreaming", "moon": 1, "workers": [{"name": "w", "eyes": 2}]}}
    state = read_job(job)
    assert (state.phase, state.workers[0].name, state.workers[0].batch) == ("Dreaming", "w", None)
    assert state.created is None
    assert not state.ended


SHOWN = trained()


@settings(max_examples=200)
@given(spoilt(SHOWN.document), st.booleans())
def test_any_object_in_place_of_a_job_is_shown_by_what_is_known(document: Any, wide: bool) -> None:
    if not isinstance(document, dict):
        return
    out = Console(file=io.StringIO(), width=80)
    state = read_job(document)
    out.print(job_view(state, SHOWN.now, wide=wide, width=80))
    out.print(jobs_table([state], SHOWN.now, everywhere=True, wide=wide, width=80))
    out.file.getvalue().encode()  # type: ignore[attr-defined]  # a StringIO


@pytest.mark.parametrize(
    ("path", "value", "read"),
    [
        ("creationTimestamp", "yesterday", lambda state: state.created),
        ("creationTimestamp", "2026-01-01T00:00:00", lambda state: state.created),
        ("status.completionTime", 17, lambda state: state.completed),
        ("status.step", 10**400, lambda state: state.step),
        ("status.workers", {"name": "w"}, lambda state: state.workers or None),
    ],
    ids=["no moment", "no zone", "a number for a moment", "too great", "no list"],
)
def test_field_of_another_type_counts_as_absent(path: str, value: object, read: Callable[[JobState], object]) -> None:
    *parts, name = path.split(".")
    document: dict[str, Any] = {"metadata": {"name": "j"}, "status": {}}
    document[parts[0] if parts else "metadata"][name] = value
    assert read(read_job(document)) is None


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_objects_are_printed_as_they_are(
    form: str, read: Callable[[str], Any], api: ApiServer, status: Status, digits: Trained
) -> None:
    digits.put(api)
    one = read(status("digits", "-o", form))
    assert one["status"] == digits.document["status"]
    assert one["metadata"]["uid"] == "uid-of-digits"
    assert "managedFields" not in one["metadata"]
    assert read(status("-o", form)) == {"apiVersion": "v1", "kind": "List", "items": [one]}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (45.4, "45s"),
        (150, "2m30s"),
        (3_700, "1h1m"),
        (90_000, "1d1h"),
    ],
)
def test_ages_are_short(seconds: float | None, text: str) -> None:
    assert wording.age(seconds) == text


def test_evaluation_is_shown(api: ApiServer, status: Status, digits: Trained) -> None:
    document = {**digits.document, "status": {**digits.document["status"]}}
    metrics = [{"name": "accuracy", "value": 0.9753}, {"name": "f1", "value": 1}, {"name": "odd"}]
    document["status"]["evaluation"] = {"step": 50, "metrics": metrics}
    api.restore("heterotrainingjobs", document)
    assert "step 60/1000, accuracy 0.9753 and f1 1 at step 50, " in status("digits")
