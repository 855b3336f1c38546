"""A model with a part that its forward leaves out, a buffer that is in no state_dict, and tensors of rare types.

usage: unusual.py KIND --out FOLDER

KIND `thaws`: from its second epoch on, a part is trained that was frozen, in a parameter group of its own, and in a job
steps are slow until there is a file `joined`; `thaws-apart`: on each worker another part. `unused`: the part is never
used; `declared`: it is not used in later steps, and the session knows that; `undeclared`: it does not; `unfrozen`: a
parameter becomes trainable in the loop; `looks`: every worker seeds by itself and has a look at the model's outputs in
every step; `meets-before` the loop, or `meets-within` it: the script makes torch.distributed's default process group,
and sums numbers of its own over it.
"""

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import heterotrain

parser = argparse.ArgumentParser()
KINDS = [
    "unused",
    "declared",
    "undeclared",
    "unfrozen",
    "looks",
    "meets-before",
    "meets-within",
    "thaws",
    "thaws-apart",
]
parser.add_argument("kind", choices=KINDS)
parser.add_argument("--out", type=Path, required=True)
options = parser.parse_args()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.left_out = nn.Linear(4, 1), nn.Linear(4, 1)
        self.register_buffer("offset", torch.rand(4), persistent=False)
        self.register_buffer("none", torch.empty(0, 3))
        self.register_buffer("is_positive", torch.rand(5) > 0.5)
        self.register_buffer("turned", torch.rand(3, 2).t())
        self.register_buffer("conjugated", torch.rand(3, dtype=torch.complex64).conj())
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64):
            name = str(dtype).removeprefix("torch.")
            self.register_buffer(name, (torch.rand(7) * 100).to(dtype))
            self.register_parameter(f"frozen_{name}", nn.Parameter((torch.rand(9) * 100).to(dtype), False))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = self.used(inputs + self.offset)
        if "thaws" in options.kind:
            return outputs + self.left_out(inputs)
        if "declared" in options.kind and session.step < 3:
            outputs = outputs + self.left_out(inputs)
        return outputs


if "thaws" in options.kind:
    torch.set_default_dtype(torch.float64)
    session = heterotrain.join(batch_size=8, steps=34)
else:
    session = heterotrain.join(batch_size=8, epochs=2)
data = TensorDataset(torch.arange(96.0).reshape(24, 4) / 96, torch.ones(24, 1))
if options.kind == "looks":
    torch.seed()
model = Model()
model.used.bias.requires_grad_(options.kind != "unfrozen")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
if "thaws" in options.kind:
    optimizer = torch.optim.AdamW(model.used.parameters(), lr=0.1, weight_decay=0.5)
    model.left_out.requires_grad_(False)
model, optimizer, batches = session.prepare(model, optimizer, data, find_unused_parameters=options.kind == "declared")
name = os.environ.get("HETEROTRAIN_WORKER", "alone")
sums: list[torch.Tensor] = []


def meet() -> None:
    assert not dist.is_initialized()
    own, rank = f"file://{options.out}/own-group", int(name.rpartition("-")[2])
    dist.init_process_group("gloo", init_method=own, rank=rank, world_size=2)


if options.kind == "meets-before":
    meet()


def by_epochs() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for epoch in session.epochs():
        if epoch == 1:
            part = "weight" if options.kind == "thaws-apart" and name.endswith("1") else "bias"
            added = model.left_out.requires_grad_(True).get_parameter(part)
            optimizer.add_param_group({"params": [added], "lr": 0.01})
        for batch in batches:
            yield batch
            if options.kind == "thaws" and name != "alone" and not (options.out / "joined").exists():
                time.sleep(0.5)


for inputs, targets in by_epochs() if "thaws" in options.kind else batches:
    if options.kind == "meets-within" and not sums:
        meet()
    if "meets" in options.kind:
        own = torch.tensor([float(name.rpartition("-")[2]) + 1])
        dist.all_reduce(own)
        sums.append(own)
    if options.kind == "unfrozen" and session.step == 1:
        model.used.bias.requires_grad_(True)
    if options.kind == "looks":
        with torch.no_grad():
            model(inputs)
    optimizer.zero_grad()
    session.scale(nn.functional.mse_loss(model(inputs), targets)).backward()
    optimizer.step()
if sums:
    assert dist.get_world_size() == 2
    dist.destroy_process_group()
saved = dict(model.state_dict()) | {"offset": model.offset, "sums": torch.cat([torch.zeros(0), *sums])}
saved["epoch_loss"] = torch.tensor(session.epoch_loss)
torch.save(saved, options.out / f"{name}.pt")
