"""Recognise patterns in noisy colour images with residual blocks that normalise over the batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS = 2


class Patterns(Dataset):
    """Four patterns of coloured stripes, under noise."""

    def __init__(self, samples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(4, (samples,), generator=generator)
        stripes = torch.randn(4, 3, 16, 1, generator=torch.Generator().manual_seed(0))
        self.images = stripes[self.labels] + torch.randn(samples, 3, 16, 16, generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(0.1)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images + self.layers(images)


torch.manual_seed(0)
loader = DataLoader(Patterns(512, seed=1), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), Block(16), Block(16), nn.Flatten(), nn.Linear(16 * 7 * 7, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

model.train()
for _ in range(EPOCHS):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()

model.eval()
with torch.no_grad():
    correct = sum((model(x).argmax(1) == y).sum().item() for x, y in DataLoader(Patterns(256, seed=2), 64))
print(f"batch norm: {correct} of 256 test images right")
