"""Run an example; save the noise that its steps drew, and the weights that it ended with, averaged ones too."""

import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch

example, out = sys.argv[1], Path(sys.argv[2])
name = os.environ["HETEROTRAIN_WORKER"]
drawn: dict[str, torch.Tensor] = {}
draw = torch.randn_like


def noted(*given: Any, **options: Any) -> torch.Tensor:
    noise = draw(*given, **options)
    if torch.is_grad_enabled():
        drawn[str(len(drawn))] = noise
    return noise


torch.randn_like = noted
result = runpy.run_path(example, run_name="__main__")
torch.save(drawn, out / f"{name}noise.pt")
model = result.get("model")
if hasattr(model, "state_dict"):
    torch.save(model.state_dict(), out / f"{name}.pt")
if "average" in result:
    torch.save(result["average"].state_dict(), out / f"{name}average.pt")
