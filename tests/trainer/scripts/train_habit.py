"""Train with one of the habits as a script of a job does, and save the weights.

usage: train_habit.py KIND FOLDER
"""

import os
import sys
from pathlib import Path

import torch
from torch import nn

import heterotrain
from trainer.habits import CLIP_NORM, habit

kind, out = sys.argv[1], Path(sys.argv[2])
session = heterotrain.join()
each = habit(kind)
given = each.modules if len(each.modules) > 1 else each.modules[0]
model, optimizer, batches = session.prepare(given, each.optimizer, each.dataset, backward_passes=each.passes)
if each.average is not None:
    session.register(average=each.average)
if each.after_step is not None:
    session.after_step(each.after_step)
parameters = [parameter for module in each.modules for parameter in module.parameters()]
for inputs, labels in batches:
    each.by_hand(optimizer.param_groups, session.step)
    for loss in each.losses(inputs, labels):
        session.scale(loss).backward(retain_graph=True)
    each.to_gradients(parameters)
    nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
    optimizer.step()
    optimizer.zero_grad()
torch.save(each.weights(), out / f"{os.environ.get('HETEROTRAIN_WORKER', 'alone')}.pt")
