"""The benchmarks' arithmetic and tables; that they run is shown by running them."""

import json
from itertools import islice, pairwise
from pathlib import Path
from statistics import correlation, fmean, stdev
from typing import Any

import bsp
import bsp_setting
import carry
import emulated_law
import gpu
import pytest
import table
import torch
import weighting
import yaml
from bsp_emulated import DESCRIPTION, Emulated
from bsp_figures import TRIAL_FIGURES, common_loss, figures, settled_fraction
from bsp_setting import (
    CHANGING,
    DYNAMIC,
    INTERFERENCE,
    WORKLOADS,
    Cost,
    Setting,
    expected_seconds,
    limits,
    manifest,
    schedule,
)

from heterotrain_operator.api import parse_manifest, to_core
from heterotrain_operator.experiments.figures.ceiling import MeasuredCeiling
from heterotrain_operator.experiments.figures.history import LimitChange, TrialHistory
from heterotrain_operator.experiments.schedules.schedule_file import load_schedule
from heterotrain_operator.experiments.trials.trial import limits_of
from unit.experiments.histories import FAST, SLOW, history, joined


@pytest.mark.parametrize("level", [1, 2, 4, 8])
def test_levels_keep_the_total_and_their_ratio(level: int):
    cores = limits(level, 1.5)
    assert sum(cores) == pytest.approx(1.5, abs=1e-3)
    assert max(cores) / min(cores) == pytest.approx(level, rel=1e-3)
    assert max(cores) <= 1


@pytest.mark.parametrize("machine", [2, 4, 64])
def test_no_worker_has_more_cores_than_it_can_use(machine: int):
    assert bsp_setting.spare_cores(machine) == 1.5


@pytest.mark.parametrize("model", WORKLOADS)
def test_every_setting_is_a_valid_job_with_its_schedule(model: str, tmp_path: Path):
    setting = Setting(WORKLOADS[model], DYNAMIC, 1.5, 300, 3)
    job = to_core(parse_manifest(manifest(setting)))
    path = tmp_path / "schedule.yaml"
    path.write_text(yaml.safe_dump(schedule(setting)), "utf-8")
    found = load_schedule(path, job, limits_of(job))
    assert [level.label for level in found.levels] == ["HL1", "HL2", "HL4", "HL8"]
    assert [(change.at, change.level) for change in found.changes] == [(0, 0), (60, 1), (120, 2), (180, 3), (240, 0)]


@pytest.mark.parametrize("model", ["cnn", "emulated"])
def test_interference_is_a_recorded_schedule_of_neighbours_at_unchanged_limits(model: str, tmp_path: Path):
    setting = Setting(WORKLOADS[model], INTERFERENCE, 1.5, 5 * 40, 3)
    job = to_core(parse_manifest(manifest(setting)))
    path = tmp_path / "schedule.yaml"
    path.write_text(yaml.safe_dump(schedule(setting)), "utf-8")
    found = load_schedule(path, job, limits_of(job))
    assert {tuple(level.limits.values()) for level in found.levels} == {(0.375,) * 4}
    assert [change.at for change in found.changes] == [0, 40, 80, 120, 160]
    busy = [found.levels[change.level].neighbours for change in found.changes]
    assert [list(each.values()) for each in busy] == [[], [1], [1], [], [1]]
    assert busy[1] != busy[2]
    assert busy[1] == busy[4], "that level is profiled once"
    assert schedule(setting) == schedule(setting), "one seed gives one schedule"


def test_what_neighbours_take_counts_in_how_long_a_setting_takes():
    cost = Cost(start_core_seconds=8.0, sample_core_seconds=0.001)
    quiet, busy = bsp_setting.interference(1)[:2]
    assert sorted(busy.cores(1.5)) == [0.1875, *[0.375] * 3]
    assert set(quiet.cores(1.5)) == {0.375}
    seconds = [expected_seconds(Setting(WORKLOADS["cnn"], level, 1.5, 100, 1), cost) for level in ("1", INTERFERENCE)]
    assert seconds[0] < seconds[1]


