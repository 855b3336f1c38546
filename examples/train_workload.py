"""Train any of the bundled workloads, alone or as workers of a job; the manifests in examples/workloads do so.

python examples/train_workload.py --model resnet18 --norm group --width 16 --data images --samples 640
"""

import argparse
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import heterotrain
from heterotrain.workloads import registry
from heterotrain.workloads.normalization import NORMS

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", choices=registry.MODELS, default="cnn")
parser.add_argument("--norm", choices=NORMS, default="group", help="normalisation of the image models")
parser.add_argument("--width", type=int, help="size of the smallest layer; a smaller one is quicker")
parser.add_argument("--data", choices=registry.DATA, help="by default what the model is usually shown")
parser.add_argument("--path", type=Path, help="of data that are read: folder, arrays (.npz), text")
parser.add_argument("--samples", type=int, help="at most so many")
parser.add_argument("--lr", type=float, help="instead of the workload's learning rate")
parser.add_argument("--batch-size", type=int, default=32, help="for a run alone; a job's manifest decides")
parser.add_argument("--epochs", type=int, default=1, help="for a run alone; a job's manifest decides")
options = parser.parse_args()

session = heterotrain.join(batch_size=options.batch_size, epochs=options.epochs)

torch.manual_seed(0)
data = registry.load(options.data or registry.default_data(options.model), samples=options.samples, path=options.path)
workload = registry.build(options.model, data, norm=options.norm, width=options.width, learning_rate=options.lr)
model, optimizer, batches = session.prepare(workload.model, workload.optimizer, data.dataset)

for inputs, targets in batches:
    loss = session.scale(workload.criterion(model(inputs), targets))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

if session.leader:
    model.eval()
    inputs, targets = (part.to(session.device) for part in next(iter(DataLoader(data.dataset, batch_size=64))))
    with torch.no_grad():
        loss = workload.criterion(model(inputs), targets)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"step {session.step}: {options.model} of {parameters:,} parameters has a loss of {loss:.4f} on {len(inputs)}"
    )
