"""Emulated workers: processes whose compute is a calibrated wait, so that unequal workers repeat to about 1 %.

The trainer, the plans and the loop are the real ones, and so is the (tiny) model. A step waits as long as `seconds`
says for its batch, for the CPU limit of the moment, which nothing imposes, and for the neighbours of the moment, times
seeded noise. So the figures show what steering does, and nothing of what a machine can compute: every output that rests
on such workers says that they are emulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from emulated_law import ENV_SHARE

from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.limits.mechanism import set_stopped, unique_name

DESCRIPTION = "emulated: workers wait instead of computing, for as long as their limits and neighbours say"


class EmulatedLimits:
    """The limits of one worker: a file that says what they are. Its processes are found by their mark."""

    joins: tuple[Path, ...] = ()

    def __init__(self, mark: str, folder: Path, cores: float | None) -> None:
        self._file = folder / mark
        self.environment: Mapping[str, str] = {leftovers.ENV_LIMITS: mark, ENV_SHARE: str(self._file)}
        self._session: int | None = None
        self._cores = cores
        self._neighbours = 0
        self._write()

    def started(self, pid: int) -> None:
        """Take note of the session, by which the processes are found."""
        self._session = pid

    def set_cores(self, cores: float | None) -> None:
        """Takes effect with the next step."""
        self._cores = cores
        self._write()

    def set_neighbours(self, count: int, cpu: int | None) -> None:
        """Takes effect with the next step; no process is started."""
        self._neighbours = count
        self._write()

    def set_stopped(self, stopped: bool) -> None:
        """As `Limits.set_stopped`."""
        set_stopped(self.pids, stopped=stopped)

    def cores(self) -> float | None:
        """As last set."""
        return self._cores

    def cpu_seconds(self) -> float:
        """Not counted: a wait uses no CPU."""
        return 0.0

    def out_of_memory(self) -> bool:
        """Memory is not limited."""
        return False

    def pids(self) -> set[int]:
        """Those of the worker's session, or that carry its mark."""
        mark = f"{leftovers.ENV_LIMITS}={self.environment[leftovers.ENV_LIMITS]}"
        return set() if self._session is None else leftovers.session_pids(self._session, mark)

    def remove(self) -> bool:
        """True once its last process is gone."""
        pids = self.pids()
        leftovers.kill(pids)
        return not pids

    def _write(self) -> None:
        # A worker may read at any moment: it sees the one or the other.
        part = self._file.with_suffix(".part")
        part.write_text(f"{1.0 if self._cores is None else self._cores} {self._neighbours}", encoding="ascii")
        part.replace(self._file)


class Emulated:
    """The mechanism: nothing is limited, and every worker finds in a file below `folder` what it is to emulate."""

    name = "emulated"
    parents: tuple[Path, ...] = ()

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def describe(self) -> str:
        """As `Mechanism.describe`."""
        return DESCRIPTION

    def create(self, worker: str, cores: float | None, memory_bytes: int | None, owner: str) -> EmulatedLimits:
        """As `Mechanism.create`; memory is not limited."""
        return EmulatedLimits(unique_name(owner, worker), self._folder, cores)
