"""Recognise handwritten digits: epochs with validation, a schedule, the best checkpoint and a progress bar."""

from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from tqdm import tqdm

EPOCHS = 5
BEST = Path("out/best.pt")

torch.manual_seed(0)
bunch = load_digits()
images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
dataset = TensorDataset(images, torch.tensor(bunch.target))
training, validation = random_split(dataset, [1500, len(dataset) - 1500], torch.Generator().manual_seed(0))
loader = DataLoader(training, batch_size=128, shuffle=True)

model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(64 * 8 * 8, 10),
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)


def validate() -> int:
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in DataLoader(validation, 99))


best = 0
BEST.parent.mkdir(exist_ok=True)
for epoch in range(EPOCHS):
    bar = tqdm(loader, desc=f"epoch {epoch}")
    for inputs, targets in bar:
        loss = criterion(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bar.set_postfix(loss=f"{loss.item():.3f}")
    schedule.step()
    right = validate()
    if right > best:
        best = right
        torch.save(model.state_dict(), BEST)
        print(f"best checkpoint: {best} of {len(validation)} right, in {BEST}")
