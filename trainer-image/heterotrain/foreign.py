"""Read JSON that another program wrote: bounded in bytes, depth and magnitude before anything is made of it.

Plans, last words, records and the messages between workers may be written by anybody who reaches the place where they
lie, or by another version of this project. Whatever they hold, the only exception is a ValueError that names the fault.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, TypeGuard

MAX_WHOLE = 2**53
"""The greatest number up to which JSON readers, float64 and Prometheus keep whole numbers exactly."""

MAX_NUMBER = 1e30
"""Far above anything that is measured, and its square is a number still."""

_LONGEST_SHOWN = 80


def parse_json(text: str | bytes, max_bytes: int) -> Any:
    """The value that a document holds.

    Raises ValueError if it is longer than `max_bytes` (characters, of a string), nested too deeply, or not JSON.
    """
    if len(text) > max_bytes:
        raise ValueError(f"has {len(text)} bytes, of which at most {max_bytes} are read")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error


def parse_object(text: str | bytes, max_bytes: int) -> dict[str, Any]:
    """The object that a document holds. Raises ValueError as `parse_json`, and if it is none."""
    document = parse_json(text, max_bytes)
    if not isinstance(document, dict):
        raise ValueError(f"expected an object, found {shown(document)}")
    return document


def is_whole(value: object, low: int = 0, high: int = MAX_WHOLE) -> TypeGuard[int]:
    """Whether it is a whole number within bounds; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number of a size that can be calculated with; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -MAX_NUMBER <= value <= MAX_NUMBER  # of an integer exactly, however long; false of what is no number


def is_measurement(value: object) -> TypeGuard[float]:
    """Whether it is a number as `is_number` says, or one of a float that is not finite."""
    return is_number(value) or (isinstance(value, float) and not math.isfinite(value))


def is_text(value: object, longest: int) -> TypeGuard[str]:
    """Whether it is a string of at most so many characters that UTF-8 can express, which lone surrogates are not."""
    if not isinstance(value, str) or len(value) > longest:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -~])")


def as_text(value: str, longest: int) -> str:
    """The beginning of a string, as it may be shown on a terminal: without escape sequences, with spaces for what else
    controls one (line ends stay) or the direction of writing, and question marks for what UTF-8 cannot express.
    """
    value = value[:longest].encode(errors="replace").decode()
    if value.isprintable():
        return value
    return "".join(each if each.isprintable() or each == "\n" else " " for each in _ESCAPES.sub("", value))


def last_lines(text: str, most: int, longest: int) -> list[str]:
    """The last lines of a log that say anything, at most so many, and of each the last characters, at most so many;
    as they may be shown on a terminal.
    """
    lines = (as_text(line, len(line)).strip() for line in text.splitlines())
    return [line[-longest:] for line in lines if line][-most:]


def shown(value: object) -> str:
    """A value for a message: short, whatever it is."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        value = as_text(value, _LONGEST_SHOWN + 1)
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."
