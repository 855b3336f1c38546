"""Which tensors travel together: a collective of many workers takes milliseconds, however little it carries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

PACK_BYTES = 16 << 20
"""Of tensors that travel together, which takes a copy of them."""

_ALONE_SHARE = 4  # of a pack; tensors of a quarter of it travel from where they are


def packs(tensors: Iterable[torch.Tensor], most_bytes: int = PACK_BYTES) -> Iterator[list[torch.Tensor]]:
    """All tensors but empty ones: large ones alone, small ones together, in packs of at most `most_bytes`. Where shapes
    and types are alike on all workers, so are the packs. `tensors` are asked for as they are needed."""
    pack: list[torch.Tensor] = []
    room = most_bytes
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if size * _ALONE_SHARE >= most_bytes:
            yield [tensor]
        elif size:
            if size > room:
                yield pack
                pack, room = [], most_bytes
            pack.append(tensor)
            room -= size
    if pack:
        yield pack
