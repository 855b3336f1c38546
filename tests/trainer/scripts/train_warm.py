"""A script with everything that a warm-up must leave as it was; notes what its loop was given while it warmed.

usage: train_warm.py FOLDER KIND, where KIND is one of plain, epochs, fails, waits
"""

import os
import random
import sys
import time
from pathlib import Path

import torch
from torch import nn

import heterotrain
from heterotrain import contract
from heterotrain.workloads.digits import digits


class Own:
    """What each worker collects for itself in its loop; no module, since modules must be the same on all workers."""

    def __init__(self, kept: torch.optim.swa_utils.AveragedModel) -> None:
        self.kept = kept
        self.state_dict = kept.state_dict
        self.load_state_dict = kept.load_state_dict


out, kind = Path(sys.argv[1]), sys.argv[2]
name = os.environ["HETEROTRAIN_WORKER"]
notes = (out / f"{name}.notes").open("a", buffering=1)
torch.set_default_dtype(torch.float64)
session = heterotrain.join()
torch.manual_seed(1)
network = nn.Sequential(
    nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10)
)
optimizer = torch.optim.Adam(
    [{"params": network[:3].parameters(), "lr": 1e-3}, {"params": network[3:].parameters(), "lr": 2e-3}]
)
# In the loop over epochs other processes load the samples.
data = torch.utils.data.DataLoader(digits(), num_workers=1) if kind == "epochs" else digits()
model, optimizer, batches = session.prepare(network, optimizer, data, counted=True)
average = torch.optim.swa_utils.AveragedModel(network)
in_loop = Own(torch.optim.swa_utils.AveragedModel(network))
session.register(
    average=average, in_loop=in_loop, schedule=torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.9)
)
session.after_step(lambda: average.update_parameters(network))
session.after_step(lambda: notes.write(f"after {session.step}\n"))
while not (Path(os.environ["HETEROTRAIN_PLAN_DIR"]) / contract.PLAN_FILE).exists():
    time.sleep(0.01)


def train() -> None:
    for images, labels in batches:
        if session.warming:
            facts = f"{session.step} {session.leader} {session.world_size} {session.global_batch_size}"
            notes.write(f"warming {len(images)} {facts}\n")
            if kind == "fails":
                raise ValueError("this sample is no good")
            while kind == "waits":
                print("waiting in the loop", flush=True)
                time.sleep(0.1)
            random.random()
            optimizer.param_groups[1]["weight_decay"] = 0.5
            with session.pause("nothing that anybody has to wait for"):
                session.stop("nothing that is there yet can end a job")
        optimizer.param_groups[1]["betas"] = (0.9, 0.99 + 0.001 * (session.step % 5))
        loss = nn.functional.cross_entropy(model(images), labels)
        session.scale(loss, count=len(labels)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        in_loop.kept.update_parameters(network)
        if session.warming:
            network[2].bias.data.add_(1.0)
        optimizer.zero_grad()


if kind == "epochs":
    for epoch in session.epochs():
        notes.write(f"epoch {epoch} {session.warming}\n")
        model.train()
        train()
        model.eval()
        notes.write(f"measured {session.metrics['accuracy'] if session.warming else 'later'}\n")
else:
    train()
optimizer_state = [each for state in optimizer.state.values() for each in state.values()]
torch.save(
    {
        **{f"model {key}": value for key, value in model.state_dict().items()},
        **{f"average {key}": value for key, value in average.state_dict().items()},
        **{f"optimizer {number}": value for number, value in enumerate(optimizer_state)},
        "rates": torch.tensor([[each["lr"], *each["betas"], each["weight_decay"]] for each in optimizer.param_groups]),
        "drawn": torch.rand(3),
        "drawn by Python": torch.tensor([random.random()]),
    },
    out / f"{name}.pt",
)
