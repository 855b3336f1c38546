"""The benchmark of verdicts, in short: no healthy worker is named, and one that is slowed is named soon."""

import json

import pytest
import stragglers


@pytest.mark.parametrize("noise", stragglers.NOISES)
def test_no_healthy_worker_is_named_on_clusters_that_are_unequal_by_design(noise: str) -> None:
    [healthy] = [scenario for scenario in stragglers.SCENARIOS if scenario.name == "healthy"]
    counts = stragglers.Counts()
    for seed in range(5):
        stragglers.play(healthy, stragglers.World(8, "ExpectedTime", noise, 0.10, seed), 300, counts)
    assert (counts.runs, counts.wrong) == (5, 0)


def test_slowed_worker_is_named_within_ten_intervals_and_a_resized_one_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    only = ["slowed 2x", "halved, binding", "doubled, binding"]
    options = ["--runs", "3", "--steps", "400", "--only", *only, "--rule", "ExpectedTime", "--json"]
    stragglers.main(options)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    independent = [row for row in rows if "independent" in row["title"] and "together" not in row["scenario"]]
    assert len(independent) == 3
    assert all((row["wrong"], row["late"]) == (0, 0) for row in independent)


def test_paper_s_rule_names_healthy_workers(capsys: pytest.CaptureFixture[str]) -> None:
    stragglers.main(["--runs", "2", "--steps", "300", "--only", "healthy", "--rule", "MedianThroughput", "--json"])
    assert all(json.loads(line)["wrong"] == 2 for line in capsys.readouterr().out.splitlines())
