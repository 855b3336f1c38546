"""What a training step of one worker takes by its batch, beside the lines of LB-BSP's figures 1 and 4.

    .venv/bin/python hack/bench/by_batch.py --out hack/bench/results/papers/by-batch-cpu.json
    .venv/bin/python hack/bench/by_batch.py --device cuda --width 64 --out hack/bench/results/papers/by-batch-gpu.json

On a CPU it is CPU time of one thread, which other processes change least; on a GPU it is time on its clock.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

import runner
import tables_papers
import torch
from torch.utils.data import default_collate

from heterotrain.workloads.registry import Workload, build, default_data, load

MODELS = ("resnet18", "vgg11", "gpt")
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
UNMEASURED = 2


@dataclass(frozen=True, slots=True)
class Curve:
    """Median seconds of a step, in the order of `batches`."""

    model: str
    batches: tuple[int, ...]
    seconds: tuple[float, ...]


def curve(model: str, width: int, device: str, steps: int) -> Curve:
    """Steps of all batches in turn, so that what else the machine does is shared by all."""
    torch.manual_seed(0)
    data = load(default_data(model), samples=max(BATCHES))
    workload = build(model, data, width=width)
    workload.model.to(device)
    inputs, targets = (part.to(device) for part in default_collate([data.dataset[i] for i in range(max(BATCHES))]))
    found: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    for step in range(UNMEASURED + steps):
        for batch in BATCHES:
            seconds = _step(workload, inputs[:batch], targets[:batch])
            if step >= UNMEASURED:
                found[batch].append(seconds)
    return Curve(model, BATCHES, tuple(median(each) for each in found.values()))


def _step(workload: Workload, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    on_gpu = inputs.is_cuda
    if on_gpu:
        torch.cuda.synchronize()
    began = time.perf_counter() if on_gpu else time.process_time()
    workload.criterion(workload.model(inputs), targets).backward()
    workload.optimizer.step()
    workload.optimizer.zero_grad()
    if on_gpu:
        torch.cuda.synchronize()
    return (time.perf_counter() if on_gpu else time.process_time()) - began


def main(arguments: Sequence[str]) -> int:
    """Measure all models and print."""
    parser = argparse.ArgumentParser(description="Measure what a step takes by its batch.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--width", type=int, default=8, help="of the models' smallest layer (8)")
    parser.add_argument("--steps", type=int, default=10, help="of each batch (10)")
    options = runner.options_of(parser).parse_args(arguments)
    if min(options.width, options.steps) < 1:
        parser.error("--width and --steps must be at least 1")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise runner.BenchmarkError("--device cuda: there is no GPU here")
    torch.set_num_threads(1)
    document = {
        "benchmark": "by_batch",
        "device": options.device,
        "machine": runner.machine(),
        "curves": [asdict(curve(model, options.width, options.device, options.steps)) for model in MODELS],
    }
    runner.report(document, tables_papers.by_batch([document]), options)
    return 0


if __name__ == "__main__":
    runner.command(main)