def test_an_emulated_worker_has_what_its_limits_and_neighbours_leave_it(tmp_path: Path):
    limits = Emulated(tmp_path).create("w1", 0.5, None, "1-2-3-4")
    file = Path(limits.environment[emulated_law.ENV_SHARE])
    assert emulated_law.share(file) == (0.5, 0)
    limits.set_cores(0.25)
    limits.set_neighbours(2, None)
    assert emulated_law.share(file) == (0.25, 2)
    limits.set_cores(None)
    assert emulated_law.share(file) == (1.0, 2)
    assert limits.remove()


def test_emulated_time_grows_with_the_batch_and_with_what_others_take():
    alone = emulated_law.seconds(32, 0.5)
    assert alone < emulated_law.seconds(33, 0.5) < emulated_law.seconds(32, 0.5, neighbours=1)
    assert emulated_law.seconds(32, 0.25) == emulated_law.seconds(32, 0.5, neighbours=1)
    assert alone < emulated_law.seconds(32, 0.25) < 2 * alone, "a part of it is the same for all"


def test_emulated_noise_is_the_same_in_every_trial_and_has_a_mean_of_one():
    first, again, other = (list(islice(emulated_law.noise(name), 4000)) for name in ("w1", "w1", "w2"))
    assert first == again != other
    assert fmean(first) == pytest.approx(1, abs=0.005)
    assert stdev(first) == pytest.approx(emulated_law.VARIATION, rel=0.1)
    assert correlation(first[1:], first[:-1]) == pytest.approx(emulated_law.CORRELATION, abs=0.06)


def test_more_rounds_and_more_unequal_workers_take_longer():
    cost = Cost(start_core_seconds=8.0, sample_core_seconds=0.001)

    def seconds(level: str, rounds: int) -> float:
        return expected_seconds(Setting(WORKLOADS["cnn"], level, 1.5, 100, rounds), cost)

    assert seconds("1", 1) < seconds("8", 1) < seconds("8", 3)


def test_every_combination_is_a_setting_with_a_file_of_its_own():
    wanted = bsp.settings(bsp.parse(["--cores", "1.5", "--phase-steps", "10"]))
    assert len({each.name for each in wanted}) == len(wanted) == (len(WORKLOADS) - 1) * len(bsp.LEVELS)
    assert {each.steps for each in wanted if each.is_changing} == {50}
    assert not any(each.workload.emulated for each in wanted), "emulated workers are asked for by name"


def test_the_common_loss_is_one_that_every_arm_reached():
    low, high = history(20, (32, 32), (1.0, 1.0), loss=0.5), history(20, (32, 32), (1.0, 1.0), loss=0.7)
    assert common_loss([joined(low), joined(high)]) == pytest.approx(0.7)
    assert common_loss([joined(history(5, (32, 32), (1.0, 1.0)))]) is None


def test_figures_leave_out_the_warm_up():
    slow = history(20, (32, 32), (1.5, 1.5))
    fast = history(20, (32, 32), (0.5, 0.5), first=20, began=1000.0 + 20 * 2.0)
    trial = {"policy": "Optimal", "round": 1, "worker": [{"name": FAST, "batch": 40}, {"name": SLOW, "batch": 24}]}
    trial |= dict.fromkeys(set(TRIAL_FIGURES) - trial.keys())
    summary = {"arms": [trial], "levels": [], "ceilings": []}
    trained = TrialHistory("Optimal", 1, joined(slow, fast), 0, "Succeeded", "")
    found = figures(summary, {("Optimal", 1): trained}, [], 20)
    assert found["arms"][0]["samples_per_second"] == pytest.approx(64.0)
    assert found["arms"][0]["batches"] == [40, 24]
    assert found["arms"][0]["target_seconds"] == 18.0  # ten steps of 2 s: the loss never changes
    assert found["arms"][0]["ceiling_fraction_settled"] is None


def test_settled_steps_are_those_after_the_last_adjustment_of_each_phase():
    even, uneven = (32, 32), (48, 16)
    records = [
        history(10, even, (1.0, 2.0)),
        history(10, uneven, (1.5, 1.0), first=10, began=1030.0),
        history(10, uneven, (3.0, 1.0), first=20, began=1060.0),
    ]
    change = LimitChange(1060.0, 20, 1, "slower", {})
    steps = joined(*records)
    trial = TrialHistory("Optimal", 1, steps, 1, "Succeeded", "", changes=(change,))
    ceilings = [{64: MeasuredCeiling(64, {}, 1.0, seconds)} for seconds in (1.2, 2.5)]
    taken = [after.seconds - before.seconds for before, after in pairwise(steps)]
    best = 9 * 1.2 + 9 * 2.5
    assert settled_fraction(trial, ceilings) == pytest.approx(best / (sum(taken[10:19]) + sum(taken[20:])))


