"""Predict how a disease progresses from ten figures of a patient."""

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import heterotrain

EPOCHS = 10

session = heterotrain.join(epochs=EPOCHS)
torch.manual_seed(0)
figures, progress = load_diabetes(return_X_y=True)
inputs = torch.tensor(figures / figures.std(0), dtype=torch.float32)
targets = torch.tensor((progress - progress.mean()) / progress.std(), dtype=torch.float32).unsqueeze(1)
loader = DataLoader(TensorDataset(inputs[:-100], targets[:-100]), batch_size=38, shuffle=True, drop_last=True)

model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3)
model, optimizer, loader = session.prepare(model, optimizer, loader)


def train() -> None:
    for x, y in loader:
        error = session.scale(nn.functional.mse_loss(model(x), y))
        optimizer.zero_grad()
        error.backward()
        optimizer.step()


train()
with torch.no_grad():
    if session.leader:
        print(f"regression: mean squared error {nn.functional.mse_loss(model(inputs[-100:]), targets[-100:]):.3f}")
