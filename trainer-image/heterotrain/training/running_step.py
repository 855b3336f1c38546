"""The step under way on one worker: its samples, in how many micro-batches they are computed, what the script did."""

from __future__ import annotations

from collections.abc import Iterator

from heterotrain.data.sampler import Position, Rules, Share
from heterotrain.data.split import Portion, Split

_NOTHING = Portion(samples=0, own_samples=0, parts=(), source=None)


class RunningStep:
    """Changes while the step goes on.

    `samples` are all workers', `own_samples` this worker's in all its micro-batches. `source` is the first rank that
    has samples, if some rank has none; None if all have. `opened` is the number of micro-batches that the script got so
    far; `is_open` while it has not stepped the optimizer for the last of them, `scaled` once it has scaled that one's
    loss. `epoch` is that of the first sample. `count` is what they counted so far. `share` is the micro-batch under
    way, None without samples.
    """

    __slots__ = (
        "_cursor",
        "_parts",
        "count",
        "epoch",
        "is_open",
        "opened",
        "own_samples",
        "samples",
        "scaled",
        "share",
        "source",
    )

    def __init__(self, epoch: int = 0, cursor: int = 0, portion: Portion = _NOTHING) -> None:
        self.samples, self.own_samples, self._parts, self.source = portion
        self.opened = 0
        self.is_open = self.scaled = False
        self.count = 0.0
        self.share: Share | None = None
        self.epoch = epoch
        self._cursor = cursor

    @classmethod
    def at(cls, position: Position, split: Split, rank: int, rules: Rules) -> RunningStep:
        """The step at a position; nothing of it is done."""
        samples = rules.samples(position, split.global_batch_size)
        return cls(position.epoch, position.cursor, split.portion(samples, rules.least, rank))

    @property
    def is_last_part(self) -> bool:
        """Whether the micro-batch under way is the step's last."""
        return self.opened == len(self._parts)

    @property
    def has_next_part(self) -> bool:
        """Whether the script got some of its micro-batches, but not all."""
        return 0 < self.opened < len(self._parts)

    def open_part(self) -> None:
        """The script gets the next micro-batch."""
        self.share = self._share_of(self._parts[self.opened])
        self.opened += 1
        self.is_open, self.scaled = True, False

    def shares_to_come(self) -> Iterator[Share]:
        """Those of the micro-batch under way and of the ones after it, as far as they have samples."""
        for part in self._parts[max(self.opened - 1, 0) :]:
            share = self._share_of(part)
            if share is not None:
                yield share

    def _share_of(self, part: tuple[int, int]) -> Share | None:
        start, stop = part
        return Share(self.epoch, self._cursor + start, self._cursor + stop) if start < stop else None
