"""Hands on what the script did in its loop to workers on which the loop did not run.

A worker without samples runs none of the script's loop. Gradients that the script clips would be clipped on all other
workers, a learning rate that it sets would be set on all others, and the models would drift apart. So in a step with
such workers the first worker that has samples sends its hyperparameters, and whether its gradients changed between
their arrival and the optimizer's step; if they did, it sends them too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from heterotrain.gradients.reduction import Witness
from heterotrain.groups.control import broadcast_tensors, sum_over_ranks
from heterotrain.groups.generation import Generation
from heterotrain.state.hyperparameters import Hyperparameters


def hand_on_changes(
    parameters: Sequence[nn.Parameter],
    hyperparameters: Hyperparameters,
    witness: Witness | None,
    source: int,
    generation: Generation,
    *,
    takes: bool,
) -> None:
    """Every worker calls it before its optimizer's step; rank `source` had samples and a witness of their gradients.

    This worker `takes` hyperparameters and gradients over if it had no samples; the others have the same already.
    Raises RuntimeError if the groups break.
    """
    sends = generation.rank == source
    own = [float(each) for each in hyperparameters.values()]
    message = torch.zeros(1 + len(own), dtype=torch.float64)
    if sends:
        message = torch.tensor([float(witness is not None and witness.changed), *own], dtype=torch.float64)
    sum_over_ranks(message, generation)
    changed, *values = message.tolist()
    if takes:
        hyperparameters.take(values)
    if not changed:
        return
    # The script may have removed some gradients; those are removed on all workers.
    present = torch.tensor([sends and each.grad is not None for each in parameters], dtype=torch.int64)
    sum_over_ranks(present, generation)
    kept = [parameter for parameter, there in zip(parameters, present.tolist(), strict=True) if there]
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in kept]
    # A worker that has the same already receives them into tensors that it drops.
    received = gradients if sends or takes else [torch.empty_like(each) for each in gradients]
    broadcast_tensors(received, source, generation)
    if takes:
        for parameter in parameters:
            parameter.grad = None
        for parameter, gradient in zip(kept, received, strict=True):
            parameter.grad = gradient
