"""The training script of an emulated worker (`bsp.py --workload emulated`): a tiny model, and waits for compute."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import emulated_law
import torch

import heterotrain
from heterotrain import contract
from heterotrain.workloads import registry

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--samples", type=int, required=True, help="of the data set")
options = parser.parse_args()

share = Path(os.environ[emulated_law.ENV_SHARE])
noise = emulated_law.noise(os.environ[contract.ENV_WORKER])
session = heterotrain.join()
torch.manual_seed(0)
data = registry.load("linear", samples=options.samples)
workload = registry.build("linear", data)
model, optimizer, batches = session.prepare(workload.model, workload.optimizer, data.dataset)

began = time.perf_counter()
for inputs, targets in batches:
    loss = session.scale(workload.criterion(model(inputs), targets))
    # What was really computed since the last step's gradients arrived is a part of the emulated time.
    wanted = emulated_law.seconds(len(inputs), *emulated_law.share(share)) * next(noise)
    time.sleep(max(0.0, began + wanted - time.perf_counter()))
    loss.backward()
    began = time.perf_counter()
    optimizer.step()
    optimizer.zero_grad()
