"""What the script does in its loop, for workers on which it did not run.

A worker without samples runs none of the script's loop. Gradients that are clipped there would be clipped on all
workers but this one, and a learning rate that is set there would be the old one here: the models would drift apart. In
a step with such workers the first of the others hands on its hyperparameters, and says whether its gradients changed
between their arrival and the optimizer's step; if so, it hands them on too.
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
    """Every worker calls it, before its optimizer's step; rank `source` had samples and a witness of their gradients.

    This worker `takes` both if it had none; the others have the same already. Raises RuntimeError if the groups break.
    """
    speaks = generation.rank == source
    own = [float(each) for each in hyperparameters.values()]
    message = torch.zeros(1 + len(own), dtype=torch.float64)
    if speaks:
        message = torch.tensor([float(witness is not None and witness.changed), *own], dtype=torch.float64)
    sum_over_ranks(message, generation)
    changed, *values = message.tolist()
    if takes:
        hyperparameters.take(values)
    if not changed:
        return
    # The script may have taken some away, which then are nobody's.
    present = torch.tensor([speaks and each.grad is not None for each in parameters], dtype=torch.int64)
    sum_over_ranks(present, generation)
    kept = [parameter for parameter, there in zip(parameters, present.tolist(), strict=True) if there]
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in kept]
    # Who has the same already receives them aside.
    received = gradients if speaks or takes else [torch.empty_like(each) for each in gradients]
    broadcast_tensors(received, source, generation)
    if takes:
        for parameter in parameters:
            parameter.grad = None
        for parameter, gradient in zip(kept, received, strict=True):
            parameter.grad = gradient
