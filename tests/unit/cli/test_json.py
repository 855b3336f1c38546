"""`--json`: every command that prints a result prints it for programs, too."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from heterotrain_operator.cli.parser import parser
from heterotrain_operator.experiments import runs
from heterotrain_operator.experiments.figures.summary import summarize
from heterotrain_operator.experiments.report import kept
from heterotrain_operator.experiments.report.trials import Course
from heterotrain_operator.experiments.trials.observer import Entry
from heterotrain_operator.experiments.trials.trial import Trial, TrialResult
from kube_server.api_server import ApiServer
from unit.cli.cluster_jobs import trained
from unit.cli.commands import manifest, write_manifest
from unit.cli.conftest import Run
from unit.experiments.histories import FAST, SLOW, history, joined, trial

WITHOUT = {"completion"}
"""What it prints is a script for a shell."""


def test_every_command_has_it() -> None:
    (commands,) = (each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    lack = {name for name, command in commands.choices.items() if "--json" not in command._option_string_actions}
    assert lack == WITHOUT


def test_validate_lists_what_it_found(tmp_path: Path, heterotrain: Run) -> None:
    good = write_manifest(tmp_path, manifest())
    bad = tmp_path / "bad.yaml"
    bad.write_text("kind: HeteroTrainingJob\n", "utf-8")
    said = heterotrain("validate", good, bad, "--json")
    assert (said.code, said.err) == (2, "")
    valid, refused = json.loads(said.out)
    assert (valid["source"], valid["valid"], valid["problems"]) == (str(good), True, [])
    assert (refused["source"], refused["valid"]) == (str(bad), False)
    assert refused["problems"]


def test_report_says_where_it_is_and_explain_all_that_is_known(
    tmp_path: Path, heterotrain: Run, monkeypatch: pytest.MonkeyPatch, kept_run: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = json.loads(heterotrain("report", kept_run, "--json").out)
    assert paths == {"report": str(kept_run / "report.html"), "trace": str(kept_run / "trace.json")}
    assert all(Path(path).is_file() for path in paths.values())
    explained = json.loads(heterotrain("explain", kept_run, "--json").out)
    assert explained["decisions"]["optimal-1"][0]["batches"] == [48, 16]
    assert json.loads(heterotrain("version", "--json").out).keys() == {"heterotrain"}


@pytest.fixture
def kept_run(tmp_path: Path) -> Path:
    """The folder of a run that is over."""
    steps = joined(history(30, (32, 32), (0.48, 0.5)))
    series = {name: tuple(step.records[name] for step in steps) for name in (FAST, SLOW)}
    entry = Entry(3.0, 30, 2, (48, 16), "why", ())
    result = TrialResult(Trial("Optimal", 1), trial("Optimal", steps), (entry,), series)
    out = tmp_path / "out"
    (runs.log_folder(out, "optimal-1") / FAST).mkdir(parents=True)
    summary = summarize("el", (result.history,), (FAST, SLOW), bounds={FAST: (1, 64), SLOW: (1, 64)})
    kept.keep(out, summary, Course((result,), (), (FAST, SLOW), "kind: HeteroTrainingJob\n"))
    return out


@pytest.fixture
def job(api: ApiServer) -> dict[str, Any]:
    job = trained()
    job.document["status"]["phase"] = "Succeeded"
    job.put(api)
    name = "digits-g0-0"
    labels = {"job-name": "digits", "job-role": "worker", "worker-group": "g0", "worker-index": "0"}
    metadata = {
        "name": name,
        "namespace": "team",
        "labels": {f"heterotrain.dev/{key}": value for key, value in labels.items()},
    }
    api.restore("pods", {"metadata": metadata, "spec": {"containers": [{"name": "trainer"}]}})
    api.logs[name] = 'loss 0.5\n"quoted"\n'
    return job.document


@pytest.mark.usefixtures("job")
def test_commands_of_a_cluster_print_objects(config: Path, heterotrain: Run) -> None:
    def printed(command: str) -> str:
        said = heterotrain(command, "digits", "--json", "--kubeconfig", config)
        assert said.code == 0
        text: str = said.out
        return text

    assert json.loads(printed("status"))["status"]["planVersion"] == 2
    (line,) = printed("watch").splitlines()
    assert json.loads(line)["status"]["phase"] == "Succeeded"
    explained = json.loads(printed("explain"))
    assert [worker["batch"] for worker in explained["workers"]] == [110, 55, 27]
    assert explained["plan"]["version"] == 2
    assert explained["why"]
    assert [json.loads(line) for line in printed("logs").splitlines()] == [
        {"worker": "digits-g0-0", "line": "loss 0.5"},
        {"worker": "digits-g0-0", "line": '"quoted"'},
    ]
