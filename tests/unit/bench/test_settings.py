"""What benchmarks run: every setting is a valid job or scenario, and the same one again."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from statistics import fmean

import bsp
import emulated_law
import gpu
import pytest
import scaling
import stragglers
import taming
from bsp_emulated import Emulated
from bsp_setting import CHANGING, WORKLOADS, Setting, limits
from simulated_scenarios import by_name, cases

from heterotrain_operator.api import parse_manifest


@pytest.mark.parametrize("level", [1, 2, 4, 8])
def test_levels_keep_the_total_and_their_ratio(level: int) -> None:
    cores = limits(level, 1.5)
    assert sum(cores) == pytest.approx(1.5, abs=1e-3)
    assert max(cores) / min(cores) == pytest.approx(level, rel=1e-3)


@pytest.mark.parametrize("level", bsp.LEVELS)
@pytest.mark.parametrize("model", ["svm", "emulated"])
def test_a_setting_is_an_experiment_that_compares_its_policies_between_profiles(
    model: str, level: str, tmp_path: Path
) -> None:
    setting = Setting(WORKLOADS[model], level, 1.5, 100, 2)
    wanted = bsp.experiment(setting, tmp_path)
    trained = [trial.policy for trial in wanted.trials if not trial.is_profile]
    assert sorted(trained) == sorted(2 * ["Optimal", *setting.compared])
    assert [trial.is_profile for trial in (wanted.trials[0], wanted.trials[-1])] == [True, True]
    assert len(wanted.schedule.changes) == CHANGING.get(level, 0)
    assert bsp.experiment(setting, tmp_path).schedule == wanted.schedule


def test_an_emulated_worker_has_what_its_limits_and_neighbours_leave_it(tmp_path: Path) -> None:
    own = Emulated(tmp_path).create("w1", 0.5, None, "1-2-3-4")
    own.set_neighbours(2, None)
    assert emulated_law.share(Path(own.environment[emulated_law.ENV_SHARE])) == (0.5, 2)
    assert emulated_law.seconds(32, 0.25) == emulated_law.seconds(32, 0.5, neighbours=1) > emulated_law.seconds(32, 0.5)
    first, again = (list(islice(emulated_law.noise("w1"), 4000)) for _ in range(2))
    assert first == again
    assert fmean(first) == pytest.approx(1, abs=0.005)


def test_gpu_jobs_are_valid() -> None:
    options = gpu.parse(["--width", "8", "--cpu-workers", "2"])
    groups = [gpu.group("gpu", 1, options, replicas=1, device="gpu", onMissingDevice="UseCPU", flops=1e12)]
    groups += [gpu.group("cpu", 2, options, replicas=2, flops=1e10)]
    assert parse_manifest(gpu.manifest(groups, "Static", options)).spec.total_replicas == 3


def test_every_simulated_case_is_a_scenario_of_any_number_of_workers() -> None:
    assert len(by_name()) == len(cases())
    for case in cases():
        for workers in (3, 8, 32):
            scenario = case.scenario(workers, "Optimal", 1)
            assert len(scenario.workers()) == workers
            known = {group.cpu_limit is not None for group in scenario.job.groups}
            assert known == {case.limits}, "limits are stated only where they are what it is about"


def test_a_gpu_and_a_cpu_share_the_batch_by_their_flops() -> None:
    run = taming.play(taming.Setting("MNIST", "mixed", "Static", "Static", 0.05, 0.0, 0, 400))
    assert run.batches == (104, 24), "0.813 : 0.187, in whole samples"
    assert run.step_seconds == pytest.approx(run.oracle_seconds)


def test_a_search_from_all_workers_ends_where_the_paper_does_and_as_soon() -> None:
    run = scaling.cifar(24, 0.0, 0, 300)
    assert (run.size, run.tried) == ((4,), 6)
    assert run.rest_seconds is not None
    assert run.rest_seconds <= 78.4
    assert (run.seconds, run.cost) < scaling.stays("cifar", 24)
    assert scaling.drawn(3) == scaling.drawn(3)


def test_every_case_of_stragglers_is_a_scenario_that_its_seed_settles() -> None:
    for case in stragglers.CASES:
        setting = stragglers.Setting(case.name, 8, "ExpectedTime", "AR(.9)", 0.1, 300, 0)
        assert stragglers.prepared(setting) == stragglers.prepared(setting)
