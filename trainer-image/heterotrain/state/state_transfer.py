"""Sends a training state from one worker to the others: first its structure, then one tensor after the other, so that
no worker holds the state a second time as bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from heterotrain.groups.control import broadcast_document, broadcast_tensors
from heterotrain.groups.generation import Generation
from heterotrain.state import checkpoint
from heterotrain.state.checkpoint import CheckpointError

# How much larger than the receiver's own state the received one may be: an optimizer has no state before its first
# step.
_TIMES_LARGER = 8
_BYTES_MORE = 64 << 20


def broadcast_state(own: dict[str, Any], source: int, generation: Generation, *, takes: bool) -> dict[str, Any] | None:
    """The state of rank `source`, on the CPU, for the ranks that are to take it; None for all other ranks, which call
    this function too. `own` is this rank's state.

    Raises RuntimeError if the groups break, CheckpointError if what arrives is no state, or far larger than `own`.
    """
    sends = generation.rank == source
    received = broadcast_document(checkpoint.pack(_without_content(own)) if sends else None, source, generation)
    if sends:
        for tensor in _tensors(own):
            broadcast_tensors([tensor], source, generation)
        return None
    frame = checkpoint.unpack(received)
    most = _TIMES_LARGER * sum(map(_bytes, _tensors(own))) + _BYTES_MORE
    coming = sum(map(_bytes, _tensors(frame)))
    if coming > most:
        raise CheckpointError(f"the state of rank {source} has {coming} bytes, expected at most {most}")

    def arrive(value: Any) -> Any:
        if not _has_content_apart(value):
            return value
        tensor = torch.empty(value.shape, dtype=value.dtype)
        broadcast_tensors([tensor], source, generation)
        return tensor if takes else None

    state: dict[str, Any] = checkpoint.mapped(frame, arrive)
    return state if takes else None


def _without_content(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = checkpoint.mapped(
        state, lambda value: value.detach().to("meta") if _has_content_apart(value) else value
    )
    return found


def _has_content_apart(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a state, in the order of `checkpoint.mapped`."""
    if isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)
    elif type(value) in (list, tuple):
        for each in value:
            yield from _tensors(each)
    elif _has_content_apart(value):
        yield value


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
