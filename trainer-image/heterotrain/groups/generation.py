"""The process groups of one attempt of a generation; they are never repaired.

When a collective fails on one rank, it shuts the sockets of the whole generation: every pending collective fails at
once, here and at the others, and those that are left meet again under the next attempt (`assembly.py`).
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from heterotrain.contract import Plan
from heterotrain.groups.convening.roster import Number
from heterotrain.groups.peering.board_store import CONNECT_TRIES
from heterotrain.groups.sockets import SocketCutter

CPU = torch.device("cpu")
# All are here when groups are made, so a member that is not connected by then has died in between or is cut off.
GROUP_SECONDS = 15.0
# Beyond this a collective is lost even if no other sign shows it; the operator acts on silent workers long before.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
# How long a worker that was asked to stop waits for the others to end the step. What it does afterwards must fit into
# the 30 s that Kubernetes grants.
STOP_SECONDS = 20.0
# How often a waiting worker looks whether the groups were given up meanwhile. Each look takes 0.3 ms of CPU time.
_LOOK = timedelta(seconds=0.2)


class CollectiveError(RuntimeError):
    """A collective failed, or its groups were given up meanwhile."""


def is_collective_error(error: RuntimeError) -> bool:
    """Whether an error comes from torch.distributed or gloo (which raises plain RuntimeErrors), not from a model."""
    return isinstance(error, (CollectiveError, dist.DistError)) or "gloo" in str(error).lower()


class Collective:
    """A collective under way; its tensors belong to it until `wait` has returned."""

    __slots__ = ("_backend", "_generation", "_work")

    def __init__(self, generation: Generation, work: dist.Work, backend: str) -> None:
        self._generation = generation
        self._work = work
        self._backend = backend

    def wait(self, seconds: float = math.inf, look: Callable[[], None] = lambda: None) -> None:
        """Wait until it has ended; over nccl, until the device's current stream is ordered after it. `look` is called
        now and then meanwhile, and may raise.

        Raises CollectiveError if it failed, takes longer than `seconds`, or the groups were broken up meanwhile. Gloo
        can lose track of an operation on a connection that closes, and such an operation would never end by itself.
        """
        ended_well = False
        deadline = time.monotonic() + seconds
        try:
            self._generation.check()
            while not self._ended():
                self._generation.check_others()
                look()
                if time.monotonic() > deadline:
                    raise CollectiveError(f"a member did not come within {seconds:g} s")
            self._generation.check()
            ended_well = True
        except CollectiveError:
            raise
        except RuntimeError as error:
            raise CollectiveError(str(error)) from error
        finally:
            self._generation.ended(self, well=ended_well)

    def _ended(self) -> bool:
        """Whether it ended well within one look. Raises RuntimeError if it failed."""
        if self._backend == "nccl":
            self._work.wait()
            return True
        try:
            self._work.wait(_LOOK)
        except RuntimeError:
            if self._work.is_completed():
                self._work.wait()  # its own error, or none at all if it ended just now
                return True
            return False
        return True

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, well or not, without waiting."""
        return self._work.is_completed()

    def raise_its_error(self) -> None:
        """For a collective that has ended. Raises RuntimeError if it failed."""
        self._work.wait()


