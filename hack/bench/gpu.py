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
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bsp_setting
import runner
import tables_measured
from runner import BenchmarkError
from table import OWN_POLICY
from tables_measured import ALONE

ROOT = runner.REPOSITORY
POLICIES = ("Uniform", "Static")
PRECISIONS = ("float32", "bfloat16")


def carried(carry: Path) -> None:
    """Let this process and its workers find this repository's packages, and last those that were carried along."""
    packages = [str(ROOT / "operator"), str(ROOT / "trainer-image"), *filter(None, [os.environ.get("PYTHONPATH")])]
    packages.append(str(carry.absolute()))
    os.environ["PYTHONPATH"] = os.pathsep.join(packages)
    sys.path[1:1] = packages[:2]
    sys.path.append(packages[-1])


FLOPS_SIZE = {"cpu": 1024, "cuda": 8192}
"""Rows of the matrices that are multiplied to measure a device."""

FLOPS_SECONDS = 0.5


def flops_here(wanted: str, precision: str, threads: int) -> dict[str, Any]:
    """Floating-point operations per second of a device here, by multiplying matrices; those of data sheets are seldom
    reached, and `Static` needs a figure of each. Without a GPU the CPU stands for it.
    """
    import torch  # noqa: PLC0415  # only the processes that measure need it

    torch.set_num_threads(threads)
    device = torch.device("cuda" if wanted == "gpu" and torch.cuda.is_available() else "cpu")
    size = FLOPS_SIZE[device.type]
    matrix = torch.rand(size, size, device=device, dtype=getattr(torch, precision))

    def multiply() -> None:
        matrix @ matrix
        if matrix.is_cuda:
            torch.cuda.synchronize()

    multiply()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < FLOPS_SECONDS:
        multiply()
        count += 1
    flops = 2 * size**3 * count / (time.perf_counter() - began)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {"device": name, "flops": flops, "torch": torch.__version__}


def measured_flops(device: str, precision: str, threads: int) -> dict[str, Any]:
    """The same in a process of its own. Raises BenchmarkError if torch cannot do it here."""
    words = [sys.executable, __file__, "--flops", device, precision, str(threads)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"{device} in {precision}: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def group(name: str, threads: int, options: argparse.Namespace, **fields: object) -> dict[str, Any]:
    """A worker group of the job."""
    command = bsp_setting.script(options.model, options.width, 16 * options.global_batch)
    return bsp_setting.group(name, command, (1, options.global_batch), threads, **fields)


def manifest(groups: Sequence[dict[str, Any]], policy: str, options: argparse.Namespace) -> dict[str, Any]:
    """The job of these groups."""
    return bsp_setting.job(f"bench-{options.model}", groups, policy, options.global_batch, options.steps)


def trials(job: dict[str, Any], options: argparse.Namespace, compared: Sequence[str] = ()) -> dict[str, Any]:
    """The figures of all trials of a job. Raises BenchmarkError if one fails, and ManifestError if it is refused."""
    import bsp  # noqa: PLC0415  # what it imports may be among what was carried along

    with tempfile.TemporaryDirectory(prefix="heterotrain-gpu-") as folder:
        return bsp.of_manifest(job, compared, options.rounds, Path(folder))


def run(precision: str, options: argparse.Namespace) -> dict[str, Any]:
    """All trials in one precision. Raises BenchmarkError if one fails."""
    gpu_flops, cpu_flops = (measured_flops(device, precision, options.cpu_threads) for device in ("gpu", "cpu"))
    common = {} if precision == PRECISIONS[0] else {"precision": precision}
    device = {"device": "gpu", "onMissingDevice": "UseCPU", "flops": gpu_flops["flops"]}
    gpu = group("gpu", options.gpu_threads, options, replicas=1, **device, **common)
    cpu = group("cpu", options.cpu_threads, options, replicas=options.cpu_workers, flops=cpu_flops["flops"], **common)
    together, alone = manifest((gpu, cpu), OWN_POLICY, options), manifest((gpu,), "Uniform", options)
    before, compared, after = trials(alone, options), trials(together, options, POLICIES), trials(alone, options)
    arms = [*({**arm, "policy": ALONE} for arm in before["arms"]), *compared["arms"]]
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
        **compared,
        "arms": [*arms, *({**arm, "policy": ALONE} for arm in after["arms"])],
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
    carried(options.carry)
    options.out.mkdir(parents=True, exist_ok=True)
    for precision in options.precision or PRECISIONS:
        document = run(precision, options)
        path = options.out / f"{options.model}-{precision}.json"
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(tables_measured.gpu([document]), flush=True)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--flops"]:
        print(json.dumps(flops_here(*sys.argv[2:4], threads=int(sys.argv[4]))))
    else:
        runner.command(main)