@pytest.mark.parametrize("level", ["2", *CHANGING])
def test_a_setting_is_an_experiment_that_compares_all_its_policies_between_profiles(level: str, tmp_path: Path):
    setting = Setting(WORKLOADS["svm"], level, 1.5, 100, 2)
    wanted = bsp.experiment(setting, tmp_path)
    trained = [trial.policy for trial in wanted.trials if not trial.is_profile]
    assert sorted(trained) == sorted(2 * [bsp_setting.OWN_POLICY, *setting.compared])
    assert [trial.is_profile for trial in (wanted.trials[0], wanted.trials[-1])] == [True, True]
    assert len(wanted.schedule.changes) == CHANGING.get(level, 0)


def document(level: str = "8", **trials: float) -> dict[str, Any]:
    return {
        "benchmark": "bsp",
        "workload": "resnet18",
        "level": level,
        "rounds": 1,
        "steps": 90,
        "machine": {"cores": 2, "python": "3.11", "torch": "2.13", "limits": "by cgroups"},
        "warnings": ["the machine was in use"],
        "arms": [
            {
                "policy": policy,
                "round": 1 + index // 2,
                "samples_per_second": value + index % 2,
                "iteration_seconds": 0.1,
                "target_seconds": 1000 / value,
                "ceiling_fraction": 0.9,
                "ceiling_fraction_all": None,
                "phases": [],
            }
            for policy, value in trials.items()
            for index in (0, 1)
        ],
    }


def test_table_has_medians_spreads_and_what_the_papers_say():
    found = table.rendered([document(Uniform=100.0, Optimal=250.0)], "bsp")
    assert "| resnet18 | 8 | Optimal | 250 (250..251) | 100 ms | 90% | - | - | 4.0 s | 60% |" in found
    assert "cores alone: at most 3x" in found
    assert "* Goal" not in found, "nothing is said of what was not measured"
    assert "Doubtful, resnet18 8: the machine was in use" in found
    assert "Runs of each trial: 1 x 90 steps." in found


def test_goals_stand_beside_what_was_reached():
    measured = document(Uniform=100.0, Optimal=250.0)
    for trial in measured["arms"]:
        trial |= {"ceiling_fraction_all": 0.89, "ceiling_fraction_settled": 0.975}
    found = table.rendered([measured], "bsp")
    assert "* Goal of 90% of the ceiling over all steps, resnet18 8: missed, 89%." in found
    assert "* Goal of 97% of the ceiling over settled steps, resnet18 8: reached, 98%." in found


def test_emulated_figures_say_so():
    measured = document(Uniform=100.0) | {"emulated": DESCRIPTION, "workload": "emulated"}
    assert "Emulated, no measure of compute: emulated 8." in table.rendered([measured], "bsp")


def simulated_row(case: str, policy: str, settled: float | None, off: int = 0) -> dict[str, object]:
    return {
        "case": case,
        "workers": 8,
        "policy": policy,
        "seeds": 10,
        "settled": settled,
        "plans_per_100": 2.0,
        "close_after": 1,
        "off": off,
    }


def test_policies_are_compared_over_the_scenarios_that_all_of_them_have_figures_of():
    rows = [
        simulated_row("affine", "Uniform", 2.0, off=10),
        simulated_row("affine", "Optimal", 1.0),
        simulated_row("jump", "Uniform", 8.0, off=10),
        simulated_row("jump", "Optimal", 1.21, off=3),
        simulated_row("deadlock", "Uniform", None),
        simulated_row("deadlock", "Optimal", 3.0),
    ]
    found = table.rendered([{"benchmark": "simulated", "seeds": 10, "rows": rows, "goals": []}], "policies")
    assert "| 8 | Uniform | 4.000 | 8.000 | jump | 0 of 2 | 20 of 20 | 2.0 |" in found
    assert "| 8 | Optimal | 1.100 | 1.210 | jump | 1 of 2 | 3 of 20 | 2.0 |" in found
    assert found.endswith("Simulated; 8 workers: 2 scenarios, 10 seeds each.")


