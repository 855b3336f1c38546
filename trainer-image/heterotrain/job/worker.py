"""This process as a worker of a job: its environment, its device, and its signals."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from heterotrain import contract
from heterotrain.contract import TrainingConfig
from heterotrain.groups.peering.frames import SECRET_LENGTH

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Worker:
    """Who this worker is; the operator's side of it is in `heterotrain.contract`."""

    job: str
    name: str
    uid: str
    group: str
    plan_dir: Path
    config: TrainingConfig
    global_batch_size: int | None
    metrics_port: int
    series: Path | None
    termination_log: Path
    job_uid: str = ""
    elastic: bool = True
    warms_up: bool = False
    serves: bool = False
    secret: str | None = field(default=None, repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Worker | None:
        """The worker that the environment describes; None outside any job. Raises ValueError, naming the variable, if
        the environment is incomplete."""
        if contract.ENV_JOB not in environment:
            return None
        missing = [
            name
            for name in (contract.ENV_WORKER, contract.ENV_UID, contract.ENV_PLAN_DIR, contract.ENV_CONFIG)
            if name not in environment
        ]
        if missing:
            raise ValueError(f"{contract.ENV_JOB} is set, but not {', '.join(missing)}")
        config = TrainingConfig.from_json(environment[contract.ENV_CONFIG])
        unknown = TrainingConfig.unknown_in(environment[contract.ENV_CONFIG])
        if unknown:
            log.warning("this version of the library passes over what it does not know: %s", ", ".join(unknown))
        series = environment.get(contract.ENV_SERIES)
        batch = environment.get(contract.ENV_GLOBAL_BATCH_SIZE)
        return cls(
            job=environment[contract.ENV_JOB],
            name=environment[contract.ENV_WORKER],
            uid=environment[contract.ENV_UID],
            group=environment.get(contract.ENV_GROUP, ""),
            plan_dir=Path(environment[contract.ENV_PLAN_DIR]),
            config=config,
            global_batch_size=int(batch) if batch else None,
            metrics_port=int(environment.get(contract.ENV_METRICS_PORT, contract.DEFAULT_METRICS_PORT)),
            series=Path(series) if series else None,
            termination_log=Path(environment.get(contract.ENV_TERMINATION_LOG, contract.DEFAULT_TERMINATION_LOG)),
            job_uid=environment.get(contract.ENV_JOB_UID, ""),
            elastic=_is_elastic(environment),
            warms_up=environment.get(contract.ENV_WARM_UP) == "1",
            serves=environment.get(contract.ENV_ROLE) == contract.ROLE_SERVER,
            secret=_secret(environment),
        )


def _is_elastic(environment: Mapping[str, str]) -> bool:
    """Whether members change while the others train, as they do unless the user has set the variable to 0. Raises
    ValueError for anything but 0 and 1: a typing error must not decide it."""
    value = environment.get(contract.ENV_ELASTIC) or "1"  # a template may set it to nothing
    if value not in ("0", "1"):
        raise ValueError(f"{contract.ENV_ELASTIC}: expected 0 or 1, found {value!r}")
    return value == "1"


def _secret(environment: Mapping[str, str]) -> str | None:
    """The job's secret, None if there is none. Raises ValueError for one that is easily guessed, such as an empty
    one."""
    secret = environment.get(contract.ENV_SECRET)
    if secret is not None and len(secret) < SECRET_LENGTH:
        raise ValueError(f"{contract.ENV_SECRET}: expected at least {SECRET_LENGTH} characters, found {len(secret)}")
    return secret


def limit_threads(environment: Mapping[str, str]) -> None:
    """Use one thread per whole core of the CPU limit, at least one, unless the user set OMP_NUM_THREADS.

    More threads than the limit only take turns at being throttled.
    """
    limit = environment.get(contract.ENV_CPU_LIMIT)
    if limit and "OMP_NUM_THREADS" not in environment:
        torch.set_num_threads(max(1, math.floor(float(limit))))


class MissingDeviceError(RuntimeError):
    """A worker does not have the device that its group promises; the text says how to train without it."""


def choose_device(config: TrainingConfig) -> torch.device:
    """The device of this worker.

    Raises MissingDeviceError if a GPU was promised, none is there, and `onMissingDevice` is Fail.
    """
    if config.device == "gpu":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        if config.on_missing_device != "UseCPU":
            raise MissingDeviceError(
                "spec.workerGroups[].device is gpu, but torch finds no GPU here; "
                "set onMissingDevice: UseCPU to train on the CPU instead"
            )
        log.warning("no GPU found; training on the CPU, as onMissingDevice says")
    return torch.device("cpu")


class StopRequest:
    """Set by SIGTERM. While `deferred`, the training agrees on it at a step boundary and leaves in order; before and
    after the training the worker leaves at once."""

    def __init__(self) -> None:
        self.requested = False
        self.deferred = False
        self._at = math.inf

    @property
    def seconds(self) -> float:
        """For how long it has been set; 0 before."""
        return max(0.0, time.monotonic() - self._at)

    def install(self) -> None:
        """Take SIGTERM over (from the main thread only, as Python demands). Processes that the script forks answer to
        it as they would have done before, or nothing could end them."""
        before = signal.signal(signal.SIGTERM, self._on_signal)
        os.register_at_fork(after_in_child=lambda: self._put_back(before))

    def _put_back(self, before: Any) -> None:
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:
            self._at = time.monotonic()
        self.requested = True
        if not self.deferred:
            raise SystemExit(contract.EXIT_PREEMPTED)
