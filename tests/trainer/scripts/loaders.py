"""Loads and augments in processes, and evaluates; notes which samples of which step it committed."""

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import heterotrain
from heterotrain.workloads.digits import DigitsCNN, digits

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--workers", type=int, default=0, help="processes that load")
parser.add_argument("--darker", choices=["train", "test"], help="other data, on the worker DARKER if that is set")
options = parser.parse_args()
worker = os.environ.get("HETEROTRAIN_WORKER", "alone")
darker = options.darker if os.environ.get("DARKER", worker) == worker else ""
torch.set_default_dtype(torch.float64)
name = os.environ.get("HETEROTRAIN_UID", "alone")


def mirror(image: torch.Tensor) -> torch.Tensor:
    return image.flip(-1) if torch.rand(()) < 0.5 else image


def data(part: str) -> TensorDataset:
    images, labels = digits(train=part == "train").tensors
    return TensorDataset(images / 2 if darker == part else images, labels)


class Noisy(Dataset):
    """Digits under noise, now and then mirrored; no two epochs show the same."""

    def __init__(self) -> None:
        self.digits = data("train")
        self.mirrored = heterotrain.seeded(mirror)

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        image, label = self.digits[index]
        noise = torch.randn(image.shape, generator=heterotrain.sample_generator())
        return self.mirrored(image + noise / 10), label, index


def collate(samples: list) -> dict:
    images, labels, indices = zip(*samples, strict=True)
    return {"inputs": (torch.stack(images), torch.stack(labels)), "indices": indices}


def measure(model: nn.Module, batch: list) -> dict:
    images, labels = batch
    logits = model(images)
    return {
        "accuracy": (logits.argmax(1) == labels).sum(),
        "certainty": (logits.softmax(1).amax(1).sum(), len(labels)),
    }


session = heterotrain.join(epochs=4, seed=7)
torch.manual_seed(1)
model = DigitsCNN(4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(Noisy(), batch_size=96, shuffle=True, num_workers=options.workers, collate_fn=collate)
model, optimizer, batches = session.prepare(model, optimizer, loader)
session.evaluate(DataLoader(data("test"), num_workers=options.workers), measure, every_steps=10)
with (options.out / f"{name}.committed").open("w", buffering=1) as notes:
    for batch in batches:
        step, epoch = session.step, session.epoch
        images, labels = batch["inputs"]
        session.scale(nn.functional.cross_entropy(model(images), labels)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if session.step > step:
            notes.write(f"{step} {epoch} {','.join(map(str, batch['indices']))}\n")
torch.save(model.state_dict(), options.out / f"{worker}.pt")
torch.save(dict(session.metrics), options.out / f"{worker}-metrics.pt")
