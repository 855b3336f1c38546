"""Recognise handwritten digits with a small convolutional network."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

EPOCHS = 3

torch.manual_seed(0)
bunch = load_digits()
images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
dataset = TensorDataset(images, torch.tensor(bunch.target))
training, testing = random_split(dataset, [1500, len(dataset) - 1500])
loader = DataLoader(training, batch_size=64, shuffle=True)

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(32 * 4 * 4, 10),
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

for _ in range(EPOCHS):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()

with torch.no_grad():
    correct = sum((model(inputs).argmax(1) == labels).sum().item() for inputs, labels in DataLoader(testing, 100))
print(f"image classification: {correct} of {len(testing)} test images right")
