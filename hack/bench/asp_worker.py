"""The training script of `asp_run.py`: a tiny model on real workers and a real server, and waits for compute."""

from __future__ import annotations

import argparse
import time

import torch

import heterotrain
from heterotrain.workloads import registry

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--milliseconds", type=float, required=True, help="of own time for each sample")
options = parser.parse_args()

session = heterotrain.join()
torch.manual_seed(0)
data = registry.load("linear", samples=2000)
workload = registry.build("linear", data)
model, optimizer, batches = session.prepare(workload.model, workload.optimizer, data.dataset)
for inputs, targets in batches:
    began = time.perf_counter()
    session.scale(workload.criterion(model(inputs), targets)).backward()
    time.sleep(max(0.0, began + (10 + options.milliseconds * len(inputs)) / 1e3 - time.perf_counter()))
    optimizer.step()
    optimizer.zero_grad()
