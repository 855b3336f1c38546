"""The library a training script imports.

Names resolve lazily, so that `heterotrain.contract` imports on machines without torch (the operator's).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heterotrain.data.augmentation import sample_generator as sample_generator
    from heterotrain.data.augmentation import seeded as seeded
    from heterotrain.joining import join as join
    from heterotrain.session import Session as Session

__all__ = ["Session", "join", "sample_generator", "seeded"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from heterotrain import joining  # noqa: PLC0415 - torch is imported only when a trainer asks
        from heterotrain.data import augmentation  # noqa: PLC0415 - torch is imported only when a trainer asks

        return getattr(joining if hasattr(joining, name) else augmentation, name)
    raise AttributeError(f"module 'heterotrain' has no attribute {name!r}")
