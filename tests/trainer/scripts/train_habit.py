"""Train with one of the habits as a script of a job does, in float64, and save the weights.

usage: train_habit.py KIND FOLDER
"""

import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

import heterotrain
from trainer.habits import CLIP_NORM, habit

torch.set_default_dtype(torch.float64)
kind, out = sys.argv[1], Path(sys.argv[2])
session = heterotrain.join()
each = habit(kind)
given = each.modules if len(each.modules) > 1 else each.modules[0]
data = DataLoader(each.dataset, each.batch, shuffle=True, num_workers=1) if each.called else each.dataset
model, optimizer, batches = session.prepare(
    given, each.optimizer, data, backward_passes=each.passes, counted=each.count is not None
)
each.called = model
if each.schedule is not None:
    session.register(schedule=each.schedule)
if each.average is not None:
    session.register(average=each.average)
if each.after_step is not None:
    session.after_step(each.after_step)
parameters = [parameter for module in each.modules for parameter in module.parameters()]
largest = 0
for inputs, labels in batches:
    largest = max(largest, len(inputs))
    each.by_hand(optimizer.param_groups, session.step)
    for loss in each.losses(inputs, labels):
        count = {"count": each.count(labels)} if each.count else {}
        session.scale(loss, **count).backward(retain_graph=True)
    nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
    optimizer.step()
    optimizer.zero_grad()
name = os.environ.get("HETEROTRAIN_WORKER", "alone")
torch.save(each.weights() | {"largest": torch.tensor(largest)}, out / f"{name}.pt")
