"""A copy of a training state in two parts: at once what a script may change at any time, the rest while it computes.

Parameters and what the optimizer keeps of them change only where the session lets them change, so they can be copied
beside a step's forward and backward. Buffers, schedules and registered objects are copied before the step begins.

Storages are copied, not tensors: what shares numbers in the state shares them in the copy, and a file of the copy is
no larger than one of the state.
"""

from __future__ import annotations

import copy
import mmap
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_ALIGNMENT = 64
_IMMUTABLE = (type(None), bool, int, float, complex, str, bytes)


class ChangedError(Exception):
    """What was to be copied has been changed meanwhile."""


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in the dicts, lists and tuples of a state."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)


@dataclass(slots=True)
class _Part:
    """A storage, the tensors of the state that show it with their versions, and its copy, once there is one."""

    storage: torch.UntypedStorage
    shown_by: list[tuple[torch.Tensor, int]]
    copy: torch.Tensor

    def check(self) -> None:
        for tensor, version in self.shown_by:
            if tensor._version != version:
                raise ChangedError(f"a tensor of shape {tuple(tensor.shape)} was changed outside of optimizer.step()")


class StateCopy:
    """The copy of one state.

    `begin` makes it, and copies at once what shares storage with a tensor of `at_once`, or with none of `later`; `fill`
    copies the rest. Until then nothing may change the tensors of `later`.
    """

    def __init__(
        self, state: dict[str, Any], later: Iterable[torch.Tensor], at_once: Iterable[torch.Tensor] = ()
    ) -> None:
        self.state: dict[str, Any] = {}
        self._source = state
        early = {_key(each) for each in at_once if _is_plain(each)}
        self._late = {_key(each) for each in later if _is_plain(each)} - early
        self._parts: dict[int, _Part] = {}
        self._is_pinned = False
        self._others_bytes = 0  # of tensors that are no plain window on a storage
        for tensor in tensors_in(state):
            self._look_at(tensor)

    @property
    def size_bytes(self) -> int:
        """What the copy takes of the host's memory."""
        return self._others_bytes + sum(_aligned(part.storage.nbytes()) for part in self._parts.values())

    def begin(self) -> None:
        """Copy what cannot wait. Raises OSError or RuntimeError if there is no memory for the copy."""
        for device in {part.storage.device for part in self._parts.values() if part.storage.device.type == "cuda"}:
            torch.cuda.current_stream(device).synchronize()  # the optimizer's step has ended
        self._allocate()
        for key, part in self._parts.items():
            if key not in self._late:
                part.copy.copy_(_bytes_of(part.storage))
        self.state = self._copied(self._source)
        self._source = {}

    def fill(self) -> None:
        """Copy the rest, one storage after the other. Raises ChangedError if one of them was changed meanwhile."""
        for key, part in self._parts.items():
            if key not in self._late:
                continue
            if _is_on_gpu(part.storage):
                _copy_beside(part.storage, part.copy)
            else:
                part.copy.copy_(_bytes_of(part.storage))
            part.check()
        self._parts.clear()

    def close(self) -> None:
        """Give the copy's memory back."""
        self.state = {}
        if self._is_pinned and (give_back := getattr(torch.accelerator, "empty_host_cache", None)):
            give_back()  # torch keeps what was pinned

    def _look_at(self, tensor: torch.Tensor) -> None:
        if not _is_plain(tensor):
            self._others_bytes += tensor.numel() * tensor.element_size()
            return
        key = _key(tensor)
        part = self._parts.setdefault(key, _Part(tensor.untyped_storage(), [], torch.empty(0)))
        if key in self._late:
            part.shown_by.append((tensor, tensor._version))

    def _allocate(self) -> None:
        size = sum(_aligned(part.storage.nbytes()) for part in self._parts.values() if not _is_on_gpu(part.storage))
        # Memory of its own: it goes back to the system at once, and processes that load data, which are forked, do not
        # keep a copy of it.
        memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_DONTFORK)
        start = 0
        for part in self._parts.values():
            size = part.storage.nbytes()
            if _is_on_gpu(part.storage):
                self._is_pinned = True  # which copying beside the GPU's work needs
                part.copy = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            elif size:
                part.copy = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=start)
                start += _aligned(size)
            else:
                part.copy = torch.empty(0, dtype=torch.uint8)

    def _copied(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._copied_tensor(value)
        if type(value) is dict or type(value) is OrderedDict:
            items: Any = type(value)((key, self._copied(each)) for key, each in value.items())
            if hasattr(value, "_metadata"):  # the versions of a model's modules, which loading it may look at
                items._metadata = copy.deepcopy(value._metadata)
            return items
        if type(value) in (list, tuple):
            return type(value)(map(self._copied, value))
        return value if isinstance(value, _IMMUTABLE) else copy.deepcopy(value)

    def _copied_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if not _is_plain(tensor):
            return tensor.detach().clone()
        shown = torch.empty(0, dtype=tensor.dtype).set_(
            self._parts[_key(tensor)].copy.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
        )
        return nn.Parameter(shown, tensor.requires_grad) if type(tensor) is nn.Parameter else shown


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is no more than a window on a storage of a CPU or a GPU."""
    return (
        type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and not (tensor.is_nested or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and not tensor.is_inference()  # it has no version
    )


def _copy_beside(storage: torch.UntypedStorage, to: torch.Tensor) -> None:
    """Copy what is on a GPU, in a stream of its own: it does not wait for the kernels of the step, nor they for it."""
    stream = torch.cuda.Stream(storage.device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    with torch.cuda.stream(stream):
        to.copy_(_bytes_of(storage), non_blocking=True)
    stream.synchronize()


def _is_on_gpu(storage: torch.UntypedStorage) -> bool:
    return storage.device.type == "cuda"


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
