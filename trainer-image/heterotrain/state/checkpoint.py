"""Checkpoints that any mix of workers can resume from, and that a full disk cannot spoil.

Nothing of a rank is in them. A checkpoint appears under its name only when it is whole and on the disk; files are
read with `weights_only=True`, so that a checkpoint cannot run code.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import logging
import operator
import os
import re
import struct
import sys
import uuid
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from pickle import PicklingError, UnpicklingError
from typing import IO, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from heterotrain.data.order import KEYED, PERMUTATION
from heterotrain.data.sampler import Position

log = logging.getLogger(__name__)

SCHEMA = 1
SCHEMA_WITH_ORDER = 2
"""Of a state that names the order of its epoch's samples, which is not the one that states of the first schema have. A
library that does not know of it refuses such a state, instead of going on in another order."""
SCHEMA_WITH_LEDGER = 3
"""Of a state of an asynchronous job, whose samples were not applied in their order."""

_EXTRA_STATE_KEY_SUFFIX = "_extra_state"  # what torch calls a module's state beside its tensors
_LONGEST_ERROR = 500
_NAMED = 5
_PARTIAL = ".partial"
_NAME = re.compile(r"step-(\d{10})\.pt")
_REFUSED = re.compile(r"GLOBAL (\S+)")


class CheckpointError(Exception):
    """A checkpoint could not be written or does not fit the job; the text says which and why."""


class MisfitError(CheckpointError):
    """A checkpoint does not fit what is to be resumed with it, and will not at any further try."""

    fatal = True


class StoreError(CheckpointError):
    """The folder of the checkpoints is at fault, for whoever leads next as well: another try would end alike."""

    fatal = True


_FAULTS_OF_THE_STORE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
)


def cannot(do: str, folder: Path, error: OSError, then: str = "") -> CheckpointError:
    """What to raise where the folder of the checkpoints does not let a worker do something with it."""
    name = errno.errorcode.get(error.errno or 0, "no errno")
    kind = StoreError if error.errno in _FAULTS_OF_THE_STORE else CheckpointError
    return kind(f"cannot {do} {folder}: {error.strerror or error} ({name}){then}")


def pack(state: dict[str, Any]) -> bytes:
    """Serialise a state of tensors and plain values; NumPy's numbers become plain ones."""
    buffer = io.BytesIO()
    _save(state, buffer)
    return buffer.getvalue()


def _save(state: dict[str, Any], file: IO[bytes]) -> None:
    noting = _Noting(file)
    try:
        torch.save(mapped(state, _plain_number), noting)  # type: ignore[arg-type]  # it is what torch needs of a file
    except RuntimeError:
        # torch ends its archive all the same, and then only says that something is missing in it.
        if noting.error is not None:
            raise noting.error from None
        raise


class _Noting:
    """A file that notes the first error of a write to it. One without a buffer may write a part at a time."""

    def __init__(self, file: IO[bytes]) -> None:
        self.error: OSError | None = None
        self._file = file

    def write(self, data: bytes) -> int:
        """Write all of it."""
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self.error = self.error or error
            raise
        return len(data)

    def flush(self) -> None:
        """Do as the file does."""
        self._file.flush()


def check_readable(what: str, state: Any) -> None:
    """Raises CheckpointError if a state holds what `unpack` would refuse: better at the start than after a restart."""
    try:
        unpack(pack({"": mapped(state, _without_tensor)}))
    except (CheckpointError, PicklingError, TypeError, AttributeError) as error:
        found = _REFUSED.search(str(error))
        held = f"a {found[1]}" if found else f"something that cannot be stored ({error})"
        raise CheckpointError(
            f"{what}: its state_dict() holds {held}, which no checkpoint could be resumed with; make it of tensors, "
            "numbers, strings, lists and dicts"
        ) from error


