"""How a gradient bucket gets to the other workers and back: directly, or staged through pinned host memory.

gloo reaches CPUs and GPUs alike, but its futures know host memory only. So where GPU workers train beside CPU workers a
bucket is copied to the host on a stream of its own, summed there, and copied back, while backward goes on.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch

from heterotrain.groups.generation import Generation


class Sum(Protocol):
    """A sum under way."""

    def wait(self) -> object:
        """Wait until the tensor holds the sum; on a GPU, until the current stream is ordered after that.

        Raises RuntimeError.
        """
        ...


class Wire(Protocol):
    """Sums tensors over the workers of one attempt of a generation."""

    def sum(self, tensor: torch.Tensor) -> Sum:
        """Begin to sum `tensor` over the workers, in place.

        Every worker must ask for the same tensors in the same order. Raises RuntimeError if the groups are broken.
        """
        ...


class DirectWire:
    """Tensors that the group's backend reaches where they are."""

    def __init__(self, generation: Generation) -> None:
        self.sum = generation.sum_gradients


class StagedWire:
    """Tensors on a GPU, over gloo. One thread does one bucket after the other, so their order is the same everywhere.

    Also takes tensors on the CPU, which it copies just the same.
    """

    def __init__(self, generation: Generation, device: torch.device) -> None:
        self._generation = generation
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._hosts: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="heterotrain-wire")

    def sum(self, tensor: torch.Tensor) -> torch.futures.Future[Any]:
        """See `Wire`."""
        promise: torch.futures.Future[Any] = torch.futures.Future(
            devices=None if self._stream is None else [self._device]
        )
        host = self._host_like(tensor)
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with self._on_stream():
            host.copy_(tensor, non_blocking=True)
        copied = self._stream.record_event() if self._stream is not None else None
        self._thread.submit(self._exchange, tensor, host, copied, promise)
        return promise

    def _exchange(
        self,
        tensor: torch.Tensor,
        host: torch.Tensor,
        copied: torch.cuda.Event | None,
        promise: torch.futures.Future[Any],
    ) -> None:
        try:
            if copied is not None:
                copied.synchronize()
            self._generation.sum_gradients(host).wait()
            with self._on_stream():
                tensor.copy_(host, non_blocking=True)
                # set here, since a future orders its waiters after the streams that are current when it is set
                promise.set_result(tensor)
        except RuntimeError as error:
            promise.set_exception(error)
        finally:
            # copies into it and out of it follow one another on the one stream
            self._hosts[host.numel(), host.dtype].append(host)

    def _host_like(self, tensor: torch.Tensor) -> torch.Tensor:
        spare = self._hosts.setdefault((tensor.numel(), tensor.dtype), [])
        if spare:
            return spare.pop()
        return torch.empty(tensor.numel(), dtype=tensor.dtype, pin_memory=self._stream is not None)

    def _on_stream(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def wire_for(generation: Generation, device: torch.device) -> Wire:
    """The wire for tensors on `device`."""
    if device.type == "cuda" and generation.backend == "gloo":
        return StagedWire(generation, device)
    return DirectWire(generation)
