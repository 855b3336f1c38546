"""One pod as a process: started inside its limits, bound to the runner's life, and read for its last words."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heterotrain.contract import OUT_OF_MEMORY, Termination
from heterotrain.foreign import last_lines
from heterotrain_operator.clusters.local.limits import Limits
from heterotrain_operator.clusters.local.limits.mechanism import launcher
from heterotrain_operator.core.lifecycle.ends import LOG_TAIL, SIGNAL_EXIT_BASE, speaks_of_memory

TAIL_BYTES = 4096
TAIL_LINES = 5  # the error and where it arose; the log itself has the rest
LONGEST_LINE = 300
OWN_LINE = " INFO heterotrain."  # what the library says while all is well
MEBIBYTE = 1024**2
POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class WorkerFiles:
    """Where one worker leaves what. The log is that of all incarnations; the others belong to one of them.

    The log lies in `log_folder`, which may outlive the rest (None: in `folder`).
    """

    folder: Path
    uid: str
    log_folder: Path | None = None

    @property
    def log(self) -> Path:
        """Standard output and error."""
        return (self.log_folder or self.folder) / "log"

    @property
    def termination(self) -> Path:
        """Last words."""
        return self.folder / f"{self.uid}.termination"

    @property
    def series(self) -> Path:
        """One line per step."""
        return self.folder / f"{self.uid}.jsonl"


class WorkerProcess:
    """A running or ended worker. Nothing here waits, but for `close`."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        working_dir: str | None,
        files: WorkerFiles,
        limits: Limits,
        memory_bytes: int | None,
        scratch: Path | None = None,
    ) -> None:
        """Start it. Raises OSError if no process can be had; removing the limits is up to the caller. The folder
        `scratch` goes with the worker.

        The calling thread must live as long as the runner: the kernel kills the worker when that thread ends.
        """
        self.files = files
        self.limits = limits
        self.out_of_memory = False
        self._scratch = scratch
        self._memory_bytes = memory_bytes
        self._kill_at: float | None = None
        self._removed = self._ended = False
        files.folder.mkdir(parents=True, exist_ok=True)
        files.log.parent.mkdir(parents=True, exist_ok=True)
        with files.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [*launcher(limits.joins), *command],
                env={**environment, **limits.environment},
                cwd=working_dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        limits.started(self._process.pid)

    @property
    def pid(self) -> int:
        """Of its first process."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """As Kubernetes reports it (128 plus the signal's number); None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        if not self._ended:
            # Known with the code, and not a look later, for who sees the one decides by the other.
            self._ended, self.out_of_memory = True, self.limits.out_of_memory()
        return SIGNAL_EXIT_BASE - code if code < 0 else code

    def terminate(self, grace_seconds: float) -> None:
        """SIGTERM to its first process, as the kubelet does; `tend` kills it once the grace is over."""
        deadline = time.monotonic() + grace_seconds
        if self._kill_at is None and self.exit_code() is None:
            self._process.send_signal(signal.SIGTERM)
        self._kill_at = deadline if self._kill_at is None else min(deadline, self._kill_at)

    def tend(self) -> bool:
        """Kill it after its grace and clean up after its end, if due. Returns whether nothing is left."""
        if self._removed:
            return True
        if self.exit_code() is None:
            if self._kill_at is None or time.monotonic() < self._kill_at:
                return False
            self.limits.remove()
            return False
        self._removed = self.limits.remove()  # whatever it started goes with it, as in a container
        if self._removed and self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)  # what it has made itself may not be readable
        return self._removed

    def last_words(self) -> Termination:
        """What it reported of its end; of a worker that failed without a word, what can be known from outside."""
        try:
            termination = Termination.from_text(self.files.termination.read_text(errors="replace"))
        except OSError:
            termination = Termination(finished=False)
        code = self.exit_code()
        if self.out_of_memory and code:
            limit = f" of {self._memory_bytes / MEBIBYTE:g} MiB" if self._memory_bytes else ""
            return replace(termination, message=f"out of memory: over its limits.memory{limit}")
        if not code or termination.asked_to_stop:
            return termination
        return self._with_log(termination, code)

    def _with_log(self, termination: Termination, code: int) -> Termination:
        """Last words of a worker that failed, and the end of its log where it says more than they do."""
        lines = self._tail()
        words = termination.message or self._killed_by(code)
        said = termination.message.removeprefix(OUT_OF_MEMORY).splitlines()
        if said and said[0][-LONGEST_LINE:] in lines:
            return termination
        message = f"{words}{LOG_TAIL}{lines}" if words and lines else words or lines
        known = replace(termination, message="", step=0, evaluated=None) != Termination(finished=False)
        if not known and code <= SIGNAL_EXIT_BASE and speaks_of_memory(lines):
            return replace(termination, message=OUT_OF_MEMORY + message, out_of_memory=True)
        return replace(termination, message=message)

    def _killed_by(self, code: int) -> str:
        """Of which signal it ended, in words; empty if of none."""
        try:
            name = signal.Signals(code - SIGNAL_EXIT_BASE).name
        except ValueError:
            return ""
        if name != "SIGKILL":
            return f"ended by {name}"
        limit = f": its limit is {self._memory_bytes / MEBIBYTE:g} MiB" if self._memory_bytes else ""
        return f"ended by {name} (perhaps for want of memory{limit})"

    def _tail(self) -> str:
        """The last lines of this incarnation's log."""
        with self.files.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - TAIL_BYTES))
            text = log.read().decode(errors="replace")
        lines = [line for line in text.splitlines() if OWN_LINE not in line]
        return "\n".join(last_lines("\n".join(lines), TAIL_LINES, LONGEST_LINE))

    def set_stopped(self, stopped: bool) -> None:
        """Stop all of it, or let it go on."""
        self.limits.set_stopped(stopped)
        self._process.send_signal(signal.SIGSTOP if stopped else signal.SIGCONT)  # it may not be in its limits yet

    def kill(self) -> None:
        """SIGKILL to all of it, without waiting."""
        self._kill_at = 0.0
        self._process.kill()
        self.tend()

    def close(self, deadline: float) -> bool:
        """Kill it and clean up, until that moment of the monotonic clock. Returns whether nothing is left."""
        self._kill_at = 0.0
        while not self.tend():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True
