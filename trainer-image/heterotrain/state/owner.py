"""Which job writes its checkpoints into a folder, where several jobs of one cluster or of many can reach it.

A file in it holds the UID of the job, and the job's leader touches the file every few seconds. A leader of another job
that finds it waits for such a sign of life: with one it is refused, and without one the folder is its own from then on.
So a job that was killed keeps nobody out for long, no two clocks are compared, and no locks are needed, which network
file systems often lack. A job that ends in order removes the file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

from heterotrain.state.checkpoint import CheckpointError, cannot

log = logging.getLogger(__name__)

OWNER = ".owner"

BEAT_SECONDS = 3.0
SILENCE_SECONDS = 15.0
"""Without a sign of life for so long, a folder is free."""

_LOOK_SECONDS = 0.5
_LONGEST_UID = 253


class OwnedError(CheckpointError):
    """The checkpoint folder is another job's, which lives; the text names both."""

    fatal = True


class _Seen(NamedTuple):
    uid: str
    touched: int


class Ownership:
    """One worker's part in what its job does to keep a folder for itself."""

    def __init__(self, folder: Path, uid: str) -> None:
        self._folder, self._uid = folder, uid
        self._file = folder / OWNER
        self._over: threading.Event | None = None  # ends the thread that gives signs of life

    def claim(self) -> None:
        """Make the folder the job's, before anything in it is read or changed. Waits up to `SILENCE_SECONDS` if another
        job has not given it back. Raises OwnedError if that one lives, CheckpointError if the folder cannot be written
        to."""
        try:
            found = self._look()
            if found is not None and found.uid != self._uid:
                self._await_silence(found)
            self._write()
        except OSError as error:
            raise cannot("claim the checkpoint folder", self._folder, error) from error
        self.lead(True)

    def confirm(self) -> None:
        """Before a checkpoint is written: the folder still is the job's. Raises OwnedError if another job has taken it
        over, CheckpointError if the folder cannot be written to."""
        try:
            found = self._look()
            if found is None:
                self._write()
        except OSError as error:
            raise cannot("claim the checkpoint folder", self._folder, error) from error
        if found is not None and found.uid != self._uid:
            raise OwnedError(
                f"the checkpoint folder {self._folder} was taken over by the job of the UID {found.uid}, while this "
                f"job, of the UID {self._uid}, gave no sign of life or lost its file {OWNER}; nothing more is written"
            )
        self.lead(True)

    def lead(self, leads: bool) -> None:
        """Give signs of life from now on, as the leader does, or no more."""
        if leads and self._over is None:
            self._over = threading.Event()
            threading.Thread(target=self._beat, args=(self._over,), name="heterotrain-owner", daemon=True).start()
        elif not leads and self._over is not None:
            self._over.set()
            self._over = None

    def release(self) -> None:
        """The job writes no more: another one may have the folder at once. Nothing happens on a worker that has not
        written, for it does not know whether others still do."""
        if self._over is None:
            return
        self.lead(False)
        with contextlib.suppress(OSError):
            found = self._look()
            if found is not None and found.uid == self._uid:
                self._file.unlink(missing_ok=True)

    def _await_silence(self, found: _Seen) -> None:
        log.warning(
            "%s belongs to the job of the UID %s: waiting %g s for a sign of its life",
            self._folder,
            found.uid,
            SILENCE_SECONDS,
        )
        until = time.monotonic() + SILENCE_SECONDS
        while time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
            now = self._look()
            if now is None or now.uid == self._uid:
                return
            if now != found:
                raise OwnedError(
                    f"the checkpoint folder {self._folder} (spec.checkpoint.path) belongs to the job of the UID "
                    f"{now.uid}, which still runs; this one has the UID {self._uid}. Name another folder, or end that "
                    f"job first; whoever removes {self._file} takes the folder from it"
                )

    def _look(self) -> _Seen | None:
        """The file as it is now. It is opened each time, for then a network file system asks its server."""
        try:
            with self._file.open("rb") as file:
                text = file.read(_LONGEST_UID).decode(errors="replace")
                touched = os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return None
        return _Seen("".join(filter(str.isprintable, text)), touched)

    def _write(self) -> None:
        """Write the job's UID, so that nobody ever finds a part of it. Of two jobs that do so at the same moment one
        learns of it before its first checkpoint."""
        self._folder.mkdir(parents=True, exist_ok=True)
        own = self._folder / f"{OWNER}.{self._uid}"
        own.write_text(self._uid)
        own.replace(self._file)

    def _beat(self, over: threading.Event) -> None:
        while not over.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):  # it may pass, and the next checkpoint says what does not
                found = self._look()
                if found is not None and found.uid == self._uid:
                    os.utime(self._file)
