"""Train on shifted digits that a process of its own loads, until enough test digits are read correctly."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import heterotrain
from heterotrain.workloads.digits import DigitsCNN, digits


class Shifted(Dataset):
    """Digits, each moved by up to a pixel; again in each epoch, but the same whichever worker loads it."""

    def __init__(self) -> None:
        self.digits = digits()

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, label = self.digits[index]
        down, right = torch.randint(-1, 2, (2,), generator=heterotrain.sample_generator()).tolist()
        return image.roll((down, right), (1, 2)), label


def measure(model: nn.Module, batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    images, labels = batch
    logits = model(images)
    return {
        "accuracy": (logits.argmax(1) == labels).sum(),
        "test_loss": nn.functional.cross_entropy(logits, labels, reduction="sum"),
    }


session = heterotrain.join(epochs=3)
torch.manual_seed(0)
model = DigitsCNN()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
loader = DataLoader(Shifted(), batch_size=64, shuffle=True, num_workers=1)
model, optimizer, batches = session.prepare(model, optimizer, loader)
session.evaluate(digits(train=False), measure)

for images, labels in batches:
    loss = session.scale(nn.functional.cross_entropy(model(images), labels))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

if session.leader:
    print(f"step {session.step}: {', '.join(f'{name} {value:.3f}' for name, value in session.metrics.items())}")
