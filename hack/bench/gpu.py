"""How fast one GPU and several CPU workers train together, by policy, beside the GPU alone.

    python hack/bench/gpu.py --out out/bench/gpu

It runs on any machine with Python 3.11 or newer and torch 2.6 or newer. What the command needs beside these is looked
for in `--carry`, the folder that `carry.py` fills elsewhere. Without a GPU its worker uses the CPU
(`onMissingDevice: UseCPU`), and the results say so: they show that the benchmark runs, and nothing else.

The workers have no CPU limits but a number of threads each, together no more than the machine has cores. The GPU alone
has the same global batch; it runs before and after the policies.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "train_workload.py"
BAD_INPUT = 2

OWN_POLICY = "Optimal"
POLICIES = ("Uniform", "Static")
ALONE = "GPU alone"
PRECISIONS = ("float32", "bfloat16")

TRIAL_FIGURES = (
    "round",
    "steps",
    "samples_per_second",
    "iteration_seconds",
    "adjustments",
    "restarts",
    "final_loss",
    "ceiling_seconds",
    "ceiling_fraction",
    "ceiling_fraction_all",
)
"""As `heterotrain run --json` has them."""


class BenchmarkError(Exception):
    """It cannot be measured here; the text says why."""


def environment(carry: Path) -> dict[str, str]:
    """With this repository's packages, and last those that were carried along."""
    packages = [ROOT / "operator", ROOT / "trainer-image", os.environ.get("PYTHONPATH", ""), carry.absolute()]
    return os.environ | {"PYTHONPATH": os.pathsep.join(str(each) for each in packages if str(each))}


def measured_flops(device: str, precision: str, threads: int, variables: Mapping[str, str]) -> dict[str, Any]:
    """What flops.py says. Raises BenchmarkError if torch cannot do it here."""
    words = [sys.executable, str(ROOT / "hack" / "bench" / "flops.py"), device, precision, str(threads)]
    done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"{device} in {precision}: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def group(name: str, threads: int, options: argparse.Namespace, **fields: object) -> dict[str, Any]:
    """A worker group of the job."""
    command = ["python", str(SCRIPT), "--model", options.model, "--samples", str(16 * options.global_batch)]
    command += [] if options.width is None else ["--width", str(options.width)]
    variables = [{"name": "OMP_NUM_THREADS", "value": str(threads)}]
    container = {"name": "trainer", "image": "none", "command": command, "env": variables}
    return {
        "name": name,
        "batchSize": {"min": 1, "max": options.global_batch},
        "template": {"spec": {"containers": [container]}},
        **fields,
    }


def manifest(groups: Sequence[Mapping[str, Any]], policy: str, options: argparse.Namespace) -> dict[str, Any]:
    """The job of these groups."""
    return {
        "apiVersion": "heterotrain.dev/v1alpha1",
        "kind": "HeteroTrainingJob",
        "metadata": {"name": f"bench-{options.model}"},
        "spec": {
            "workerGroups": list(groups),
            "training": {"globalBatchSize": options.global_batch, "steps": options.steps, "seed": 7},
            "batching": {"policy": policy},
            "runPolicy": {"backoffLimit": 0},
        },
    }


