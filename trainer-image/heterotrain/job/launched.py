"""A worker that torchrun has started, or another launcher with the same variables: how it meets the others.

There is no operator, and no volume. Workers describe themselves in the launcher's store, and rank 0 starts a process
that takes the operator's decisions and writes plans into a folder of rank 0's. Rank 0 leads, so the others get all but
the first plan from it as in any job; the first one comes through the store. Members stay: a launcher answers a death by
starting all again.
"""

from __future__ import annotations

import atexit
import importlib.util
import ipaddress
import json
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import DistError
from torch.distributed.rendezvous import rendezvous

from heterotrain import contract
from heterotrain.contract import Launch, LaunchedWorker, Plan, TrainingConfig
from heterotrain.foreign import is_text, parse_object, shown
from heterotrain.groups.peering.own_sockets import resolve
from heterotrain.job.planfile import PlanFile
from heterotrain.job.worker import Worker

log = logging.getLogger(__name__)

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_BALANCER = "heterotrain_operator.balancer"
_NEEDED = {"heterotrain_operator": "the trainer's image lacks it", "aiohttp": "it reads what workers export"}
_POLL_SECONDS = 0.05
_PORTS = range(10_000, 32_768)  # below those that the kernel serves outgoing connections from
_TRIES = 1000
_GPUS = "HETEROTRAIN_GPUS_OF_NODE"  # as many as there were before one alone was shown

_FOR_FRAMEWORKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_hidden: dict[str, str] = {}


def launcher_environment() -> dict[str, str]:
    """This process's environment, with what `hide_from_frameworks()` took out of it."""
    return {**os.environ, **_hidden}


def is_launched(environment: Mapping[str, str]) -> bool:
    """Whether a launcher has set all of its variables. Raises ValueError, naming what lacks, if there are others whom
    this process would never meet."""
    missing = [name for name in VARIABLES if name not in environment]
    if missing and environment.get("WORLD_SIZE", "1") not in ("", "1"):
        raise ValueError(f"WORLD_SIZE is {environment['WORLD_SIZE'][:80]}, but {', '.join(missing)} is not set")
    return not missing


def hide_from_frameworks() -> None:
    """Take a launcher's variables out of this process's environment, before accelerate makes a process group of them,
    and show it its own GPU alone; `join()` still knows them. Does nothing without a launcher, or when called again.

    Raises RuntimeError if CUDA is in use already, ValueError for a malformed variable.
    """
    if not is_launched(os.environ):
        return
    gpus = torch.cuda.device_count()
    if gpus and "LOCAL_RANK" in os.environ:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise RuntimeError("under torchrun import heterotrain.integrations before anything is done on a GPU")
        local = _whole(os.environ, "LOCAL_RANK")
        visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))).split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[local] if local < gpus else ""
        _hidden[_GPUS] = str(gpus)
    _hidden.update({name: os.environ.pop(name) for name in _FOR_FRAMEWORKS if name in os.environ})
    if _hidden["WORLD_SIZE"] != "1":
        atexit.register(_warn_of_none_met)


def _warn_of_none_met() -> None:
    if not hasattr(sys, "last_value"):  # else an error says why
        log.warning(
            "this process was started with others by torchrun, but ends without session.prepare() or a function of "
            "heterotrain.integrations that calls it: what it has trained, it has trained alone"
        )


