"""Processes that have imported torch already, since a short test would spend most of its time on its workers' imports.

A warm process forks one for each worker before any thread or group exists in it, and the fork runs the worker's script
as its own main program: its exit hooks, its last exception and the end of its interpreter are those of any process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

REQUEST_BYTES = 1 << 20
STACKS = signal.SIGQUIT
"""Asks a forked process where each of its threads stands."""


class Process:
    """One forked process, as subprocess.Popen has it."""

    def __init__(self, channel: socket.socket, pid: int) -> None:
        self.pid = pid
        self._channel = channel
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal. Raises TimeoutError."""
        if self._code is None:
            self._channel.settimeout(timeout)
            self._code = int(self._channel.recv(16).decode())
            self._channel.close()
        return self._code

    def poll(self) -> int | None:
        """The exit code, None as long as it runs."""
        with contextlib.suppress(BlockingIOError):
            return self.wait(0.0)
        return None

    def send_signal(self, sent: int) -> None:
        """Send a signal; does nothing if the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and its code is still on its way here
                os.kill(self.pid, sent)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class WarmServer:
    """The process that forks; it ends with the one that made it."""

    def __init__(self, modules: Sequence[str]) -> None:
        """`modules` are imported by it, none of which may start a thread."""
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, str(Path(__file__)), str(theirs.fileno()), *modules],
                pass_fds=[theirs.fileno()],
                env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )

    def start(self, command: Sequence[str], environment: Mapping[str, str], folder: Path, output: int) -> Process:
        """Run a script and its arguments in `folder`; both its outputs go to a file descriptor."""
        channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {"command": list(command), "environment": dict(environment), "folder": str(folder)}
        with theirs:
            socket.send_fds(self._ours, [json.dumps(request).encode()], [theirs.fileno(), output])
        return Process(channel, int(channel.recv(16).decode()))

    def close(self) -> None:
        """End the server; its forks belong to those that started them."""
        self._ours.close()
        self._server.wait()


def _await_request(requests: socket.socket) -> dict[str, object] | None:
    """Fork for each request. Returns it in the fork, and None in the server once no client is left."""
    forks: dict[int, socket.socket] = {}
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    while True:
        ready = {key.fileobj for key, _ in selector.select()}
        if woken in ready:
            woken.recv(4096)
            _tell_of_ended(forks)
        if requests not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES, 2)
        if not message:
            return None
        channel = socket.socket(fileno=descriptors[0])
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (selector, requests, woken, waker, channel, *forks.values()):
                each.close()
            os.dup2(descriptors[1], 1)
            os.dup2(descriptors[1], 2)
            os.close(descriptors[1])
            request: dict[str, object] = json.loads(message)
            return request
        os.close(descriptors[1])
        channel.send(str(pid).encode())
        forks[pid] = channel


def _tell_of_ended(forks: dict[int, socket.socket]) -> None:
    while forks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        channel = forks.pop(pid)
        with channel, contextlib.suppress(OSError):  # its client does not wait any more
            channel.send(str(os.waitstatus_to_exitcode(status)).encode())


def main() -> None:
    """The server's program, and in a fork the worker's."""
    import importlib
    import runpy

    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.freeze()  # or each fork looks through all that is imported when it ends, which takes longer than a test's steps
    request = _await_request(socket.socket(fileno=int(sys.argv[1])))
    if request is None:
        return
    faulthandler.register(STACKS)
    os.chdir(str(request["folder"]))
    environment = request["environment"]
    assert isinstance(environment, dict)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    command = request["command"]
    assert isinstance(command, list)
    sys.argv = command
    if command[0] == "-c":
        exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path.insert(0, str(Path(command[0]).parent.resolve()))
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main()
