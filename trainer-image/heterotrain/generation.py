"""The process groups of one attempt of a generation; they are never repaired.

When a collective fails on one rank, it shuts the sockets of the whole generation: every pending collective fails at
once, here and at the others, and all meet again under the next attempt (`membership.py`).
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from heterotrain.contract import Plan
from heterotrain.seal import SealedStore
from heterotrain.sockets import SocketCutter

CPU = torch.device("cpu")
# All members are here when groups are made, so whoever is not connected by then died in between.
GROUP_SECONDS = 10.0
# Beyond this a collective is lost even if nobody noticed; the operator acts on silent workers long before.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)


class CollectiveError(RuntimeError):
    """A collective failed, or its groups were given up meanwhile."""


Then = Callable[[Callable[[], Any]], Any]
"""What to make of a collective's outcome; see `Generation.watch`."""


def _fail(reason: str) -> Any:
    raise CollectiveError(reason)


def _settle(promise: torch.futures.Future[Any], outcome: Callable[[], Any], then: Then | None) -> None:
    try:
        result = outcome() if then is None else then(outcome)
    except RuntimeError as error:
        promise.set_exception(CollectiveError(str(error)))
        return
    promise.set_result(result)


def is_collective_error(error: RuntimeError) -> bool:
    """Whether an error comes from torch.distributed or gloo (which raises plain RuntimeErrors), not from a model."""
    return isinstance(error, (CollectiveError, dist.DistError)) or "gloo" in str(error).lower()


class Generation:
    """The process groups of one attempt: `gradients` (nccl if all members have GPUs, else gloo), `control` (gloo).

    They are no part of torch.distributed's own world, which stays the script's. Whoever waits for a collective waits
    for what `watch` returns: gloo can lose track of an operation on a connection that closes, and such a one would
    never end by itself.
    """

    gradients: dist.ProcessGroup
    control: dist.ProcessGroup

    def __init__(self, plan: Plan, attempt: int, rank: int, cutter: SocketCutter, backend: str = "gloo") -> None:
        self.number = f"{plan.generation}.{attempt}"
        self.attempt = attempt
        self.rank = rank
        self.world_size = len(plan.members)
        self.backend = backend
        self._cutter = cutter
        self._lock = threading.Lock()
        self._outstanding: dict[torch.futures.Future[Any], tuple[float, Then | None]] = {}
        self._broken = ""
        self._left = False
        self._sum = dist.AllreduceOptions()

    def make_groups(self, store: dist.Store) -> None:
        """Connect to all other members, who do the same. Raises RuntimeError if that takes too long."""
        make = timedelta(seconds=GROUP_SECONDS)
        self._store = store  # torch holds no reference that would keep one of Python's alive
        prefix = dist.PrefixStore(self.number, store)
        self.control = self._gloo(dist.PrefixStore("control", prefix), make)
        if self.backend == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            own: dist.Store = dist.PrefixStore("gradients", prefix)
            if isinstance(store, SealedStore):
                own = store.plain(f"{self.number}/gradients")
            nccl: Any = dist.ProcessGroupNCCL(own, self.rank, self.world_size, options)
            self.gradients = nccl
        else:
            self.gradients = self._gloo(dist.PrefixStore("gradients", prefix), make)

    def _gloo(self, store: dist.Store, make: timedelta) -> dist.ProcessGroup:
        group: Any = dist.ProcessGroupGloo(store, self.rank, self.world_size, make)
        group._set_default_timeout(COLLECTIVE_TIMEOUT)  # torch has no public name for it on a group of this kind
        made: dist.ProcessGroup = group
        return made

    def sum_gradients(self, tensor: torch.Tensor, then: Then | None = None) -> torch.futures.Future[Any]:
        """Sum over all members, in place; `then` is as for `watch`. Raises RuntimeError if the groups are broken
        already."""
        return self.watch(self.gradients.allreduce([tensor], self._sum), tensor.device, then)

    def sum(self, tensor: torch.Tensor) -> torch.futures.Future[Any]:
        """The same of small tensors on the CPU, beside the gradients."""
        return self.watch(self.control.allreduce([tensor], self._sum))

    def broadcast(self, tensor: torch.Tensor, source: int) -> torch.futures.Future[Any]:
        """That of rank `source` for all, in place, on the CPU. Raises RuntimeError as above."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        return self.watch(self.control.broadcast([tensor], options))

    def watch(self, work: dist.Work, device: torch.device = CPU, then: Then | None = None) -> torch.futures.Future[Any]:
        """A future that ends when the collective does, or at once with a CollectiveError when this attempt is broken
        up. `device` is that of its tensors: on a GPU whoever waits is ordered after them in its stream.

        The future has what `then` makes of the outcome: a function that it may call returns the collective's value, or
        raises RuntimeError. (A second future that follows the first would take a thread once more.)
        """
        promise: torch.futures.Future[Any] = torch.futures.Future(devices=None if device == CPU else [device])
        with self._lock:
            broken = self._broken
            if not broken:
                self._outstanding[promise] = (time.monotonic(), then)
        if broken:
            # Even if it completes: what was begun after the break does not count.
            _settle(promise, partial(_fail, broken), then)
            return promise

        def end(done: torch.futures.Future[Any]) -> None:
            with self._lock:
                if self._outstanding.pop(promise, None) is None:
                    return  # broken up meanwhile
            _settle(promise, done.value, then)

        work.get_future().add_done_callback(end)
        return promise

    @property
    def waiting_seconds(self) -> float:
        """For how long the oldest collective under way has not ended; 0 if there is none."""
        with self._lock:
            began = [moment for moment, _ in self._outstanding.values()]
        return time.monotonic() - min(began) if began else 0.0

    def break_up(self, reason: str) -> None:
        """Fail all pending collectives of this attempt, here and at the others. Safe from any thread, any number of
        times."""
        with self._lock:
            first, self._broken = not self._broken, self._broken or reason
            abandoned = [(promise, then) for promise, (_, then) in self._outstanding.items()]
            self._outstanding.clear()
        if first:
            self._cutter.cut()
            self._abort_nccl()
        for promise, then in abandoned:
            _settle(promise, partial(_fail, reason), then)

    def _abort_nccl(self) -> None:
        """Its sockets are not known here, so it is asked to give up by itself, beside, for that may take long. Untried
        on GPUs."""
        abort = getattr(self.__dict__.get("gradients"), "abort", None) if self.backend == "nccl" else None
        if abort is not None:
            threading.Thread(target=abort, name="heterotrain-abort", daemon=True).start()

    def leave(self) -> None:
        """Release the groups, of which nobody else may hold a reference. Calling it twice is harmless."""
        if self._left:
            return
        self._left = True
        for name in ("gradients", "control"):
            group = self.__dict__.pop(name, None)
            if self._broken and group is not None:
                # Its destructor waits for operations that gloo may have lost track of, so it must never run. Otherwise
                # it must run now: a thread of gloo's that still returns from a callback while the interpreter ends
                # would take the process down.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
            del group
        self._cutter.release()
