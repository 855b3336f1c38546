"""Whether all workers have the same data: a few samples, which the seed chooses, are compared before the first step.

A worker with another file, or another version of it, would train in silence on other samples than everybody takes them
for. Each worker reads the same few samples and tells the others checksums of them, with the traits of its script.

The samples are read where all others are, in a loading process if there is one: data sets open files where they are
read first. They are read under the same random numbers on all workers, so augmentation changes nothing. What still
differs when it is read again has random numbers of its own, and is not compared.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import Any

import torch

from heterotrain.data.augmentation import seed_of

NOT_COMPARED = "not compared"

SAMPLE = "sample"
"""With this the names of traits begin that describe samples."""

_SAMPLES, _READS = 4, 3
_LONGEST = 5.0  # seconds of reading: a start need not wait longer, and a loader's `timeout` is mostly longer
_MOST_PARTS = 20_000
_DEEPEST = 8
_SAME_SUM = 1e-3
_FEW = 64
_TEXT = re.compile(r"checksum ([0-9a-f]{8}), form ([0-9a-f]{8}), sum (\S+)")


def chosen(length: int, seed: int) -> list[int]:
    """The places in an order of `length` samples whose samples are compared."""
    return sorted({seed_of(seed, f"compared sample {number}") % length for number in range(_SAMPLES)})


def described(read: Callable[[int], Any], indices: Sequence[int]) -> list[str]:
    """Each sample as others are told of it; all are `NOT_COMPARED` if one of them differs when it is read again, or if
    reading them takes long."""
    found: dict[int, str] = {}
    until = time.monotonic() + _LONGEST
    try:
        for index in [*indices] * _READS:
            text = _text_of(read(index))
            if found.setdefault(index, text) != text or time.monotonic() > until:
                return [NOT_COMPARED] * len(indices)
    except Exception:  # noqa: BLE001  # whatever it is, the loop raises it if it comes to that sample
        return [NOT_COMPARED] * len(indices)
    return [found[index] for index in indices]


def differ(one: str, other: str, *, exact: bool) -> bool:
    """Whether two workers' descriptions are of different samples. Unless `exact`, their machines may round differently,
    and numbers are compared by the sum of their absolute values, but for a few whole numbers such as labels."""
    if one == other or NOT_COMPARED in (one, other):
        return False
    parts, others = _TEXT.fullmatch(one), _TEXT.fullmatch(other)
    if parts is None or others is None:
        return True
    if exact:
        return parts[1] != others[1]
    return parts[2] != others[2] or not math.isclose(float(parts[3]), float(others[3]), rel_tol=_SAME_SUM)


def _text_of(sample: Any) -> str:
    form, checksum, total = hashlib.blake2b(digest_size=4), hashlib.blake2b(digest_size=4), 0.0
    for of_form, numbers, size in islice(_parts(sample, 0), _MOST_PARTS):
        form.update(of_form.encode(errors="replace"))
        checksum.update(numbers)
        total += size
    checksum.update(form.digest())
    return f"checksum {checksum.hexdigest()}, form {form.hexdigest()}, sum {total:.9g}"


def _parts(value: Any, depth: int) -> Iterator[tuple[str, bytes, float]]:
    """A sample as parts of a form, the bytes of numbers, and the sum of their absolute values.

    Of objects that are none of the usual ones their attributes count, never an address in memory.
    """
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        yield _of_tensor(value)
    elif isinstance(value, (float, complex)):
        yield kind, repr(value).encode(), _finite(abs(value))
    elif value is None or isinstance(value, (str, bytes, int)):
        yield f"{kind} {value!r}", b"", 0.0
    elif (of_array := _of_array(value)) is not None:
        yield of_array
    elif depth == _DEEPEST:
        yield kind, b"", 0.0
    elif isinstance(value, Mapping):
        yield f"{kind} of {len(value)}", b"", 0.0
        for key in sorted(value, key=str):
            yield str(key) if isinstance(key, (str, int)) else type(key).__name__, b"", 0.0
            yield from _parts(value[key], depth + 1)
    elif isinstance(value, Set):
        yield f"{kind} {sorted(map(str, value))}", b"", 0.0
    elif isinstance(value, Sequence):
        yield f"{kind} of {len(value)}", b"", 0.0
        for each in value:
            yield from _parts(each, depth + 1)
    elif callable(getattr(value, "tobytes", None)):  # an image of Pillow's
        data = value.tobytes()
        yield f"{kind} {getattr(value, 'size', '')} {getattr(value, 'mode', '')}", data, float(sum(data[:_MOST_PARTS]))
    else:
        yield kind, b"", 0.0
        for name, each in sorted(getattr(value, "__dict__", {}).items()):
            yield name, b"", 0.0
            yield from _parts(each, depth + 1)


def _of_tensor(value: torch.Tensor) -> tuple[str, bytes, float]:
    form = f"tensor {value.dtype} {tuple(value.shape)}"
    try:
        plain = value.detach().cpu()
        plain = (plain if plain.layout == torch.strided else plain.to_dense()).resolve_conj().resolve_neg()
        numbers = plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        total = float((plain.abs() if plain.is_complex() else plain).double().abs().nan_to_num(0, 0, 0).sum())
    except (RuntimeError, TypeError):  # nested ones, for example, have no such bytes
        return form, b"", 0.0
    if value.numel() <= _FEW and not (plain.is_floating_point() or plain.is_complex()):
        form = f"{form} {numbers.hex()}"
    return form, numbers, total


def _of_array(value: Any) -> tuple[str, bytes, float] | None:
    """For an array or a number of NumPy's; None for anything else, and for arrays of objects."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)) or value.dtype.hasobject:
        return None
    numbers = numpy.ascontiguousarray(value)
    form = f"array {value.dtype} {value.shape}"
    if value.dtype.kind not in "biufc":
        return f"{form} {numbers.tolist()}", b"", 0.0
    if value.size <= _FEW and value.dtype.kind in "biu":
        form = f"{form} {numbers.tobytes().hex()}"
    return form, numbers.tobytes(), float(numpy.nan_to_num(numpy.abs(numbers).astype(float), posinf=0).sum())


def _finite(number: float) -> float:
    return float(number) if math.isfinite(number) else 0.0
