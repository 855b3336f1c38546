"""What the script does to gradients, for workers on which it did not run.

A worker without samples runs none of the script's loop, so gradients that are clipped there would be clipped on all
workers but this one, and the models would drift apart. In a step with such workers the first of the others says
whether its gradients changed between their arrival and the optimizer's step, and if so, hands them on.
"""

from __future__ import annotations

import torch
from torch import nn

from heterotrain import checkpoint
from heterotrain.control import broadcast_document, sum_over_ranks
from heterotrain.membership import Generation
from heterotrain.reduction import Witness


def hand_on_changes(
    module: nn.Module, witness: Witness | None, source: int, generation: Generation, *, takes: bool
) -> None:
    """Every worker calls it, before its optimizer's step; rank `source` had samples and a witness of their gradients.

    This worker `takes` them if it had none; the others have the same already. Raises RuntimeError if the groups break.
    """
    speaks = generation.rank == source
    changed = torch.tensor([speaks and witness is not None and witness.changed], dtype=torch.float64)
    sum_over_ranks(changed, generation)
    if not changed.item():
        return
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    document = checkpoint.pack({"gradients": [parameter.grad for parameter in parameters]}) if speaks else None
    received = checkpoint.unpack(broadcast_document(document, source, generation))
    if not takes:
        return
    for parameter, gradient in zip(parameters, received["gradients"], strict=True):
        parameter.grad = None if gradient is None else gradient.to(parameter.device)