def test_policies_that_have_no_scenario_in_common_are_not_compared():
    rows = [simulated_row("deadlock", "Uniform", None), simulated_row("deadlock", "Optimal", 3.0)]
    found = table.rendered([{"benchmark": "simulated", "seeds": 10, "rows": rows, "goals": []}], "policies")
    assert "| 8 |" not in found


def test_a_table_of_anothers_results_is_no_name_of_a_benchmark(tmp_path: Path):
    path = tmp_path / "policies.json"
    path.write_text('{"benchmark": "policies"}', "utf-8")
    with pytest.raises(ValueError, match="is no result of a benchmark"):
        table.read([path])


def test_tables_in_a_page_are_replaced_and_the_rest_stays(tmp_path: Path):
    page = tmp_path / "page.md"
    marks = "before\n<!-- table: bsp -->\nold\n<!-- end -->\nafter\n<!-- table: gpu -->\n<!-- end -->\n"
    page.write_text(marks, "utf-8")
    results = tmp_path / "results"
    results.mkdir()
    (results / "a.json").write_text(json.dumps(document(Uniform=100.0)), "utf-8")
    assert table.main([str(results), "--write", str(page)]) == 0
    once = page.read_text()
    assert once.startswith("before\n")
    assert "old" not in once
    assert once.endswith(f"after\n<!-- table: gpu -->\n\n{table.NOTHING}\n\n<!-- end -->\n")
    table.main([str(results), "--write", str(page)])
    assert page.read_text() == once


def test_a_file_that_is_no_result_is_refused(tmp_path: Path):
    path = tmp_path / "other.json"
    path.write_text("{}", "utf-8")
    with pytest.raises(ValueError, match="is no result of a benchmark"):
        table.read([path])


@pytest.mark.parametrize("level", [2, 4, 8])
@pytest.mark.parametrize("split", weighting.SPLITS)
def test_workers_have_parts_that_last_equally_long(level: int, split: str):
    labels = torch.arange(1000) % 10
    sizes = weighting.batches(level, 96)
    parts = weighting.parts(labels, sizes, split, torch.Generator().manual_seed(0))
    assert sum(sizes) == 96
    assert [len(part) for part in parts] == [10 * size for size in sizes]
    assert len(set(torch.cat(parts).tolist())) == 960
    kinds = [len(set(labels[part].tolist())) for part in parts]
    assert (min(kinds) == 10) == (split == "random")


def test_weights_sum_to_one_and_the_plain_mean_ignores_batches():
    assert weighting.weights((10, 30), weighting.WEIGHTED) == (0.25, 0.75)
    assert weighting.weights((10, 30), weighting.PLAIN) == (0.5, 0.5)


def test_weighting_is_reported_after_some_epochs_and_at_the_end():
    outcomes = [
        {"level": 8, "split": "by label", "rule": rule, "seed": seed, "accuracies": [0.1, low + seed / 100, 0.9]}
        for rule, low in (("weighted", 0.8), ("plain", 0.6))
        for seed in (0, 1, 2)
    ]
    machine = {"python": "3.11", "torch": "2.13"}
    document = {"benchmark": "weighting", "epochs": 3, "outcomes": outcomes, "machine": machine}
    found = table.rendered([document], "weighting")
    assert "| HL8 | by label | 2 | 81.0% (80.0%..82.0%) | 61.0% (60.0%..62.0%) | +20.0 |" in found
    assert "| HL8 | by label | 3 | 90.0% | 90.0% | +0.0 |" in found


def test_only_the_newest_schemas_are_carried():
    assert carry.version_in("v1.9.0-local") < carry.version_in("v1.37.0-local-strict")


def test_gpu_jobs_are_valid():
    options = gpu.parse(["--width", "8", "--cpu-workers", "2"])
    groups = [gpu.group("gpu", 1, options, replicas=1, device="gpu", onMissingDevice="UseCPU", flops=1e12)]
    groups += [gpu.group("cpu", 2, options, replicas=2, flops=1e10)]
    assert parse_manifest(gpu.manifest(groups, "Static", options)).spec.total_replicas == 3