class Launched:
    """This worker and its place among those that were started together."""

    def __init__(self, environment: Mapping[str, str], config: TrainingConfig) -> None:
        """Raises ValueError, naming the variable, for one that is malformed; ConnectionError for a host that is not
        there; ModuleNotFoundError on rank 0 without what balances."""
        self._rank = rank = _whole(environment, "RANK")
        self._world = _whole(environment, "WORLD_SIZE")
        if rank >= self._world:
            raise ValueError(f"RANK: {rank} is not below WORLD_SIZE, {self._world}")
        if rank == 0:
            for package, why in _NEEDED.items():
                if importlib.util.find_spec(package) is None:
                    raise ModuleNotFoundError(
                        f"workers that a launcher starts are balanced by {package} on rank 0, which is not installed "
                        f"({why}): pip install 'heterotrain[operator,trainer]'",
                        name=package,
                    )
        folder = Path(tempfile.mkdtemp(prefix="heterotrain-"))
        group, index, device = _place(environment, rank)
        self._meeting = f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
        host = _own_host(environment["MASTER_ADDR"], _whole(environment, "MASTER_PORT"))
        port, metrics_port = _free_port(), _free_port()
        name = f"{group}-{index}"
        uid = str(uuid.uuid4())
        self._own = LaunchedWorker(name, uid, group, index, device, f"{host}:{port}", f"{host}:{metrics_port}")
        self.worker = Worker(
            job="launched",
            name=name,
            uid=uid,
            group=group,
            plan_dir=folder,
            config=replace(config, device=device),
            global_batch_size=None,
            metrics_port=metrics_port,
            series=None,
            termination_log=folder / "termination-log",
            elastic=False,
        )
        self._store: Any = None
        self._leader_uid = ""
        self._balancer: subprocess.Popen[bytes] | None = None
        atexit.register(self._end, os.getpid())
        atexit.unregister(_warn_of_none_met)
        atexit.register(_warn_of_none_met)

    def _end(self, process: int) -> None:
        if os.getpid() != process:
            return  # a process that the script has forked
        if self._balancer is not None:
            self._balancer.kill()
            self._balancer.wait()
        shutil.rmtree(self.worker.plan_dir, ignore_errors=True)

    def meet(self, batch_size: int) -> Worker:
        """Find the others, each of which calls this too, and on rank 0 have them balanced with `batch_size` samples per
        step in all. Returns this worker with what all of them share.

        Raises TimeoutError, naming the ranks, if some do not come; ConnectionError if the place is taken or not there.
        """
        deadline = time.monotonic() + self.worker.config.startup_deadline_seconds
        timeout = timedelta(seconds=self.worker.config.startup_deadline_seconds)
        atexit.unregister(_warn_of_none_met)
        log.info(
            "rank %d of %d meets the others at %s, which takes until all have called session.prepare(), at most %g s",
            self._rank,
            self._world,
            self._meeting,
            self.worker.config.startup_deadline_seconds,
        )
        place = f"env://?rank={self._rank}&world_size={self._world}"
        try:
            self._store, _, _ = next(iter(rendezvous(place, timeout=timeout)))
        except DistError as error:  # its text has the reason, and a C++ stack below it
            raise ConnectionError(
                f"MASTER_ADDR, MASTER_PORT, WORLD_SIZE: rank {self._rank} of {self._world} did not find the others at "
                f"{self._meeting}: {str(error).partition(chr(10))[0]}"
            ) from error
        # The store may hold what workers wrote before all were started again. So rank 0 is only met by those who have
        # read its list, and they only believe a list that names them.
        self._store.set(f"heterotrain/worker/{self._rank}", self._own.to_json())
        head = self._gather(batch_size, deadline) if self._rank == 0 else self._await_head(deadline)
        self._leader_uid = head["uids"][0]
        return replace(self.worker, secret=head["secret"], global_batch_size=head["batch"])

    def _gather(self, batch_size: int, deadline: float) -> dict[str, Any]:
        head: dict[str, Any] = {"secret": secrets.token_hex(contract.SECRET_BYTES), "batch": batch_size, "uids": []}
        head["asked"] = _asked(self.worker.config)
        workers: list[LaunchedWorker] = []
        missing = list(range(self._world))
        while missing:
            found = [self._read(f"heterotrain/worker/{rank}") for rank in range(self._world)]
            if all(found):
                workers = [LaunchedWorker.from_json(each) for each in found]
                uids = [each.uid for each in workers]
                if uids != head["uids"]:
                    head["uids"] = uids
                    self._store.set("heterotrain/head", json.dumps(head))
                met = self._own.uid.encode()
                missing = [rank for rank in range(1, self._world) if self._read(f"heterotrain/met/{rank}") != met]
            else:
                missing = [rank for rank, each in enumerate(found) if not each]
            if missing:
                _wait(deadline, f"ranks {', '.join(map(str, missing[:16]))} of {self._world} have not come")
        self._start_balancer(Launch(str(self.worker.plan_dir), batch_size, tuple(workers)))
        return head

    def _await_head(self, deadline: float) -> dict[str, Any]:
        while True:
            document = self._read("heterotrain/head")
            head = parse_object(document, contract.MAX_PLAN_BYTES) if document else {}
            uids = head.get("uids")
            if isinstance(uids, list) and self._own.uid in uids:
                break
            _wait(deadline, "rank 0 has not come")
        if not (is_text(head.get("secret"), 256) and isinstance(head.get("batch"), int)):
            raise ValueError("rank 0 has written what this version of the library does not understand")
        theirs = head.get("asked")
        for name, own in _asked(self.worker.config).items():
            if isinstance(theirs, dict) and theirs.get(name, own) != own:
                raise ValueError(
                    f"{name} of join(): rank 0 asks for {shown(theirs[name])}, rank {self._rank} for {shown(own)}; "
                    "it must be the same on all ranks"
                )
        self._store.set(f"heterotrain/met/{self._rank}", uids[0])
        return head

    def _read(self, key: str) -> bytes:
        """What the store holds; empty if there is nothing yet."""
        return bytes(self._store.get(key)) if self._store.check([key]) else b""

    def _start_balancer(self, launch: Launch) -> None:
        self._balancer = subprocess.Popen(
            [sys.executable, "-m", _BALANCER],
            stdin=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is the workers'; their end is its own
        )
        pipe = self._balancer.stdin
        assert pipe is not None
        # It ends once nobody holds the pipe, so a forked process must not.
        os.register_at_fork(after_in_child=pipe.close)
        pipe.write(launch.to_json().encode() + b"\n")
        pipe.flush()

    def plan_file(self, on_reject: Callable[[], None]) -> PlanFile:
        """This worker's plans."""
        return _Relayed(self, on_reject)

    def balancer_ended(self) -> str:
        """How that has ended which balances, on rank 0; empty while it goes on."""
        code = None if self._balancer is None else self._balancer.poll()
        return "" if code is None else f"{_BALANCER} has ended with code {code}; if it says why, then above"

    def relay_first(self) -> None:
        """Rank 0 hands the first plan on through the store, and the others take it from there. Raises RuntimeError if
        nobody will make one."""
        key, path = f"heterotrain/plan/{self._leader_uid}", self.worker.plan_dir / contract.PLAN_FILE
        if self._rank == 0:
            if path.exists():
                self._store.set(key, path.read_bytes())
            elif ended := self.balancer_ended():
                raise RuntimeError(ended)
        elif document := self._read(key):
            path.write_bytes(document)


