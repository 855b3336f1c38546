"""Train a small CNN on handwritten digits: alone with `python examples/digits.py`, or as workers of a job."""

import argparse

import torch
from torch import nn

import heterotrain
from heterotrain.workloads.digits import DigitsCNN, digits

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=32, help="channels of the first convolution")
parser.add_argument("--lr", type=float, default=0.02)
options = parser.parse_args()

session = heterotrain.join(batch_size=64, epochs=3)

torch.manual_seed(0)
criterion = nn.CrossEntropyLoss()
model = DigitsCNN(options.width)
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
model, optimizer, batches = session.prepare(model, optimizer, digits())

for images, labels in batches:
    loss = session.scale(criterion(model(images), labels))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

if session.leader:
    model.eval()
    with torch.no_grad():
        images, labels = digits(train=False).tensors
        correct = (model(images.to(session.device)).argmax(1).cpu() == labels).sum().item()
    print(f"step {session.step}: {correct} of {len(labels)} test digits read correctly")
