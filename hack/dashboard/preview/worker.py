"""The training script of a worker in the pictures' jobs: a real CNN on handwritten digits, that waits for its compute.

The file that EMULATED_SHARE names says how fast its machine is, so that the real one may be small and busy.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import emulated_law
import torch
from torch import nn

import heterotrain
from heterotrain import contract
from heterotrain.reporting import serving
from heterotrain.workloads.digits import DigitsCNN, digits

# Each pod has an address of its own here, but all are of one machine.
serving.listening = lambda port: socket.create_server((os.environ["POD_IP"], port))


def measure(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, float]:
    """How many of the batch's digits are read correctly."""
    return {"accuracy": float((model(batch[0]).argmax(1) == batch[1]).sum())}


share = Path(os.environ[emulated_law.ENV_SHARE])
noise = emulated_law.noise(os.environ[contract.ENV_WORKER])
session = heterotrain.join()
torch.manual_seed(0)
torch.set_num_threads(1)
model = DigitsCNN(8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
model, optimizer, batches = session.prepare(model, optimizer, digits())
session.evaluate(digits(train=False), measure, every_steps=20)

began = time.perf_counter()
for images, labels in batches:
    loss = session.scale(nn.functional.cross_entropy(model(images), labels))
    wanted = emulated_law.seconds(len(images), *emulated_law.share(share)) * next(noise)
    time.sleep(max(0.0, began + wanted - time.perf_counter()))
    loss.backward()
    began = time.perf_counter()
    optimizer.step()
    optimizer.zero_grad()
