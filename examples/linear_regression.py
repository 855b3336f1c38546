"""Fit a linear map: alone with `python examples/linear_regression.py`, or as workers of a job."""

import torch
from torch import nn

import heterotrain
from heterotrain.workloads.regression import LinearRegression, linear_data

session = heterotrain.join(batch_size=64, epochs=5)

torch.manual_seed(0)
criterion = nn.MSELoss()
model = LinearRegression()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, batches = session.prepare(model, optimizer, linear_data())

for inputs, targets in batches:
    session.scale(criterion(model(inputs), targets)).backward()
    optimizer.step()
    optimizer.zero_grad()

if session.leader:
    print(f"step {session.step}: the newest training loss is {session.loss:.4f} (the data's noise alone is 0.01)")
