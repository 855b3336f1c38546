"""Scenarios are read strictly, and mean in the simulation what they say."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterotrain.contract import StepRecord
from heterotrain_operator.api import ManifestError, Problem
from heterotrain_operator.api.document import MAX_CHARACTERS
from heterotrain_operator.clusters.simulated import communication, events, laws, noise
from heterotrain_operator.clusters.simulated.described import Choice
from heterotrain_operator.clusters.simulated.scenario import MemoryUse, Timing
from heterotrain_operator.experiments.scenarios import Changes, reference
from heterotrain_operator.experiments.scenarios.reading import load_simulation, parse_simulation, scenario_text

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ROWS: list[dict[str, Any]] = yaml.safe_load((HERE / "bad_scenarios.yaml").read_text("utf-8"))
GOOD: dict[str, Any] = {
    "name": "trial",
    "job": {
        "workerGroups": [{"name": "fast"}, {"name": "slow", "replicas": 2}],
        "training": {"globalBatchSize": 96},
    },
    "workers": {
        "all": {"time": {"affine": {"fixedSeconds": 0.01, "secondsPerSample": 0.002}}},
        "slow": {"scale": 4},
    },
}


def changed(change: dict[str, Any]) -> dict[str, Any]:
    """A good scenario with values at other paths."""
    document = copy.deepcopy(GOOD)
    for path, value in change.items():
        node: Any = document
        *parents, last = [int(part) if part.isdecimal() else part for part in re.findall(r"[^.\[\]]+", path)]
        for part in parents:
            node = node[part]
        node[last] = value
    return document


def problems_of(document: object) -> tuple[Problem, ...]:
    with pytest.raises(ManifestError) as caught:
        parse_simulation(document, HERE)
    return caught.value.problems


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['path']}: {row['reason'][:40]}")
def test_bad_scenario_is_refused_with_path_and_reason(row: dict[str, Any]):
    problems = problems_of(changed(row["change"]))
    assert any(problem.path == row["path"] and row["reason"] in problem.reason for problem in problems), problems


def test_faults_of_the_job_and_of_the_rest_are_named_at_once():
    problems = problems_of(changed({"job.training.globalBatchSize": 0, "intervals": 0, "workers.fast": {"scal": 1}}))
    assert {problem.path for problem in problems} == {
        "job.training.globalBatchSize",
        "intervals",
        "workers.fast.scal",
    }


@pytest.mark.parametrize("document", [None, 3, "text", [GOOD]])
def test_what_is_no_mapping_is_refused(document: object):
    assert "must be a mapping" in problems_of(document)[0].reason


def test_deep_and_foreign_documents_are_refused():
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"job": deep}
    assert "levels deep" in problems_of(deep)[0].reason
    assert "JSON" in problems_of({**GOOD, "seed": float("nan"), 3: {1, 2}})[0].reason


def test_fields_of_a_worker_come_from_itself_its_group_and_all():
    document = changed(
        {
            "workers.all.noise": {"independent": {"variation": 0.1}},
            "workers.slow-1": {"noise": {"autoregressive": {"variation": 0.2, "correlation": 0.9}}},
        }
    )
    scenario = parse_simulation(document, HERE).scenario
    assert scenario.model_of("trial-fast-0", "fast").scale == 1
    assert scenario.model_of("trial-slow-0", "slow").scale == 4
    assert scenario.model_of("trial-slow-0", "slow").noise == noise.Independent(0.1)
    assert scenario.model_of("trial-slow-1", "slow").noise == noise.AR1(0.9, 0.2)
    assert scenario.model_of("trial-slow-1", "slow").scale == 4
    assert scenario.model_of("trial-slow-1", "slow").law == laws.Affine(0.01, 0.002)


LINE = {"fixedSeconds": 0.01, "secondsPerSample": 0.002}
AFFINE = laws.Affine(0.01, 0.002)
NET = {"modelMebibytes": 100, "mebibytesPerSecond": 1000}
MIB = 2**20


@pytest.mark.parametrize(
    ("change", "place", "meant"),
    [
        ({"workers.all.time": {"plateau": {"leastSeconds": 0.05, **LINE}}}, "law", laws.Plateau(0.05, 0.01, 0.002)),
        (
            {"workers.all.time": {"power": {"exponent": 1.5, "atSamples": 32, **LINE}}},
            "law",
            laws.Power(1.5, 0.01, 0.002, 32),
        ),
        ({"workers.all.time": {"affine": LINE, "multipleOf": 16}}, "law", laws.Padded(AFFINE, 16)),
        (
            {"workers.all.time": {"affine": LINE, "memoryCliff": {"aboveSamples": 40}}},
            "law",
            laws.MemoryCliff(AFFINE, 40),
        ),
        ({"workers.all.time": {"affine": LINE, "penaltyOfLast": 1.5}}, "law", laws.Throttled(AFFINE, 1.5)),
        ({"workers.all.noise": {"independent": {"variation": 0.1}}}, "noise", noise.Independent(0.1)),
        ({"workers.all.noise": {"heavyTailed": {"variation": 0.1}}}, "noise", noise.HeavyTailed(0.1)),
        ({"workers.all.noise": {"replayed": {"series": [[1, 2.5]]}}}, "noise", noise.Replayed(((1.0, 2.5),))),
        (
            {"workers.all.memory": {"mebibytesPerSample": 2, "limitMebibytes": 9}},
            "memory",
            MemoryUse(0, 2 * MIB, 9 * MIB),
        ),
        ({}, "shared_noise", noise.NoNoise()),
        (
            {"sharedNoise": {"autoregressive": {"variation": 0.3, "correlation": 0.98}}},
            "shared_noise",
            noise.AR1(0.98, 0.3),
        ),
        ({"communication": {"ring": NET}}, "communication", communication.RingAllReduce(100 * MIB, 1000 * MIB)),
        (
            {"communication": {"measured": {"byWorkers": {4: 0.5, 1: 0}}}},
            "communication",
            communication.Measured({1: 0.0, 4: 0.5}),
        ),
        (
            {"communication": {"parameterServer": {**NET, "servers": 2}}},
            "communication",
            communication.ParameterServer(100 * MIB, 1000 * MIB, servers=2),
        ),
        ({"timing": {"switchSteps": 5}}, "timing", Timing(switch_steps=5)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_files_say_becomes_values_of_the_simulation(change: dict[str, Any], place: str, meant: object):
    scenario = parse_simulation(changed(change), HERE).scenario
    model = scenario.model_of("trial-fast-0", "fast")
    assert getattr(model if place in ("law", "noise", "memory") else scenario, place) == meant


EVENTS: list[tuple[dict[str, Any], events.ClusterEvent]] = [
    ({"atStep": 3, "untilStep": 9, "jump": {"factor": 2}}, events.Jump((), 2, 3, 9)),
    ({"untilStep": 9, "drift": {"factor": 2, "cause": "throttled"}}, events.Drift((), 2, 0, 9, "throttled")),
    ({"interference": {"factor": 2, "period": 40}}, events.Interference((), 2, 40)),
    ({"atStep": 3, "cpuLimit": {"cores": 1, "before": 2}}, events.LimitChange((), 1, 3, before=2)),
    ({"warmUp": {"factor": 2, "steps": 5}}, events.WarmUp((), 2, 5)),
    ({"atStep": 3, "workers": ["slow-1"], "preemption": {}}, events.Preemption(("trial-slow-1",), 3)),
    ({"atStep": 3, "workers": ["all"], "death": {"exitCode": 1}}, events.Death((), 3, 1)),
    (
        {"atStep": 3, "workers": ["slow"], "outOfMemory": {}},
        events.Death(("slow",), 3, out_of_memory=True, message="out of memory"),
    ),
    ({"unreadable": {"probability": 0.01}}, events.Unreadable((), probability=0.01)),
    ({"lateMetrics": {"everySeconds": 15}}, events.LateMetrics((), 15)),
    ({"atStep": 3, "sourceDown": {}}, events.SourceDown(3)),
]


@pytest.mark.parametrize(("event", "meant"), EVENTS)
def test_events_become_those_of_the_simulation(event: dict[str, Any], meant: events.ClusterEvent):
    assert parse_simulation(changed({"events": [event]}), HERE).scenario.events == (meant,)


def test_limit_of_a_group_is_one_of_the_job_as_a_template_would_say_it():
    simulation = parse_simulation(changed({"workers.all.cpuLimit": 2, "workers.slow.cpuLimit": 0.5}), HERE)
    assert [group.cpu_limit for group in simulation.scenario.job.groups] == [2.0, 0.5]


def test_limit_may_change_where_there_is_one():
    event = {"atStep": 3, "workers": ["slow"], "cpuLimit": {"cores": 1}}
    document = changed({"workers.slow.cpuLimit": 0.5, "events": [event]})
    assert parse_simulation(document, HERE).scenario.events == (events.LimitChange(("slow",), 1, 3),)


def test_own_policy_is_compared_with_uniform_by_itself_under_one_seed():
    simulation = parse_simulation(GOOD, HERE)
    assert [(policy, run.job.policy, run.seed) for policy, run in simulation.runs()] == [
        ("Optimal", "Optimal", 0),
        ("Uniform", "Uniform", 0),
    ]
    assert parse_simulation(changed({"job.batching": {"policy": "Uniform"}}), HERE).policies == ("Uniform",)


def test_command_line_has_precedence_over_the_file():
    changes = Changes(policies=("Static",), seed=5, seeds=2, intervals=7)
    simulation = parse_simulation(changed({"policies": ["Uniform"], "seed": 1, "intervals": 3}), HERE, changes)
    assert [(policy, run.seed, run.intervals) for policy, run in simulation.runs()] == [
        ("Static", 5, 7),
        ("Static", 6, 7),
    ]
    with pytest.raises(ManifestError, match="--policy: Statc is not a known policy"):
        parse_simulation(GOOD, HERE, Changes(policies=("Statc",)))


def test_job_may_be_that_of_a_manifest_beside_the_scenario(tmp_path: Path):
    manifest = yaml.safe_load((ROOT / "examples" / "digits-hetero.yaml").read_text("utf-8"))
    (tmp_path / "job.yaml").write_text(json.dumps(manifest), "utf-8")
    path = tmp_path / "scenario.yaml"
    path.write_text(json.dumps({"name": "digits", "manifest": "job.yaml", "workers": {"small": {"scale": 4}}}), "utf-8")
    simulation = load_simulation(path)
    assert [group.name for group in simulation.scenario.job.groups] == ["large", "medium", "small"]
    (tmp_path / "job.yaml").write_text(json.dumps({**manifest, "kind": "Job"}), "utf-8")
    with pytest.raises(ManifestError, match=r"manifest: job.yaml: kind: must be HeteroTrainingJob"):
        load_simulation(path)


def test_ten_thousand_workers_need_no_config_map():
    document = changed({"job.workerGroups[1].replicas": 9_999, "job.training.globalBatchSize": 320_000})
    assert parse_simulation(document, HERE).scenario.job.groups[1].replicas == 9_999


def run_folder(folder: Path, batches: Sequence[int], steps: int = 12) -> Path:
    """A folder as `heterotrain run --out` leaves it: each worker takes 10 ms and 2 ms a sample, every third step 30 %
    more.
    """
    (folder / "manifest.yaml").write_text((ROOT / "examples" / "digits-hetero.yaml").read_text("utf-8"), "utf-8")
    lines = []
    for step in range(steps):
        for name, batch in zip(("digits-large-0", "digits-medium-0", "digits-small-0"), batches, strict=True):
            own = (0.01 + 0.002 * batch) * (1.3 if step % 3 == 0 else 0.85)
            record = StepRecord(1e9 + step, step, 0, 1, batch, batch, own, 0.0, None, "" if step else "first")
            lines.append(json.dumps({"worker": name, **json.loads(record.to_json())}))
    index = len(list(folder.glob("*.jsonl")))
    (folder / f"optimal-{index}-series.jsonl").write_text("\n".join([*lines, '{"torn']), "utf-8")
    return folder


def test_run_becomes_a_scenario_with_its_own_times_and_noise(tmp_path: Path):
    run_folder(run_folder(tmp_path, (100, 100, 100), steps=31), (160, 90, 50), steps=31)
    text = scenario_text(tmp_path)
    document = yaml.safe_load(text)
    scenario = parse_simulation(document, tmp_path).scenario
    assert scenario == load_simulation(tmp_path).scenario, "what is printed is what is simulated"
    assert [group.cpu_limit for group in scenario.job.groups] == [1.0, 0.5, 0.25]
    model = scenario.model_of("digits-small-0", "small")
    assert isinstance(model.law, laws.Affine)
    assert model.law.fixed == pytest.approx(0.01, rel=0.01)
    assert model.law.per_sample == pytest.approx(0.002, rel=0.01)
    assert isinstance(model.noise, noise.Replayed)
    (series,) = model.noise.series
    assert len(series) == 30, "the first step is marked"
    assert sum(series) / 30 == pytest.approx(1, abs=1e-3)
    assert series[2] / series[1] == pytest.approx(1.3 / 0.85, rel=1e-3)


def test_run_of_a_job_whose_replicas_are_its_own_becomes_a_scenario_of_as_many_workers(tmp_path: Path):
    series = run_folder(tmp_path, (100, 100, 100)) / "optimal-0-series.jsonl"
    text = series.read_text("utf-8")
    for index, name in enumerate(("large", "medium", "small")):
        text = text.replace(f"digits-{name}-0", f"digits-large-{index}")
    series.write_text(text, "utf-8")
    manifest = yaml.safe_load((tmp_path / "manifest.yaml").read_text("utf-8"))
    manifest["spec"] |= {"workerGroups": manifest["spec"]["workerGroups"][:1], "replicas": 3}
    (tmp_path / "manifest.yaml").write_text(yaml.safe_dump(manifest), "utf-8")
    scenario = load_simulation(tmp_path).scenario
    assert [name for name, _ in scenario.workers()] == ["digits-large-0", "digits-large-1", "digits-large-2"]


def test_one_batch_size_makes_times_proportional_to_it(tmp_path: Path):
    model = load_simulation(run_folder(tmp_path, (100, 100, 100))).scenario.model_of("digits-small-0", "small")
    assert isinstance(model.law, laws.Affine)
    assert model.law.fixed == 0


def test_times_too_short_to_be_squared_are_refused_by_their_field(tmp_path: Path):
    lines = (run_folder(tmp_path, (100, 100, 100)) / "optimal-0-series.jsonl").read_text("utf-8")
    shorter = re.sub(r'"own": [^,]+', '"own": 1e-200', lines)
    (tmp_path / "optimal-0-series.jsonl").write_text(shorter, "utf-8")
    with pytest.raises(
        ManifestError, match=r"workers\.large-0\.time\.affine\.secondsPerSample: must be at least 1e-09"
    ):
        load_simulation(tmp_path)


@pytest.mark.parametrize("path", ["/dev/zero", "long.yaml"])
def test_file_without_an_end_is_refused_by_its_size(path: str, tmp_path: Path):
    (tmp_path / "long.yaml").write_text("#" * (MAX_CHARACTERS + 1), "utf-8")
    with pytest.raises(ManifestError, match=f"has more than {MAX_CHARACTERS} characters"):
        load_simulation(tmp_path / path)


def test_manifest_whose_path_no_file_can_have_is_refused():
    document = {"name": "x", "manifest": "a\0b"}
    with pytest.raises(ManifestError, match=r"manifest: .*cannot be read"):
        parse_simulation(document, HERE)


def test_folder_of_no_run_or_a_short_one_is_refused_by_its_name(tmp_path: Path):
    with pytest.raises(ManifestError, match=r"manifest.yaml: cannot be read"):
        load_simulation(tmp_path)
    with pytest.raises(ManifestError, match="holds 4 measured steps of digits-large-0, of which 10 are needed"):
        load_simulation(run_folder(tmp_path, (100, 100, 100), steps=5))


def test_reference_is_what_models_and_examples_say():
    assert (ROOT / reference.PATH).read_text("utf-8") == reference.render(ROOT)


EXAMPLES = sorted((ROOT / reference.EXAMPLES).glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_read_and_says_what_it_shows(path: Path):
    assert path.read_text("utf-8").startswith("# ")
    simulation = load_simulation(path)
    assert simulation.name == path.stem
    assert simulation.description.endswith(".")


def test_every_law_noise_and_event_has_an_example():
    used = {kind for path in EXAMPLES for kind in kinds_in(yaml.safe_load(path.read_text("utf-8")))}
    known = {kind for each in Choice.__subclasses__() for kind in each.kinds()}
    assert known >= {"affine", "replayed", "ring", "sourceDown"}
    known |= {"multipleOf", "memoryCliff", "penaltyOfLast", "memory", "spread", "startSeconds", "cpuLimit", "manifest"}
    known |= {"sharedNoise"}
    assert known <= used


def kinds_in(node: object) -> Iterator[str]:
    """All keys of a document."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield key
            yield from kinds_in(value)
    elif isinstance(node, list):
        for entry in node:
            yield from kinds_in(entry)


def test_scenario_in_the_guide_is_valid():
    guide = (ROOT / "docs" / "simulate.md").read_text("utf-8")
    (text,) = re.findall(r"```yaml\n(.*?)```", guide, flags=re.DOTALL)
    simulation = parse_simulation(yaml.safe_load(text), HERE)
    assert simulation.name == "jump"
    assert len(simulation.scenario.workers()) == 3
