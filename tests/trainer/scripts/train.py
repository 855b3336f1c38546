"""A training script like a user's, which also notes every sample that it saw and saves its weights."""

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

import heterotrain
from heterotrain.workloads.digits import DigitsCNN, digits

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--optimizer", choices=["sgd", "adam", "plain"], default="sgd")
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--dtype", choices=["float64", "float32"], default="float64")
parser.add_argument("--loss", choices=["mean", "sum"], default="mean")
parser.add_argument("--width", type=int, default=8)
parser.add_argument("--lasting", action="store_true", help="take long until there is a file `go`")
parser.add_argument("--apart", action="store_true", help="begin with a buffer that is each worker's own")
parser.add_argument("--registers", default="", help="the name of a module that it registers")
options = parser.parse_args()
torch.set_default_dtype(getattr(torch, options.dtype))
name = os.environ["HETEROTRAIN_WORKER"]


class Noted(Dataset):
    """Digits; notes which indices are asked for."""

    def __init__(self) -> None:
        self.data = digits()
        self.notes = (options.out / f"{os.environ['HETEROTRAIN_UID']}.samples").open("a", buffering=1)

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, ...]]:
        if not session.warming:
            self.notes.write(f"{session.step} {session.epoch} {','.join(map(str, indices))}\n")
        return [self.data[index] for index in indices]


class Model(DigitsCNN):
    """With a buffer that is in no state_dict. With `--apart` no two workers begin with the same: the others' is 0, like
    the first one's, only after they have taken it over."""

    def __init__(self) -> None:
        super().__init__(options.width)
        number = name.rpartition("-")[2]
        offset = float(number) if options.apart else 0.0
        self.register_buffer("offset", torch.tensor(offset), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images + self.offset)


session = heterotrain.join()
torch.manual_seed(1)
model = Model()
if options.optimizer != "adam":
    momentum = 0.9 if options.optimizer == "sgd" else 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=momentum)
else:
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr / 10)
criterion = nn.CrossEntropyLoss(reduction=options.loss)
model, optimizer, batches = session.prepare(model, optimizer, Noted(), loss=options.loss, compare_samples=False)
if options.registers:
    session.register(**{options.registers: nn.Linear(1, 1)})
for images, labels in batches:
    if options.lasting and not (options.out / "go").exists():
        time.sleep(0.03 if session.step < 60 else 0.3 if session.step < 120 else 1.0)
    loss = session.scale(criterion(model(images), labels))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.save(model.state_dict(), options.out / f"{name}.pt")
