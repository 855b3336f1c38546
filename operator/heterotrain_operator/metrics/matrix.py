"""Read an answer of Prometheus' query API series by series: never more than one series of it is parsed at once.

A JSON document takes up to 27 times its size once it is parsed, and the server decides what is in it. So everything but
the series is skipped, and the series are read one after the other, each of bounded size.

Source of the format: https://prometheus.io/docs/prometheus/latest/querying/api/
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from heterotrain.worker_metrics import WORKERS

NAME_LABEL = "__name__"

Series = tuple[Mapping[str, str], float, float]
"""Labels with the name among them, and time (Unix seconds) and value of the newest sample."""

PART_BYTES = 1 << 12
MAX_PART_BYTES = 1 << 18
"""Of one series, or of one value that is skipped: how much of it is looked at first, and how much at most."""

MAX_MEMBERS = 100
"""Members of the answer, and of its data; Prometheus sends a handful."""

_SPACE = re.compile(rb"[ \t\r\n]*")
_decode = json.JSONDecoder().raw_decode


class NotAMatrixError(ValueError):
    """The document is not an answer of the query API with a matrix in it; the text says why."""


def parts_of(body: bytes, most: int) -> Iterator[Series | None]:
    """The series of workers' metrics in an answer, each with its newest sample; None for whatever else was read, so
    that the time from part to part is bounded.

    Raises NotAMatrixError, after the series before the fault, and also if there are more than `most`.
    """
    try:
        yield from _parts(body, most)
    except NotAMatrixError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise NotAMatrixError(f"{type(error).__name__}: {error}") from None


def _parts(body: bytes, most: int) -> Iterator[Series | None]:
    cursor = _Cursor(body)
    status = kind = None
    for key in cursor.members():
        if key == "status":
            status = cursor.value()
        elif key == "data":
            for inner in cursor.members():
                if inner == "resultType":
                    kind = cursor.value()
                elif inner == "result":
                    yield from _listed(cursor, most)
                else:
                    cursor.value()
                    yield None
        else:
            cursor.value()
            yield None
    if status != "success":
        raise NotAMatrixError("status is not success")
    if kind != "matrix":
        raise NotAMatrixError(f"resultType is {str(kind)[:40]!r}, not 'matrix'")


def _listed(cursor: _Cursor, most: int) -> Iterator[Series | None]:
    for number, entry in enumerate(cursor.items()):
        if number == most:
            raise NotAMatrixError(f"more than {most} series")
        labels = {str(label): str(value) for label, value in entry["metric"].items()}
        if entry.get("values") and labels.get(NAME_LABEL, WORKERS.prefix).startswith(WORKERS.prefix):
            time, value = max((float(time), float(value)) for time, value in entry["values"])
            if not math.isfinite(time):
                raise NotAMatrixError(f"a sample's time is {time:g}")
            yield labels, time, value
        else:
            yield None


class _Cursor:
    """A position in a JSON document."""

    def __init__(self, body: bytes) -> None:
        self._body, self._at = body, 0

    def members(self) -> Iterator[str]:
        """The names in the object that begins here; before asking for the next name, read the value of this one."""
        if self._opened(b"{", b"}"):
            return
        for _ in range(MAX_MEMBERS):
            name = self.value()
            if not isinstance(name, str):
                raise NotAMatrixError("an object's name is no text")
            self._take(b":")
            yield name
            if self._take(b",", b"}") == b"}":
                return
        raise NotAMatrixError(f"an object has more than {MAX_MEMBERS} members")

    def items(self) -> Iterator[Any]:
        """The values in the array that begins here."""
        if self._opened(b"[", b"]"):
            return
        while True:
            yield self.value()
            if self._take(b",", b"]") == b"]":
                return

    def value(self) -> Any:
        """The value that begins here."""
        self._skip()
        size = PART_BYTES
        while True:
            part = self._body[self._at : self._at + size]
            text = part.decode(errors="surrogateescape")
            is_all = self._at + size >= len(self._body)
            try:
                value, end = _decode(text)
            except ValueError:
                if is_all or size >= MAX_PART_BYTES:
                    raise NotAMatrixError("it is no JSON, or a part of it is absurdly large") from None
                size *= 4
                continue
            if end == len(text) and not is_all and size < MAX_PART_BYTES:
                size *= 4  # a number may go on
                continue
            self._at += end if text.isascii() else len(text[:end].encode(errors="surrogateescape"))
            return value

    # --- inside ---------------------------------------------------------------------------------------------

    def _opened(self, begin: bytes, end: bytes) -> bool:
        """Enter the object or array that begins here. Returns whether it is empty, and in that case leaves it again."""
        self._take(begin)
        self._skip()
        if self._body[self._at : self._at + 1] != end:
            return False
        self._at += 1
        return True

    def _take(self, *expected: bytes) -> bytes:
        self._skip()
        found = self._body[self._at : self._at + 1]
        if found not in expected:
            raise NotAMatrixError(f"{found!r} stands where {b' or '.join(expected).decode()} belongs")
        self._at += 1
        return found

    def _skip(self) -> None:
        space = _SPACE.match(self._body, self._at)
        assert space is not None  # it may be empty
        self._at = space.end()