class Generation:
    """The process groups of one attempt: `gradients` (nccl if all members have GPUs, else gloo), `control` (gloo).

    They are no part of torch.distributed's own world, which stays the script's. The caller that begins a collective
    waits for it; no code of this process runs in gloo's threads.
    """

    gradients: dist.ProcessGroup
    control: dist.ProcessGroup

    def __init__(
        self,
        plan: Plan,
        number: Number,
        rank: int,
        cutter: SocketCutter,
        *,
        is_asked_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Once `is_asked_to_stop`, this worker waits no longer than `STOP_SECONDS`."""
        self.number = number
        self.rank = rank
        self.world_size = len(plan.members)
        self.backend = "gloo"
        self._cutter = cutter
        self._is_asked_to_stop = is_asked_to_stop
        self._stopping_since: float | None = None  # when that was first seen in waiting
        self._lock = threading.Lock()
        self._under_way: dict[Collective, None] = {}  # in the order in which they began
        self._given_up: list[Collective] = []
        self._broken = ""
        self.on_leave: Callable[[], None] = lambda: None
        self._left = False
        self._sum = dist.AllreduceOptions()

    def make_groups(self, store: dist.Store, prefix: str = "", for_nccl: dist.Store | None = None) -> None:
        """Connect to all other members, who do the same; gradients travel over NCCL if there is a store for it. Raises
        RuntimeError if that takes too long."""
        make = timedelta(seconds=GROUP_SECONDS / CONNECT_TRIES)
        self._store = store  # torch holds no reference that would keep one of Python's alive
        self.backend = "gloo" if for_nccl is None else "nccl"
        named = dist.PrefixStore(f"{prefix}{self.number}", store)
        self.control = self._gloo(dist.PrefixStore("control", named), make)
        if for_nccl is not None:
            options = dist.ProcessGroupNCCL.Options()
            own = dist.PrefixStore(f"{self.number}/gradients", for_nccl)
            nccl: Any = dist.ProcessGroupNCCL(own, self.rank, self.world_size, options)
            self.gradients = nccl
        else:
            self.gradients = self._gloo(dist.PrefixStore("gradients", named), make)

    def _gloo(self, store: dist.Store, make: timedelta) -> dist.ProcessGroup:
        group: Any = dist.ProcessGroupGloo(store, self.rank, self.world_size, make)
        group._set_default_timeout(COLLECTIVE_TIMEOUT)  # torch has no public name for it on a group of this kind
        made: dist.ProcessGroup = group
        return made

    @property
    def repeats(self) -> bool:
        """Whether it is known which steps are committed once a collective has failed, so that a step can be repeated.
        Over nccl it is not: what that calls completed is only enqueued."""
        return self.backend != "nccl"

    def sum_gradients(self, tensor: torch.Tensor) -> Collective:
        """Sum over all members, in place. Raises RuntimeError if the groups are broken already."""
        return self._watched(self.gradients.allreduce([tensor], self._sum), self.backend)

    def sum(self, tensor: torch.Tensor) -> Collective:
        """Sum small tensors on the CPU over all members, in place, beside the gradients."""
        return self._watched(self.control.allreduce([tensor], self._sum))

    def broadcast(self, tensor: torch.Tensor, source: int) -> Collective:
        """Send the tensor of rank `source` to all, in place, on the CPU. Raises RuntimeError as `sum_gradients`."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        return self._watched(self.control.broadcast([tensor], options))

    def exchange(
        self, sent: torch.Tensor, to_each: Sequence[int], received: torch.Tensor, from_each: Sequence[int]
    ) -> Collective:
        """Send each rank its own part of `sent`, and put what each sends into `received`, in the ranks' order: vectors
        on the CPU, and how many elements go to and come from each rank. Raises RuntimeError as `sum_gradients`."""
        options = dist.AllToAllOptions()
        return self._watched(self.control.alltoall_base(received, sent, list(from_each), list(to_each), options))

    def _watched(self, work: dist.Work, backend: str = "gloo") -> Collective:
        collective = Collective(self, work, backend)
        self._under_way[collective] = None
        return collective

    def check(self) -> None:
        """Raises CollectiveError if these groups are broken. A collective that ends after that does not count, even if
        it ends well."""
        if self._broken:
            raise CollectiveError(self._broken)

    def ended(self, collective: Collective, *, well: bool) -> None:
        """The caller does not wait for it any more. One that did not end well may still be under way: if it was given
        up because another one failed, its groups are not broken yet."""
        self._under_way.pop(collective, None)
        if not well:
            self._given_up.append(collective)

    def check_others(self) -> None:
        """Look at the other collectives while one takes long, for gloo can lose track of it when a connection closes.

        Raises RuntimeError if another one has failed, or if this worker has to stop and cannot wait any longer.
        """
        self.check()
        if self._is_asked_to_stop():
            now = time.monotonic()
            if self._stopping_since is None:
                self._stopping_since = now
            if now - self._stopping_since > STOP_SECONDS:
                raise CollectiveError(
                    f"asked to stop, and the others did not come to the end of the step within {STOP_SECONDS:g} s"
                )
        for other in list(self._under_way):
            if other.has_ended:
                other.raise_its_error()

    def break_up(self, reason: str) -> None:
        """Fail all collectives of this attempt, here and at the others. Safe from any thread, any number of times."""
        with self._lock:
            first, self._broken = not self._broken, self._broken or reason
        if first:
            self._cutter.cut()
            self._abort_nccl()

    def _abort_nccl(self) -> None:
        """Ask nccl to give up, since its sockets are not known here; in a thread, for that may take long. Not tried on
        GPUs."""
        abort = getattr(self.__dict__.get("gradients"), "abort", None) if self.backend == "nccl" else None
        if abort is not None:
            threading.Thread(target=abort, name="heterotrain-abort", daemon=True).start()

    def leave(self) -> None:
        """Release the groups; nothing else may hold a reference to them. Calling it twice is harmless."""
        if self._left:
            return
        self._left = True
        waited_for = [*self._given_up, *self._under_way]
        self._given_up, self._under_way = [], {}
        _lost_track.release_ended()
        for name in ("gradients", "control"):
            group = self.__dict__.pop(name, None)
            if self._broken and group is not None:
                _lost_track.keep(group, waited_for)
            # It is released here and now: a thread of gloo's that is at work while the interpreter ends would take the
            # process down.
            del group
        self._cutter.release()
        self.on_leave()


class _LostTrack:
    """Keeps groups whose destructor would wait for an operation that gloo has lost track of, until that has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[tuple[Any, list[Collective]]] = []

    def keep(self, group: Any, collectives: Sequence[Collective]) -> None:
        """Hold the group, unless all its collectives have ended."""
        unfinished = [each for each in collectives if not each.has_ended]
        if unfinished:
            # Not even the end of the interpreter may release it.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
            with self._lock:
                self._kept.append((group, unfinished))

    def release_ended(self) -> None:
        """Release the groups whose collectives have all ended by now."""
        with self._lock:
            ended = [group for group, unfinished in self._kept if all(each.has_ended for each in unfinished)]
            self._kept = [(group, unfinished) for group, unfinished in self._kept if group not in ended]
        for group in ended:
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(group))


_lost_track = _LostTrack()
