"""What all benchmarks share: their options, runs in processes of their own that are kept and not run again, and results
as JSON.

A long benchmark can be done in parts and interrupted: with `--runs FILE` each run is a line there as soon as it ends,
with its figures and the version of the sources that decide them. Runs of two versions are never mixed: a file that
holds others is refused.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, TypeVar

REPOSITORY = Path(__file__).resolve().parents[2]

NICENESS = 10

Key = tuple[Any, ...]
Document = Mapping[str, Any]
R = TypeVar("R")

BEGINNING = '{"of": ['
"""Of each line. What is cut off and begins otherwise is somebody else's file, which is left as it is."""


class BenchmarkError(Exception):
    """It cannot be measured here; the text says why."""


def options_of(parser: argparse.ArgumentParser, *, pool: bool = False) -> argparse.ArgumentParser:
    """With the options that all benchmarks have; those of many runs (`pool`) have two more."""
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all figures there as JSON, too")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    if pool:
        cores = os.cpu_count() or 1
        parser.add_argument("--processes", type=int, default=cores, help="at once (one for each core)")
        parser.add_argument("--runs", type=Path, metavar="FILE", help="keep runs there; kept ones are not run again")
    return parser


def machine() -> dict[str, object]:
    """Where a benchmark runs, and how much else runs beside it: the processes that want a CPU, before it begins."""
    load = round(os.getloadavg()[0], 1)
    return {"cores": os.cpu_count(), "load": load, "python": platform.python_version(), "torch": version("torch")}


def play(
    one: Callable[[Key], R], kind: type[R], keys: Sequence[Key], options: argparse.Namespace, sources: Iterable[str]
) -> Iterator[R]:
    """The runs of these keys in their order, each as soon as it is known; progress goes to standard error.

    `one` makes a run, a dataclass of this `kind`, of its key. Those that are in `--runs` are not made again as long as
    the `sources` stay the same.
    """
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)  # what cannot be is better known before the runs
    with ExitStack() as stack:
        kept = stack.enter_context(RunsFile(options.runs, version_of(sources))) if options.runs else None
        known = {key: kind(**run) for key in keys if kept is not None and (run := kept.get(key)) is not None}
        missing = [key for key in dict.fromkeys(keys) if key not in known]
        if options.processes == 1:
            found: Iterator[R] = map(one, missing)
        elif missing:
            pool = ProcessPoolExecutor(options.processes, initializer=os.nice, initargs=(NICENESS,))
            found = stack.enter_context(pool).map(one, missing)
        for number, key in enumerate(keys, 1):
            if key not in known:
                known[key] = run = next(found)
                if kept is not None:
                    kept.add(key, asdict(run))  # type: ignore[call-overload]
            print(f"\r{number} of {len(keys)} runs", end="", file=sys.stderr, flush=True)
            yield known[key]
        print(file=sys.stderr)


def report(document: Document, text: str, options: argparse.Namespace) -> None:
    """Write what was asked for, and print the JSON object or the text."""
    written = json.dumps(finite(document), indent=1)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(written + "\n", encoding="utf-8")
    print(written if options.json else text)


def finite(value: object) -> object:
    """The same for JSON, which knows no infinity: what never came is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def command(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a benchmark as a command; what cannot be measured is said in one line."""
    try:
        sys.exit(main(sys.argv[1:]))
    except BenchmarkError as error:
        print(f"{Path(sys.argv[0]).stem}: {error}", file=sys.stderr)
        sys.exit(2)


def version_of(sources: Iterable[str], root: Path = REPOSITORY) -> str:
    """A short digest of these files, and of all Python and JSON files in these folders, by their paths below `root`.

    Raises:
        FileNotFoundError: if one of them does not exist
    """
    found: set[Path] = set()
    for source in sources:
        path = root / source
        if not path.exists():
            raise FileNotFoundError(path)
        if path.is_dir():
            found.update(file for file in path.rglob("*") if file.suffix in (".py", ".json"))
        else:
            found.add(path)
    digest = hashlib.sha256()
    for path in sorted(found):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


class RunsFile:
    """The runs in `path`, which need not exist yet.

    Raises:
        BenchmarkError: if the file cannot be read or written, a line is not a run, or is one of another version
    """

    def __init__(self, path: Path, version: str) -> None:
        self._path, self._version = path, version
        self._runs: dict[Key, Document] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="ascii") if path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise BenchmarkError(f"{path}: not a file of runs: {error}") from error
        *lines, cut_off = text.split("\n")
        for number, line in enumerate(lines, 1):
            self._take(number, line)
        if not (cut_off.startswith(BEGINNING) or BEGINNING.startswith(cut_off)):
            raise BenchmarkError(f"{path}: line {len(lines) + 1} is not a run")
        try:
            self._file = path.open("a", encoding="ascii")  # so that no process writes over what another one has added
        except OSError as error:
            raise BenchmarkError(f"{path}: not a file of runs: {error}") from error
        if cut_off:  # while it was written; its run is run again
            self._file.truncate(len(text) - len(cut_off))

    def _take(self, number: int, line: str) -> None:
        try:
            entry = json.loads(line)
            key, run, version = tuple(entry["of"]), dict(entry["run"]), entry["version"]
            hash(key)
        except (ValueError, KeyError, TypeError) as error:
            raise BenchmarkError(f"{self._path}: line {number} is not a run: {error!r}") from error
        if version != self._version:
            raise BenchmarkError(
                f"{self._path}: line {number} is a run of version {version}, and these sources are {self._version}: "
                "choose another file"
            )
        self._runs[key] = run

    def __enter__(self) -> RunsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def get(self, key: Sequence[Any]) -> Document | None:
        """The figures of this run, if it is there."""
        return self._runs.get(tuple(key))

    def add(self, key: Sequence[Any], run: Document) -> None:
        """Keep the figures of a run; they are in the file when this returns."""
        self._runs[tuple(key)] = run
        self._file.write(json.dumps({"of": list(key), "run": run, "version": self._version}) + "\n")
        self._file.flush()
