"""The step under way on one worker: its samples, in how many passes they are computed, and what the script has done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heterotrain.data.sampler import Position, Rules, Share
from heterotrain.data.split import Split


@dataclass(slots=True)
class RunningStep:
    """`samples` are all workers'; `parts` this worker's micro-batches, as [start, stop) of the epoch's order.

    `source` is the first rank that has samples, if some rank has none; None if all have. `opened` is the number of
    micro-batches that the script got so far; `is_open` while it has not stepped the optimizer for the last of them,
    `scaled` once it has scaled that one's loss. `count` is what they counted so far. `share` is the micro-batch under
    way, None without samples.
    """

    epoch: int = 0
    samples: int = 0
    parts: Sequence[tuple[int, int]] = ()
    source: int | None = None
    opened: int = 0
    is_open: bool = False
    scaled: bool = False
    count: float = 0.0
    share: Share | None = None

    @classmethod
    def at(cls, position: Position, split: Split, rank: int, rules: Rules) -> RunningStep:
        """The step at a position, nothing of it done."""
        samples = rules.samples(position, split.global_batch_size)
        cursor = position.cursor
        parts = [(cursor + start, cursor + stop) for start, stop in split.micro_batches(samples, rules.least, rank)]
        return cls(position.epoch, samples, parts, split.parts(samples, rules.least).source)

    @property
    def own_samples(self) -> int:
        """This worker's samples in all its micro-batches."""
        return self.parts[-1][1] - self.parts[0][0]

    @property
    def is_last_part(self) -> bool:
        """Whether the micro-batch under way is the step's last."""
        return self.opened == len(self.parts)

    def open_part(self) -> None:
        """The script gets the next micro-batch."""
        start, stop = self.parts[self.opened]
        self.share = Share(self.epoch, start, stop) if start < stop else None
        self.opened += 1
        self.is_open, self.scaled = True, False
