"""Which samples of a job are handed out, to whom, and which its model has seen; pure.

Each worker computes on a lease: a range of the job's order of samples. It is committed in the act that applies its
gradient, and goes out again if its holder ends before. So every sample is applied exactly once an epoch, whoever comes,
goes, or is slow, and a checkpoint that holds the ledger knows exactly which samples its model has not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from heterotrain.data.sampler import DROP, Position, Rules, Share
from heterotrain.foreign import is_whole, shown

MAX_RANGES = 100_000
"""The most ranges of a ledger that is read; each worker holds two."""


START = Position()


class LedgerError(ValueError):
    """What is asked of the ledger does not fit what it has handed out; the text says why."""


class Lease(NamedTuple):
    """A range of the job's order for one worker, with a number that no other lease of this ledger bears."""

    number: int
    share: Share

    @property
    def samples(self) -> int:
        """How many samples it has."""
        return self.share.stop - self.share.start


class Ledger:
    """The ranges of one job, from the position `cursor` of its order on; `returned` are those before it that were
    handed out and not applied."""

    def __init__(self, rules: Rules, cursor: Position = START, returned: Iterable[Share] = ()) -> None:
        """Raises ValueError for a job that drops samples: which ones would depend on who is how fast."""
        if rules.last_step == DROP:
            raise ValueError(f"last_step: {DROP} is none of asynchronous training, in which no step has a last one")
        self._rules = rules
        # A job that ends after so many updates hands out samples until then.
        self._cursor = Position(0, cursor.epoch, cursor.cursor)
        self._returned = sorted(returned)
        self._open: dict[int, tuple[str, Lease]] = {}
        self._numbers = 0

    @property
    def is_over(self) -> bool:
        """Whether all samples of the job are applied."""
        return not self._open and not self.has_more

    @property
    def has_more(self) -> bool:
        """Whether there is a range to hand out."""
        return bool(self._returned) or not self._rules.is_over(self._cursor)

    def lease(self, owner: str, samples: int) -> Lease | None:
        """Hand out a range of about so many samples: fewer where a range or the job ends, and never so few that
        BatchNorm fails on them or on what is left. None if there is nothing to hand out, now."""
        if not self.has_more:
            return None
        wanted = max(samples, self._rules.least)
        if self._returned:
            epoch, start, stop = self._returned.pop(0)
            taken = Rules(stop - start, self._rules.least).samples(Position(), wanted)
            if start + taken < stop:
                self._returned.insert(0, self._in_its_epoch(Share(epoch, start + taken, stop)))
        else:
            _, epoch, start, _ = self._cursor
            taken = self._rules.samples(self._cursor, wanted)
            self._cursor = self._rules.advance(self._cursor, taken, wanted)._replace(step=0)
        self._numbers += 1
        lease = Lease(self._numbers, Share(epoch, start, start + taken))
        self._open[lease.number] = (owner, lease)
        return lease

    def find(self, owner: str, number: int) -> Lease:
        """A lease that this worker holds. Raises LedgerError if it holds none of that number."""
        holder, lease = self._open.get(number, ("", None))
        if lease is None:
            was = "was committed or given to another before" if 0 < number <= self._numbers else "was never given"
            raise LedgerError(f"lease {number} {was}")
        if holder != owner:
            raise LedgerError(f"lease {number} is another worker's")
        return lease

    def commit(self, owner: str, number: int) -> Lease:
        """Its gradient is applied. Raises LedgerError as `find`."""
        lease = self.find(owner, number)
        del self._open[number]
        return lease

    def give_back(self, owner: str, number: int) -> None:
        """It was not applied, and goes out again before all others. Raises LedgerError as `find`."""
        lease = self.commit(owner, number)
        self._returned = sorted([*self._returned, lease.share])

    def _in_its_epoch(self, share: Share) -> Share:
        """The same, in the epoch in which it begins; one that reached into the next one may have been divided."""
        length = self._rules.length
        epochs = share.start // length
        return Share(share.epoch + epochs, share.start - epochs * length, share.stop - epochs * length)

    def document(self) -> dict[str, Any]:
        """What a checkpoint keeps: of what was handed out and not applied nothing counts as seen."""
        waiting = sorted([*self._returned, *(lease.share for _, lease in self._open.values())])
        return {
            "epoch": self._cursor.epoch,
            "cursor": self._cursor.cursor,
            "ranges": [list(share) for share in waiting],
        }

    @classmethod
    def of(cls, document: object, rules: Rules) -> Ledger:
        """The ledger that a checkpoint keeps. Raises LedgerError if it is none, or of another data set's."""
        if not isinstance(document, dict):
            raise LedgerError(f"ledger: expected an object, found {shown(document)}")
        epoch, cursor, ranges = (document.get(key) for key in ("epoch", "cursor", "ranges"))
        if not is_whole(epoch) or not is_whole(cursor) or not 0 <= cursor < rules.length or epoch < 0:
            raise LedgerError(f"ledger: {shown([epoch, cursor])} is no place in a data set of {rules.length} samples")
        if not isinstance(ranges, list) or len(ranges) > MAX_RANGES:
            raise LedgerError(f"ledger: expected at most {MAX_RANGES} ranges, found {shown(ranges)}")
        shares = sorted(_share(entry, rules.length) for entry in ranges)
        ends = [each.epoch * rules.length + each.stop for each in shares]
        begins = [each.epoch * rules.length + each.start for each in shares] + [epoch * rules.length + cursor]
        for share, end, begin in zip(shares, ends, begins[1:], strict=True):
            if end > begin:
                raise LedgerError(f"ledger: {shown(list(share))} reaches into what comes after it")
        return cls(rules, Position(0, epoch, cursor), shares)


def _share(entry: object, length: int) -> Share:
    if not isinstance(entry, Sequence) or len(entry) != 3 or not all(is_whole(each) for each in entry):
        raise LedgerError(f"ledger: expected [epoch, start, stop], found {shown(entry)}")
    share = Share(*entry)
    if share.epoch < 0 or not 0 <= share.start < length or share.start >= share.stop:
        raise LedgerError(f"ledger: {shown(entry)} is no range of samples")
    return share
