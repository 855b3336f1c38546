"""Runs of a long benchmark, one to a line of a file, so that it can be done in parts and interrupted.

Each line holds what was run, its figures, and the version of the sources that decide them. Runs of two versions are
never mixed: a file that holds others is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]

Key = tuple[Any, ...]

BEGINNING = '{"of": ['
"""Of each line. What is cut off and begins otherwise is somebody else's file, which is left as it is."""


class RunsError(Exception):
    """A file of runs that cannot go on; the message names it and says why."""


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
        RunsError: if the file cannot be read or written, a line is not a run, or is one of another version
    """

    def __init__(self, path: Path, version: str) -> None:
        self._path, self._version = path, version
        self._runs: dict[Key, Mapping[str, Any]] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="ascii") if path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise RunsError(f"{path}: not a file of runs: {error}") from error
        *lines, cut_off = text.split("\n")
        for number, line in enumerate(lines, 1):
            self._take(number, line)
        if not (cut_off.startswith(BEGINNING) or BEGINNING.startswith(cut_off)):
            raise RunsError(f"{path}: line {len(lines) + 1} is not a run")
        try:
            self._file = path.open("a", encoding="ascii")  # so that no process writes over what another one has added
        except OSError as error:
            raise RunsError(f"{path}: not a file of runs: {error}") from error
        if cut_off:  # while it was written; its run is run again
            self._file.truncate(len(text) - len(cut_off))

    def _take(self, number: int, line: str) -> None:
        try:
            entry = json.loads(line)
            key, run, version = tuple(entry["of"]), dict(entry["run"]), entry["version"]
            hash(key)
        except (ValueError, KeyError, TypeError) as error:
            raise RunsError(f"{self._path}: line {number} is not a run: {error!r}") from error
        if version != self._version:
            raise RunsError(
                f"{self._path}: line {number} is a run of version {version}, and these sources are {self._version}: "
                "choose another file"
            )
        self._runs[key] = run

    def __enter__(self) -> RunsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def get(self, key: Sequence[Any]) -> Mapping[str, Any] | None:
        """The figures of this run, if it is there."""
        return self._runs.get(tuple(key))

    def add(self, key: Sequence[Any], run: Mapping[str, Any]) -> None:
        """Keep the figures of a run; they are in the file when this returns."""
        self._runs[tuple(key)] = run
        self._file.write(json.dumps({"of": list(key), "run": run, "version": self._version}) + "\n")
        self._file.flush()