class _WithoutCopies(TorchFunctionMode):
    """Inside, tensors are not copied into others; raises RuntimeError where their shapes do not fit."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.copy_ and len(args) > 1:
            args[1].expand(args[0].shape)
            return args[0]
        return function(*args, **(kwargs or {}))


def check_loads(what: str, owner: Any, state: Any) -> None:
    """Raises MisfitError if an object cannot load the state that it has just given: better before the training than
    when that is resumed. Neither time nor memory go into copies of tensors, and they stay as they are."""
    try:
        with torch.no_grad(), _WithoutCopies():
            owner.load_state_dict(state)
    except Exception as error:
        text = " ".join(str(error).split())
        raise MisfitError(
            f"{what}: its load_state_dict() does not take what its own state_dict() returns, so no checkpoint could be "
            f"resumed: {type(error).__name__}: {text[:_LONGEST_ERROR]}"
        ) from error
    if not isinstance(owner, nn.Module) or not isinstance(state, dict):
        return
    lacking = _lacking(owner, state)
    if lacking:
        names = ", ".join(lacking[:_NAMED]) + (f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else "")
        raise MisfitError(
            f"{what}: its state_dict() lacks {names}, which is trained, so a job that resumes from a checkpoint would "
            "begin again with it"
        )


def _lacking(module: nn.Module, state: dict[str, Any]) -> list[str]:
    """Trainable parameters that a state lacks, if its names are those that torch gives."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, each in nn.Module.named_parameters(module, remove_duplicate=False):
        names.setdefault(each, []).append(name)
    known = {*chain.from_iterable(names.values()), *(name for name, _ in module.named_buffers(remove_duplicate=False))}
    if any(key not in known and not str(key).endswith(_EXTRA_STATE_KEY_SUFFIX) for key in state):
        return []
    return [its[0] for each, its in names.items() if each.requires_grad and not any(name in state for name in its)]


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with all that is in its dicts, lists and tuples changed; the very same object where nothing was."""
    if isinstance(value, dict):
        items = {key: mapped(each, change) for key, each in value.items()}
        if all(items[key] is value[key] for key in items):
            return value
        if hasattr(value, "_metadata"):  # the versions of a model's modules, which loading it may look at
            items = OrderedDict(items)
            items._metadata = value._metadata  # type: ignore[attr-defined]  # torch sets it just so
        return items
    if type(value) in (list, tuple):
        parts = [mapped(each, change) for each in value]
        return value if all(map(operator.is_, parts, value)) else type(value)(parts)
    return change(value)


def _plain_number(value: Any) -> Any:
    numpy = sys.modules.get("numpy")  # where it is not imported, no value is one of its numbers
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def _without_tensor(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_meta:
        raise TypeError("a tensor on the meta device, without content")
    return None if isinstance(value, torch.Tensor) else value


def unpack(data: bytes) -> dict[str, Any]:
    """The inverse of `pack`, onto the CPU. Raises CheckpointError if the bytes are no such state."""
    return _load(io.BytesIO(data))


def _load(file: IO[bytes]) -> dict[str, Any]:
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (
        RuntimeError,
        ValueError,
        EOFError,
        OSError,
        LookupError,
        AttributeError,
        TypeError,
        AssertionError,
        ArithmeticError,
        MemoryError,
        UnpicklingError,
    ) as error:
        raise CheckpointError(f"not a checkpoint: {error}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"not a checkpoint: holds a {type(state).__name__}")
    return state


def _check_whole(file: IO[bytes]) -> None:
    """Raises CheckpointError if the bytes differ from those that were written. torch writes checksums, but does not
    compare them."""
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError, RuntimeError, struct.error) as error:
        raise CheckpointError(f"not a checkpoint: {error}") from error
    if damaged is not None:
        raise CheckpointError(f"damaged: the checksum of {damaged} in it is another")
    file.seek(0)


def _steps(folder: Path) -> list[tuple[int, Path]]:
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match:
            found.append((int(match.group(1)), path))
    return sorted(found)


def write(folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Write a state durably, without a copy of it in memory, then remove all but the newest `keep`.

    Raises CheckpointError if it cannot be written; earlier checkpoints are then untouched.
    """
    path = folder / f"step-{step:010d}.pt"
    # One that was stopped while it wrote, and goes on, must not write into the file of who has taken its place.
    partial = folder / f".{path.name}.{uuid.uuid4().hex[:8]}{_PARTIAL}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_abandoned(folder)
        # Without a buffer, which a process that is forked meanwhile could write a second time.
        with partial.open("wb", buffering=0) as file:
            with contextlib.suppress(OSError):  # where there are no locks, nothing is found to be abandoned
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _save(state, file)
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_folder(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        do = f"write the checkpoint of step {step} to"
        raise cannot(do, folder, error, "; earlier checkpoints are untouched") from error
    for _, old in [each for each in _steps(folder) if each[0] <= step][:-keep]:
        _remove(old)
    return path


def remove_partial(folder: Path) -> None:
    """Remove what earlier workers have left half written; for when nobody writes into the folder."""
    for path in folder.glob(f".step-*{_PARTIAL}"):
        log.info("removing %s, which was never completed", path)
        _remove(path)


def remove_abandoned(folder: Path) -> None:
    """Remove what was left half written by workers that were killed; whoever still writes holds a lock on its file."""
    for path in folder.glob(f".step-*{_PARTIAL}"):
        with contextlib.suppress(OSError), path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            log.info("removing %s, whose writer was killed", path)
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a file that is of no use any more; that it stays is no reason to stop training."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("cannot remove %s: %s", path, error.strerror)


def _sync_folder(folder: Path) -> None:
    """Make names in a folder as durable as the files; file systems that do not know that do so by themselves."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def read_newest(folder: Path) -> dict[str, Any] | None:
    """The newest state that is whole, or None if there is none. A damaged one is reported and passed over.

    Raises StoreError if there are some, but none can be read: starting over would be a loss in silence. CheckpointError
    if the folder cannot be looked at.
    """
    try:
        found = _steps(folder)
    except OSError as error:
        raise cannot("look for checkpoints in", folder, error) from error
    for step, path in reversed(found):
        try:
            with path.open("rb") as file:
                _check_whole(file)
                return _load(file)
        except (OSError, CheckpointError) as error:
            log.warning("checkpoint of step %d passed over: %s: %s", step, path, error)
    if found:
        raise StoreError(f"none of the checkpoints in {folder} can be read; move them away to start over")
    return None


def order_of(state: dict[str, Any]) -> str:
    """The order of the epoch's samples in a state that fits; states of the first schema name none. Raises
    CheckpointError if it is not known here."""
    kind = state.get("order", PERMUTATION)
    if kind not in (PERMUTATION, KEYED):
        raise CheckpointError(f"the checkpoint's order of samples is {kind!r}, which this version does not know")
    return str(kind)


def check_nothing_is_open(ledger: Any, position: Position) -> None:
    """Raises CheckpointError if a state is of an asynchronous job in the midst of its samples."""
    expected = {"epoch": position.epoch, "cursor": position.cursor, "ranges": []}
    if ledger is not None and ledger != expected:
        raise CheckpointError(
            "the checkpoint is of an asynchronous job (training.mode: ASP), which has applied samples out of order; "
            "only mode: ASP can go on from it"
        )


def check_fits(state: dict[str, Any], *, seed: int, dataset_length: int) -> Position:
    """The position that a state resumes at.

    Raises CheckpointError if the state belongs to another job: another schema, seed or data set would silently break
    "every sample exactly once".
    """
    known = (SCHEMA, SCHEMA_WITH_ORDER, SCHEMA_WITH_LEDGER)
    if state.get("schema") not in known:
        raise CheckpointError(f"checkpoint schema {state.get('schema')!r} is none of {', '.join(map(str, known))}")
    for name, wanted in (("seed", seed), ("dataset_length", dataset_length)):
        if state.get(name) != wanted:
            raise CheckpointError(f"the checkpoint's {name} is {state.get(name)!r}, the job's is {wanted}")
    # Earlier versions had no steps that reach into the next epoch, and did not write the last one.
    return Position(state["step"], state["epoch"], state["cursor"], state.get("reached_in", False))
