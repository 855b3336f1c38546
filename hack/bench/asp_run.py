"""Three unequal workers that train asynchronously for real: how often their updates come, and how stale these are.

    .venv/bin/python hack/bench/asp_run.py --out hack/bench/results/asp/run.json

The operator's loop, the parameter server, the workers and the transport are the real ones. The workers wait instead of
computing, 1, 2 and 4 ms for each sample, so that they are unequal whatever else this machine does. Figures are those of
the second half of the updates, as the server has recorded them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import runner
import tables_asp
import yaml

SCRIPT = runner.REPOSITORY / "hack" / "bench" / "asp_worker.py"
MILLISECONDS: Mapping[str, float] = {"fast": 1.0, "medium": 2.0, "slow": 4.0}
GLOBAL_BATCH = 96
POLICIES = ("Uniform", "PapersProportional", "Optimal")
LONGEST_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: updates and seconds in all; of the second half of the updates, those of each worker, how many versions
    they were stale in the mean and at most; how often batches were adjusted, and the last ones."""

    policy: str
    updates: int
    seconds: float
    late_updates: dict[str, int]
    staleness: float
    stalest: int
    adjustments: int
    batches: list[int]


def manifest(policy: str, updates: int) -> dict[str, Any]:
    """The job."""

    def template(milliseconds: float) -> dict[str, Any]:
        command = ["python", str(SCRIPT), "--milliseconds", str(milliseconds)]
        return {"spec": {"containers": [{"name": "trainer", "image": "local", "command": command}]}}

    groups = [
        {"name": name, "replicas": 1, "batchSize": {"min": 4, "max": 88}, "template": template(milliseconds)}
        for name, milliseconds in MILLISECONDS.items()
    ]
    return {
        "apiVersion": "heterotrain.dev/v1alpha1",
        "kind": "HeteroTrainingJob",
        "metadata": {"name": "asp"},
        "spec": {
            "workerGroups": groups,
            "parameterServer": {},
            "training": {"mode": "ASP", "globalBatchSize": GLOBAL_BATCH, "steps": updates, "seed": 7},
            "batching": {"policy": policy, "initial": "Uniform"},
        },
    }


def play(policy: str, updates: int) -> Outcome:
    """Run it once. Raises BenchmarkError if it does not end well."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "job.yaml", Path(folder) / "out"
        path.write_text(yaml.safe_dump(manifest(policy, updates)), encoding="utf-8")
        command = [sys.executable, "-m", "heterotrain_operator.cli.main", "run", str(path), "--out", str(out), "--json"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)
        if ended.returncode:
            raise runner.BenchmarkError(f"{policy}: exit code {ended.returncode}: {ended.stderr[-2000:]}")
        arm = json.loads(ended.stdout)["arms"][0]
        lines = [
            json.loads(line)
            for file in out.glob("arms/*/workers/*server*/*.jsonl")
            for line in file.read_text(encoding="utf-8").splitlines()
        ]
    applied = [line for line in lines if "staleness" in line]
    late = applied[len(applied) // 2 :]
    return Outcome(
        policy,
        len(applied),
        round(arm["seconds"], 2),
        dict(sorted(Counter(line["worker"] for line in late).items())),
        round(fmean(line["staleness"] for line in late), 2),
        max(line["staleness"] for line in late),
        arm["adjustments"],
        [worker["batch"] for worker in arm["worker"]],
    )


def main(arguments: Sequence[str]) -> int:
    """Run all and print."""
    parser = argparse.ArgumentParser(description="Train three unequal workers asynchronously.")
    parser.add_argument("--updates", type=int, default=900, help="of each run (900)")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="again for several (all)")
    options = runner.options_of(parser).parse_args(arguments)
    document = {
        "benchmark": "asp_run",
        "emulated": "workers wait instead of computing",
        "milliseconds": dict(MILLISECONDS),
        "machine": runner.machine(),
        "outcomes": [asdict(play(policy, options.updates)) for policy in options.policy or POLICIES],
    }
    runner.report(document, tables_asp.real([document]), options)
    return 0


if __name__ == "__main__":
    runner.command(main)
