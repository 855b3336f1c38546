"""Recognise handwritten digits under mixup, with a moving average of the weights and a learning rate that falls with
each epoch."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset, random_split

import heterotrain

EPOCHS = 4
CLASSES = 10


def mixup(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each image blended with another one of the batch, and the probabilities of its classes likewise."""
    share = torch.distributions.Beta(0.4, 0.4).sample()
    others = torch.randperm(len(images))
    targets = nn.functional.one_hot(labels, CLASSES).float()
    return torch.lerp(images, images[others], share), torch.lerp(targets, targets[others], share)


def correct(model: nn.Module) -> int:
    """How many test images the model recognises."""
    with torch.no_grad():
        return sum((model(images).argmax(1) == labels).sum().item() for images, labels in DataLoader(testing, 100))


session = heterotrain.join(epochs=EPOCHS)
torch.manual_seed(0)
bunch = load_digits()
images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
dataset = TensorDataset(images, torch.tensor(bunch.target))
training, testing = random_split(dataset, [1500, len(dataset) - 1500])
loader = DataLoader(training, batch_size=64, shuffle=True)

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.GroupNorm(4, 16),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2, padding=1),
    nn.GroupNorm(4, 32),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(32 * 4 * 4, CLASSES),
)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.05)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)

model, optimizer, loader = session.prepare(model, optimizer, loader)
session.register(schedule=schedule, average=average, every="epoch")
session.after_step(lambda: average.update_parameters(model))
for images, labels in loader:
    mixed, targets = mixup(images, labels)
    loss = session.scale(nn.functional.cross_entropy(model(mixed), targets))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

if session.leader:
    print(f"image mixup: {correct(average)} of {len(testing)} test images right")
