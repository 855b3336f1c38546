"""The worker's side of the process that vouches for it while its interpreter is held."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from heterotrain.groups.peering.vouching import Listener, Order

log = logging.getLogger(__name__)

_MOST_BYTES = 2**22  # not read yet; a process that reads no more is given up
_ENDING_SECONDS = 2.0
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from heterotrain.groups.peering.vouching import main; main()"


class Voucher:
    """Starts that process, and tells it that this worker lives. Nothing here waits, and nothing fails with it."""

    def __init__(self, order: Order) -> None:
        self._unwritten = bytearray()
        self._process: subprocess.Popen[bytes] | None = None
        root = str(Path(__file__).resolve().parents[2])
        quiet = subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, root],
                stdin=subprocess.PIPE,
                stdout=quiet,
                stderr=quiet,
                bufsize=0,
                start_new_session=True,  # a terminal's interrupt is for the worker, which ends in order
            )
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
        except OSError as error:
            log.warning("nobody will speak for this worker while its interpreter is held: %s", error)
        self._write(order.to_json())

    def lives(self) -> None:
        """This worker's threads run."""
        if not self._unwritten:
            self._write("")

    def listen(self, listeners: Sequence[Listener]) -> None:
        """These judge from now on whether this worker is silent."""
        self._write(json.dumps(list(listeners)))

    def close(self) -> None:
        """This worker needs nobody who speaks for it any more."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _write(self, line: str) -> None:
        if self._process is None or self._process.stdin is None:
            return
        self._unwritten += line.encode() + b"\n"
        try:
            while self._unwritten:
                del self._unwritten[: os.write(self._process.stdin.fileno(), self._unwritten)]
        except BlockingIOError:
            if len(self._unwritten) > _MOST_BYTES:
                self.close()
        except OSError:
            log.warning("the process that would speak for this worker while its interpreter is held has ended")
            self.close()
