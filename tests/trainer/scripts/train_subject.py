"""A script that loads in a process, clips gradients and has a schedule, for any subject; it knows nothing of
micro-batches.
"""

import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

import heterotrain
from trainer.subjects import CLIP_NORM, subject

torch.set_default_dtype(torch.float64)
each, out = subject(sys.argv[1]), Path(sys.argv[2])
session = heterotrain.join()
loader = DataLoader(each.dataset, each.batch_size, shuffle=True, num_workers=1)
model, optimizer, batches = session.prepare(each.model, each.optimizer, loader, counted=each.count is not None)
session.register(schedule=each.schedule())
largest = 0
for inputs, targets in batches:
    largest = max(largest, len(inputs))
    optimizer.zero_grad()
    loss = each.loss(model(inputs), targets)
    session.scale(loss, count=each.count(targets) if each.count else None).backward()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    optimizer.step()
name = os.environ["HETEROTRAIN_WORKER"]
torch.save(dict(model.state_dict()) | {"largest": torch.tensor(largest)}, out / f"{name}.pt")