class _Relayed(PlanFile):
    """The plans of a launched worker: the first one through the store."""

    def __init__(self, launched: Launched, on_reject: Callable[[], None]) -> None:
        super().__init__(launched.worker.plan_dir, on_reject)
        self._launched = launched
        self._relayed = False
        self._alone = False  # nobody makes plans any more

    def newest(self, than: Plan | None = None) -> Plan | None:
        """See `PlanFile`."""
        if not self._relayed:
            self._launched.relay_first()
            self._relayed = super().newest() is not None
        elif not self._alone and (ended := self._launched.balancer_ended()):
            self._alone = True
            log.warning("%s. Batches stay as they are from now on", ended)
        return super().newest(than)


def _asked(config: TrainingConfig) -> dict[str, Any]:
    """What the script asks for, by the arguments of `join()`, in so far as the training depends on it: workers that ask
    for different things would train on other samples, or wait for one another for ever."""
    return {
        "epochs": config.epochs,
        "steps": config.steps,
        "seed": config.seed,
        "checkpoints": "a folder" if config.checkpoint_path is not None else None,
        "checkpoint_every_steps": config.checkpoint_every_steps,
    }


def _whole(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(f"{name}: expected a whole number, found {text[:80]!r}")
    return int(text)


def _place(environment: Mapping[str, str], rank: int) -> tuple[str, int, str]:
    """The worker's group, its index there, and its device. Workers of one node and one kind of device are a group; the
    first of a node get its GPUs, one each."""
    if "GROUP_RANK" not in environment or "LOCAL_RANK" not in environment:
        return "workers", rank, "cpu" if not torch.cuda.is_available() else "gpu"
    local, node = _whole(environment, "LOCAL_RANK"), f"node{_whole(environment, 'GROUP_RANK')}"
    gpus = _whole(environment, _GPUS) if _GPUS in environment else torch.cuda.device_count()
    if local >= gpus:
        return node, local - gpus, "cpu"
    if _GPUS not in environment:
        torch.cuda.set_device(local)
    return f"{node}-gpu", local, "gpu"


def _own_host(master: str, port: int) -> str:
    """How the other workers reach this machine: by the address from which it reaches rank 0's."""
    if not 0 < port < 1 << 16:
        raise ValueError(f"MASTER_PORT: expected a port, found {port}")
    try:
        family, address = resolve(master, port)[0]
    except OSError as error:
        raise ConnectionError(f"MASTER_ADDR: no such host: {master[:255]!r}: {error}") from error
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        host = str(probe.getsockname()[0])
    if ipaddress.ip_address(host).is_loopback and not _is_loopback(master):
        return master  # this is rank 0's machine, which knows itself by another address than the others do
    return f"[{host}]" if ":" in host else host


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _free_port() -> int:
    """Raises OSError if none was found. Another worker here draws others: the script may have seeded `random`."""
    for _ in range(_TRIES):
        port = secrets.choice(_PORTS)
        try:
            socket.create_server(("", port)).close()
        except OSError:
            continue
        return port
    raise OSError(f"no free port between {_PORTS.start} and {_PORTS.stop}")


def _wait(deadline: float, why: str) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(f"{why} to session.prepare() in time")
    time.sleep(_POLL_SECONDS)
