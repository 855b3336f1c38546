"""A script with BatchNorm on its inputs; notes what its forward computes in and what travels to the other workers."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Subset

import heterotrain
from heterotrain.groups.generation import Generation
from heterotrain.workloads.digits import digits

out, samples, momentum = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
computed: set[str] = set()
travelled: set[str] = set()
sum_gradients = Generation.sum_gradients


def noted_sum(generation: Generation, tensor: torch.Tensor) -> Any:
    travelled.add(str(tensor.dtype))
    return sum_gradients(generation, tensor)


Generation.sum_gradients = noted_sum
session = heterotrain.join()
torch.manual_seed(1)
# On the inputs, so that the running statistics do not depend on weights; with momentum 1 they are the last batch's.
normalize = nn.BatchNorm1d(64, momentum=momentum)
model = nn.Sequential(nn.Flatten(), normalize, nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
model[2].register_forward_hook(lambda _module, _inputs, output: computed.add(str(output.dtype)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer, batches = session.prepare(model, optimizer, Subset(digits(), range(samples)))
for images, labels in batches:
    outputs = model(images)
    assert outputs.dtype == torch.float32
    session.scale(nn.functional.cross_entropy(outputs, labels)).backward()
    optimizer.step()
    optimizer.zero_grad()
name = os.environ["HETEROTRAIN_WORKER"]
torch.save(model.state_dict(), out / f"{name}.pt")
(out / f"{name}.json").write_text(json.dumps({"computed": sorted(computed), "travelled": sorted(travelled)}))
