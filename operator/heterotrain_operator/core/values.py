"""Values that are made by the ten thousand in every round."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["often_made"]

if TYPE_CHECKING:
    from dataclasses import dataclass as often_made
else:
    from dataclasses import dataclass

    def often_made(*, frozen, slots):
        """A dataclass of which the type checker alone sees to it that it is frozen.

        A frozen one of many fields takes ten times as long to be made as one that is not, since each field is set by a
        call; observations of ten thousand workers are made of nothing else. It is compared and hashed as a frozen one.
        """
        return dataclass(slots=slots, unsafe_hash=frozen)
