"""Reach into the sockets of other processes: where each leads, and whether anything may arrive at it.

The kernel gives a duplicate of another process' descriptor to whoever may trace that process (pidfd_getfd, Linux 5.6),
as the runner may its workers; it takes no further rights. Options belong to the socket and not to a descriptor, so
each duplicate is closed at once: the connection of a worker that is killed ends only with the last descriptor of it.

TCP drops packets that may travel less far than a socket asks for, and one that asks for the most there is gets none:
senders begin with 64. A filter, which silences other sockets, is refused for TCP by some kernels without CAP_NET_ADMIN.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PIDFD_GETFD = 438  # the same on every architecture that Python names pidfd_open for
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27  # asm-generic/socket.h; Python has no names for these
IP_MINTTL, IPV6_MINHOPCOUNT = 21, 73  # linux/in.h, linux/in6.h
MOST_HOPS = 255
RETURN_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)  # one instruction (linux/filter.h): keep 0 bytes of a packet
_LINK = "socket:["
_MAPPED = "::ffff:"

Address = tuple[str, int]

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Ends:
    """Where an internet socket leads: its own address and the other end's, None while there is none."""

    local: Address
    remote: Address | None


def inodes(pid: int) -> dict[int, int]:
    """The sockets of a process, by inode, each with one descriptor of it; empty if there is no such process."""
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                target = str(Path(entry.path).readlink())
                if target.startswith(_LINK):
                    found[int(target[len(_LINK) : -1])] = int(entry.name)
    return found


@contextlib.contextmanager
def duplicate(pid: int, descriptor: int, inode: int) -> Iterator[socket.socket | None]:
    """A socket of another process as long as the context lasts; None if it is gone meanwhile.

    Raises PermissionError if this process may not trace the other one, OSError with ENOSYS where the kernel is too old.
    """
    copy = _duplicate(pid, descriptor)
    if copy is not None and os.fstat(copy).st_ino != inode:
        os.close(copy)  # it means something else by now
        copy = None
    if copy is None:
        yield None
        return
    with socket.socket(fileno=copy) as found:
        yield found


def _duplicate(pid: int, descriptor: int) -> int | None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        copy = int(_libc.syscall(PIDFD_GETFD, process, descriptor, 0))
        if copy >= 0:
            return copy
        number = ctypes.get_errno()
        if number in (errno.ESRCH, errno.EBADF):
            return None
        raise OSError(number, os.strerror(number))
    finally:
        os.close(process)


def ends_of(found: socket.socket) -> Ends | None:
    """Where a socket leads; None for one that is not of the internet, which leaves no machine."""
    if found.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    local = _address(found.getsockname())
    try:
        return Ends(local, _address(found.getpeername()))
    except OSError:  # it listens, or is not connected yet
        return Ends(local, None)


def _address(name: tuple[str, int]) -> Address:
    return name[0].removeprefix(_MAPPED), name[1]


def silence(found: socket.socket) -> None:
    """Let nothing arrive at a socket: data, ends of connections, attempts to connect. Raises OSError."""
    if found.type == socket.SOCK_STREAM:
        _set_least_hops(found, MOST_HOPS)
    else:
        program = ctypes.create_string_buffer(RETURN_NOTHING, len(RETURN_NOTHING))
        found.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))


def restore(found: socket.socket) -> None:
    """Take back `silence`; harmless without it. Raises OSError."""
    if found.type == socket.SOCK_STREAM:
        _set_least_hops(found, 0)
    else:
        with contextlib.suppress(FileNotFoundError):
            found.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)


def is_silent(found: socket.socket) -> bool:
    """Whether a connection, or what accepts connections, is silenced."""
    return found.getsockopt(socket.IPPROTO_IP, IP_MINTTL) == MOST_HOPS


def _set_least_hops(found: socket.socket, hops: int) -> None:
    found.setsockopt(socket.IPPROTO_IP, IP_MINTTL, hops)
    if found.family == socket.AF_INET6:
        found.setsockopt(socket.IPPROTO_IPV6, IPV6_MINHOPCOUNT, hops)
