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
        RunsError: if a line is not a run, or is one of another version
    """

    def __init__(self, path: Path, version: str) -> None:
        self._path, self._version = path, version
        self._runs: dict[Key, Mapping[str, Any]] = {}
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text.rfind("\n") + 1
        for number, line in enumerate(text[:whole].splitlines(), 1):
            self._take(number, line)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("r+" if path.exists() else "w", encoding="utf-8")
        # A line without an end was cut off while it was written; its run is run again.
        self._file.truncate(len(text[:whole].encode()))
        self._file.seek(0, 2)

    def _take(self, number: int, line: str) -> None:
        try:
            entry = json.loads(line)
            key, run, version = tuple(entry["of"]), entry["run"], entry["version"]
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
