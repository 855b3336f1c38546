"""The plan's ConfigMap as a folder, replaced as the kubelet does it, with the memory of decisions beside it.

Workers see the same files and the same atomicity as in a cluster. Plan and memory are one version, so that
they change under one precondition.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from heterotrain.contract import PLAN_FILE, Plan, PlanError, parse_plan
from heterotrain_operator.clusters.port import PlanConflictError

logger = logging.getLogger(__name__)

DATA = "..data"
NEXT_DATA = "..data_tmp"
LOCK = "..lock"
STATE_FILE = "state.json"
FOLDER_MODE = 0o755


@dataclass(frozen=True, slots=True)
class Stored:
    """What a volume holds; `version` is the precondition of the next write (None: nothing is written)."""

    version: str | None = None
    plan: Plan | None = None
    memory: str | None = None


class PlanVolume:
    """A folder that holds the plan as PLAN_FILE once there is one."""

    def __init__(self, directory: Path) -> None:
        """Makes the folder; what it holds already stays."""
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def read(self) -> Stored:
        """Plan and memory, of one version. A plan that somebody else damaged counts as none."""
        while True:
            version = self._version()
            if version is None:
                return Stored()
            folder = self.directory / version
            plan, memory = _text(folder / PLAN_FILE), _text(folder / STATE_FILE)
            if version == self._version():  # else it was replaced, and perhaps removed, while it was read
                return Stored(version, _plan(plan), memory)

    def write(self, expected: str | None, plan: Plan | None, memory: str) -> str:
        """Replace plan (None: keep the one there is) and memory at once. Returns the new version.

        Raises PlanConflictError if the version is not the expected one.
        """
        with self._locked():
            version = self._version()
            if version != expected:
                raise PlanConflictError(f"{self.directory}: found version {version}, expected {expected}")
            stamp = datetime.now(tz=UTC).strftime("..%Y_%m_%d_%H_%M_%S.")
            folder = Path(tempfile.mkdtemp(prefix=stamp, dir=self.directory))
            folder.chmod(FOLDER_MODE)
            old = self.directory / (expected or "") / PLAN_FILE
            if plan is not None:
                (folder / PLAN_FILE).write_text(plan.to_json(), encoding="utf-8")
            elif expected is not None and old.exists():
                os.link(old, folder / PLAN_FILE)  # the same file, so that workers do not take it for a new plan
            (folder / STATE_FILE).write_text(memory, encoding="utf-8")
            self._switch_to(folder.name)
            self._remove_all_but({folder.name, expected})
            return folder.name

    def _version(self) -> str | None:
        try:
            return str((self.directory / DATA).readlink())
        except FileNotFoundError:
            return None

    def _switch_to(self, name: str) -> None:
        link = self.directory / NEXT_DATA
        link.unlink(missing_ok=True)
        link.symlink_to(name)
        link.replace(self.directory / DATA)
        visible = self.directory / PLAN_FILE
        if (self.directory / name / PLAN_FILE).exists() and not visible.is_symlink():
            visible.symlink_to(Path(DATA) / PLAN_FILE)

    def _remove_all_but(self, kept: set[str | None]) -> None:
        """The version just replaced stays, for readers that have resolved its path already."""
        for folder in self.directory.glob("..2*/"):
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.directory / LOCK).open("a", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _plan(text: str | None) -> Plan | None:
    if text is None:
        return None
    try:
        return parse_plan(text)
    except PlanError as error:
        logger.warning("the published plan is malformed and counts as none: %s", error)
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
