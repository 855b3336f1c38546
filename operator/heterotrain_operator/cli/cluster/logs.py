"""`heterotrain logs`: what the workers of a job have printed, of a run in this folder or on a cluster."""

from __future__ import annotations

import difflib
import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from heterotrain_operator.cli import BAD_INPUT, FAILED, SUCCEEDED
from heterotrain_operator.clusters.kube.reading_errors import NoLogError, WorkerNotFoundError
from heterotrain_operator.experiments import runs

if TYPE_CHECKING:
    from heterotrain_operator.clusters.kube.reading import Reader

PIECE_BYTES = 64 * 1024


def print_local(
    run: Path, job: str, worker: str | None, *, trial: str | None, tail: int | None, program: str, as_json: bool = False
) -> int:
    """Print the logs of one trial of a run, the last one if none is named. Returns the exit code."""
    found = {logs.slug: logs for logs in runs.trials(run)}
    trained = [slug for slug in found if not slug.startswith("profile-")] or list(found)
    if not found:
        sys.stderr.write(f"{program} logs: the run in {run} has no logs\n")
        return FAILED
    if trial is not None and trial not in found:
        sys.stderr.write(f"{program} logs: the run in {run} has no trial {trial!r}; it has {', '.join(found)}\n")
        return BAD_INPUT
    chosen = found[trial or trained[-1]]
    others = f", trial {chosen.slug} of {', '.join(found)}" if len(found) > 1 else ""
    sys.stderr.write(f"From the run in {run}{others}\n")
    try:
        names = chosen_workers(job, worker, list(chosen.workers))
    except WorkerNotFoundError as error:
        sys.stderr.write(f"{program} logs: {error}\n")
        return BAD_INPUT
    for name in names:
        with chosen.workers[name].open("rb") as log:
            _write(_last(lines_of(_pieces(log)), tail), _head(name, worker, as_json=as_json))
    return SUCCEEDED


def print_of_cluster(reader: Reader, job: str, worker: str | None, tail: int | None, *, as_json: bool = False) -> int:
    """Print the logs of the workers of a job on a cluster. Returns the exit code.

    Raises ReadingError in its kinds, NoLogError where no worker has one.
    """
    reader.job(job)
    pods = {pod["metadata"]["name"]: pod for pod in reader.worker_pods(job)}
    if not pods:
        raise NoLogError(f"job {job} has no pods now; what they have printed is gone with them")
    code = SUCCEEDED
    for name in chosen_workers(job, worker, list(pods)):
        try:
            _write(lines_of(reader.log(pods[name], tail=tail)), _head(name, worker, as_json=as_json))
        except NoLogError as error:
            sys.stdout.flush()
            sys.stderr.write(f"{name}: {error}\n")
            code = FAILED
    return code


def chosen_workers(job: str, worker: str | None, names: Sequence[str]) -> list[str]:
    """The worker of this name, which may lack its beginning, the job's name; None means all workers.

    Raises WorkerNotFoundError, naming those that exist.
    """
    if worker is None:
        return list(names)
    if worker in names:
        return [worker]
    ending = [name for name in names if name.endswith(f"-{worker}")]
    if len(ending) == 1:
        return ending
    close = difflib.get_close_matches(worker, names, n=1) or difflib.get_close_matches(f"{job}-{worker}", names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(names)}"
    raise WorkerNotFoundError(f"job {job} has no worker {worker!r}; {hint}")


def _pieces(log: BinaryIO) -> Iterator[bytes]:
    while piece := log.read(PIECE_BYTES):
        yield piece


def lines_of(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines with their ends; a line that does not end comes in pieces of about PIECE_BYTES."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line + b"\n" for line in whole)
        if len(rest) > PIECE_BYTES:
            yield rest + b"\n"
            rest = b""
    if rest:
        yield rest + b"\n"


def _last(lines: Iterator[bytes], number: int | None) -> Iterable[bytes]:
    return lines if number is None else deque(lines, maxlen=number)


def _head(name: str, worker: str | None, *, as_json: bool) -> Callable[[bytes], bytes]:
    """How a line of a worker is printed: as it is, so that tools may read it, after the worker's name where all are
    asked for; or as an object."""
    if as_json:
        return lambda line: _object(name, line)
    head = f"{name} | ".encode() if worker is None else b""
    return lambda line: head + line


def _object(name: str, line: bytes) -> bytes:
    return json.dumps({"worker": name, "line": line.decode(errors="replace").rstrip("\n")}).encode() + b"\n"


def _write(lines: Iterable[bytes], printed: Callable[[bytes], bytes]) -> None:
    sys.stdout.flush()
    for line in lines:
        sys.stdout.buffer.write(printed(line))
    sys.stdout.buffer.flush()
