"""Peak memory on a GPU, and which kind of peak is right for a device."""

from __future__ import annotations

import torch

from heterotrain.reporting import resources
from heterotrain.reporting.peak import USABLE, PeakMemory


class CudaPeakMemory(PeakMemory):
    """Follows what torch's allocator hands out on a GPU, whose memory ends before the host's does."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._limit_bytes: float | None = None

    def children_bytes(self) -> float:
        return 0.0  # children hold none of the GPU's memory

    def limit_bytes(self) -> float | None:
        return self._limit_bytes

    def hold(self, size_bytes: int) -> bool:
        # Steps are measured on the GPU, so whatever the host holds they count.
        limit, resident = resources.memory_limit_bytes(), resources.memory_bytes()
        if limit is None or resident is None:
            available = resources.available_bytes()
            return available is None or size_bytes <= available
        return resident + size_bytes + resources.children_memory_bytes() <= USABLE * limit

    def release(self) -> None:
        """Steps go on to count."""

    def _give_back(self) -> None:
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self._device)
        # What other processes and CUDA itself hold there is not available.
        self._limit_bytes = float(free + torch.cuda.memory_reserved(self._device))

    def _forget(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def _read(self) -> float | None:
        return float(torch.cuda.max_memory_allocated(self._device))


def peak_memory_of(device: torch.device) -> PeakMemory:
    """The kind of peak that is right for a device."""
    return CudaPeakMemory(device) if device.type == "cuda" else PeakMemory()
