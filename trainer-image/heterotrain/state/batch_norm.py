"""BatchNorm's running statistics, merged over the workers, and what else BatchNorm asks for.

Each worker's statistics are of its own samples. Nobody needs the others' while training, so they are merged only
where they are used: for an evaluation, for a checkpoint, and at the end.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from heterotrain.groups.control import sum_over_ranks
from heterotrain.groups.generation import Generation

LEAST_SAMPLES_WITH_BATCH_NORM = 2
"""One sample has no variance: BatchNorm1d fails on it, and others would normalise it to nothing."""

GOOD_SAMPLES_WITH_BATCH_NORM = 8
"""What the operator gives each worker at least, where the global batch allows it: with fewer, statistics are so noisy
that training suffers. Measured on a small CNN with five such layers on the digits, global batch 60, 200 steps, four
seeds: the mean training loss of the last 50 steps was 0.013 at batches (20, 20, 20), 0.030 at (44, 8, 8), 0.051 at
(52, 4, 4), 0.103 at (54, 4, 2) and 0.190 at (56, 2, 2)."""

WARNING = (
    "the model has BatchNorm, whose statistics are those of each worker's own samples: how the global batch is split "
    f"changes the model. Workers get at least {GOOD_SAMPLES_WITH_BATCH_NORM} samples where the global batch allows it; "
    "with 4 and 2 of 60 samples a small CNN's training loss was eight times that of equal batches, with 8 twice. "
    "GroupNorm and LayerNorm do not depend on the split"
)


def has_batch_norm(module: nn.Module) -> bool:
    """Whether a layer of the model normalises over the samples of a batch.

    Raises TypeError for SyncBatchNorm, whose forward waits for workers that may have no samples, or be gone.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, nn.SyncBatchNorm):
            raise TypeError(
                f"{name}: SyncBatchNorm waits for all workers in its forward, and a worker without samples runs none; "
                "use GroupNorm, or BatchNorm"
            )
    return any(isinstance(layer, _BatchNorm) for layer in module.modules())


class RunningStatistics:
    """The running means and variances of a model on this worker."""

    def __init__(self, module: nn.Module) -> None:
        self._layers = [
            layer
            for layer in module.modules()
            if isinstance(layer, _NormBase) and layer.running_mean is not None and layer.running_var is not None
        ]

    @property
    def any(self) -> bool:
        """Whether there are some."""
        return bool(self._layers)

    def merge(self, samples: int, source: int, generation: Generation) -> None:
        """All workers take the statistics of all samples since the last merge, of which this one has seen `samples`,
        and the counts of batches of rank `source`. Raises RuntimeError.

        Means are weighted with the workers' samples, and so are second moments: the variance is that of the union,
        `sum(w * (var + mean^2)) - mean^2` with weights w that add up to 1. Source: Chan, Golub and LeVeque, "Updating
        Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979), eq. 2.1, for populations.
        """
        if not self._layers:
            return
        means = torch.cat([mean.double().cpu() for mean, _ in self._moments()])
        variances = torch.cat([variance.double().cpu() for _, variance in self._moments()])
        batches = torch.tensor([float(layer.num_batches_tracked or 0) for layer in self._layers], dtype=torch.float64)
        if generation.rank != source:
            batches.zero_()  # a count of batches has no mean
        weight = torch.tensor([float(samples)], dtype=torch.float64)
        message = torch.cat([weight, samples * means, samples * (variances + means**2), batches])
        sum_over_ranks(message, generation)
        total = message[0].item()
        _, first, second, batches = torch.split(message, [1, len(means), len(means), len(batches)])
        merged = first / total
        pooled = (second / total - merged**2).clamp_(min=0)
        sizes = [len(mean) for mean, _ in self._moments()]
        with torch.no_grad():
            for (mean, variance), one, other in zip(
                self._moments(), torch.split(merged, sizes), torch.split(pooled, sizes), strict=True
            ):
                mean.copy_(one)
                variance.copy_(other)
            for layer, count in zip(self._layers, batches, strict=True):
                if layer.num_batches_tracked is not None:
                    layer.num_batches_tracked.fill_(int(count))

    def places(self) -> list[tuple[nn.Module, str]]:
        """The modules that own these buffers, and the buffers' names there."""
        return [(layer, name) for layer in self._layers for name in layer._buffers]

    def moments(self) -> list[torch.Tensor]:
        """The running means and variances."""
        return [each for pair in self._moments() for each in pair]

    def buffers(self) -> list[torch.Tensor]:
        """The running means and variances, and the counts of batches."""
        return [buffer for layer in self._layers for buffer in layer.buffers(recurse=False)]

    def _moments(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [
            (layer.running_mean, layer.running_var)
            for layer in self._layers
            if layer.running_mean is not None and layer.running_var is not None
        ]
