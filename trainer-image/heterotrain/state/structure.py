"""Which parameters a training changes, and in which groups: a script may change both between two epochs.

Scripts unfreeze a part of a model, and give it to the optimizer in a group of its own. Whoever resumes, or joins later,
runs the script from its beginning, so it takes the structure over with the state that needs it.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import nn

Structure = dict[str, Any]
"""`trained`: names of parameters; `groups`: of each of the optimizer's parameter groups, the names of its parameters.
It is kept in checkpoints."""


def structure_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> Structure:
    """The present one."""
    names = {each: name for name, each in module.named_parameters()}
    groups = [[names.get(each, "") for each in group["params"]] for group in optimizer.param_groups]
    return {"trained": [name for each, name in names.items() if each.requires_grad], "groups": groups}


def restore(structure: Structure, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Make what an earlier run, or another worker, has made of the script's beginning. Raises KeyError if it names
    parameters that the module does not have."""
    parameters = dict(module.named_parameters())
    trained = {id(parameters[name]) for name in structure["trained"]}
    for each in parameters.values():
        each.requires_grad_(id(each) in trained)
    for names in structure["groups"][len(optimizer.param_groups) :]:
        optimizer.add_param_group({"params": [parameters[name] for name in names]})


def checksum(structure: Structure) -> int:
    """A number that is the same for equal structures."""
    return zlib.crc32(repr(structure).encode())