def command(job: Mapping[str, Any], variables: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """The command on a job, with its standard output."""
    with tempfile.TemporaryDirectory(prefix="heterotrain-gpu-") as folder:
        path = Path(folder) / "job.yaml"
        path.write_text(json.dumps(job), encoding="utf-8")  # JSON is YAML
        return subprocess.run(
            [sys.executable, "-m", "heterotrain_operator.cli.main", words[0], str(path), *words[1:]],
            cwd=ROOT,
            env=dict(variables),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )


def summary_of(job: Mapping[str, Any], variables: Mapping[str, str], *words: str) -> dict[str, Any]:
    """What `heterotrain run --json` says of a job. Raises BenchmarkError if it does not succeed."""
    done = command(job, variables, "run", "--json", *words)
    if done.returncode:
        raise BenchmarkError(f"heterotrain run ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def trials_of_summary(summary: Mapping[str, Any], name: str | None = None) -> list[dict[str, Any]]:
    """The trials' figures; `name` stands instead of the policy's."""
    return [
        {"policy": name or trial["policy"], **{figure: trial[figure] for figure in TRIAL_FIGURES}}
        | {"batches": [worker["batch"] for worker in trial["worker"]]}
        for trial in summary["arms"]
    ]


def run(precision: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """All trials in one precision; None if this version's jobs cannot have it. Raises BenchmarkError if one fails."""
    variables = environment(options.carry)
    gpu_flops = measured_flops("gpu", precision, options.cpu_threads, variables)
    cpu_flops = measured_flops("cpu", precision, options.cpu_threads, variables)
    common = {} if precision == PRECISIONS[0] else {"precision": precision}
    gpu = group(
        "gpu",
        options.gpu_threads,
        options,
        replicas=1,
        device="gpu",
        onMissingDevice="UseCPU",
        flops=gpu_flops["flops"],
        **common,
    )
    cpu = group("cpu", options.cpu_threads, options, replicas=options.cpu_workers, flops=cpu_flops["flops"], **common)
    together, alone = manifest((gpu, cpu), OWN_POLICY, options), manifest((gpu,), "Uniform", options)
    if command(together, variables, "validate").returncode == BAD_INPUT:
        return None
    rounds = ("--rounds", str(options.rounds))
    before = summary_of(alone, variables, *rounds)
    compared = summary_of(together, variables, *rounds, "--compare", ",".join(POLICIES))
    after = summary_of(alone, variables, *rounds)
    is_gpu = gpu_flops["device"] != cpu_flops["device"]
    return {
        "benchmark": "gpu",
        "workload": options.model,
        "width": options.width,
        "precision": precision,
        "global_batch": options.global_batch,
        "steps": options.steps,
        "rounds": options.rounds,
        "device": gpu_flops["device"] if is_gpu else "CPU (there is no GPU here: onMissingDevice UseCPU)",
        "has_gpu": is_gpu,
        "cpu_workers": options.cpu_workers,
        "cpu_threads": options.cpu_threads,
        "flops": {"gpu": gpu_flops["flops"], "cpu": cpu_flops["flops"]},
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "torch": gpu_flops["torch"],
        },
        "arms": [*trials_of_summary(before, ALONE), *trials_of_summary(compared), *trials_of_summary(after, ALONE)],
        "ceilings": [{"limits": "", "ceilings": compared["ceilings"]}],
        "warnings": compared["warnings"],
    }


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command's options."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description="Compare policies on one GPU and several CPU workers.")
    parser.add_argument("--model", default="resnet18", help="a bundled workload (resnet18)")
    parser.add_argument("--width", type=int, help="of the model (its own)")
    parser.add_argument("--global-batch", type=int, default=512, help="samples of a step (512)")
    parser.add_argument("--steps", type=int, default=120, help="of each run (120)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of every policy (3)")
    parser.add_argument("--cpu-workers", type=int, default=3, help="beside the GPU (3)")
    parser.add_argument("--cpu-threads", type=int, help="of each CPU worker (what the machine has beside the GPU's)")
    parser.add_argument("--gpu-threads", type=int, default=1, help="of the GPU's worker (1)")
    parser.add_argument("--precision", action="append", choices=PRECISIONS, help="again for several (all)")
    parser.add_argument("--carry", type=Path, default=ROOT / "out" / "carry", help="packages (out/carry)")
    parser.add_argument("--out", type=Path, default=Path("out/bench/gpu"), help="folder of results (out/bench/gpu)")
    options = parser.parse_args(arguments)
    if min(options.global_batch, options.steps, options.rounds, options.cpu_workers, options.gpu_threads) < 1:
        parser.error("all numbers must be at least 1")
    if options.cpu_threads is None:
        options.cpu_threads = max(1, (cores - options.gpu_threads - 1) // options.cpu_workers)
    return options


def main(arguments: Sequence[str]) -> int:
    """Run every precision and keep its figures. Raises BenchmarkError if one fails."""
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    for precision in options.precision or PRECISIONS:
        document = run(precision, options)
        if document is None:
            print(f"{precision}: left out, since jobs are refused with it (above)", file=sys.stderr)
            continue
        path = options.out / f"{options.model}-{precision}.json"
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"{precision}: {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BenchmarkError as error:
        sys.exit(f"gpu: {error}")
