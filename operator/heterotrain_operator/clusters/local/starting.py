"""Start a worker as a process: its ports, its environment, its temporary files and its limits.

A worker listens seconds after its port is chosen, and a port from the range that the kernel serves outgoing connections
from could be taken by any connection until then. So workers' ports lie outside of it.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import shlex
import socket
import sys
import tempfile
import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from heterotrain import contract
from heterotrain_operator.api import (
    HeteroTrainingJob,
    ManifestError,
    Problem,
    global_batch_variable,
    training_config,
)
from heterotrain_operator.api.problems import render_path
from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.gpus import ENV_VISIBLE, GpuAssignment
from heterotrain_operator.clusters.local.limits import Mechanism
from heterotrain_operator.clusters.local.pod import Pod, usable
from heterotrain_operator.clusters.local.process import WorkerFiles, WorkerProcess
from heterotrain_operator.clusters.local.template import ProcessTemplate, environment_of, expand
from heterotrain_operator.core.model import SERVER_GROUP, WorkerKey

logger = logging.getLogger(__name__)

DEFAULT_NAMESPACE = "default"
OWN_PREFIX = "HETEROTRAIN_"
ENV_COMPILED = "TORCHINDUCTOR_CACHE_DIR"
"""Where torch keeps what it has compiled: by default among the temporary files, so that each worker would compile."""

SCRATCH_LETTERS = 8
"""Of a worker's uid, in the path of its temporary files: sockets may lie below it, whose paths have to be short."""

HOST = "127.0.0.1"
LOWEST_PORT = 10_000
EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL_EPHEMERAL_START = 32_768
PORT_ATTEMPTS = 1_000

INTERPRETERS = ("python", "python3")
EXECUTABLE_MODE = 0o755


def check_working_dirs(job: HeteroTrainingJob, templates: Mapping[str, ProcessTemplate]) -> None:
    """Raises ManifestError if a template asks for a working directory that this machine does not have."""
    problems = []
    for name, path, _ in job.spec.templates:
        folder = templates[name].working_dir
        if folder is not None and not Path(folder).is_dir():
            place = render_path((*path, "spec", "containers", 0, "workingDir"))
            problems.append(Problem(place, f"{folder} is no folder of this machine"))
    if problems:
        raise ManifestError(problems)


class Starter:
    """What all workers of one run have in common. Until `close` their temporary files have a folder."""

    def __init__(
        self,
        job: HeteroTrainingJob,
        templates: Mapping[str, ProcessTemplate],
        checkpoint_path: str | None,
        *,
        endless: bool,
        directory: Path,
        logs: Path,
        plan_directory: Path,
        mechanism: Mechanism,
        token: str,
    ) -> None:
        """`token` marks the processes as those of this run; the rest is as of `LocalCluster`."""
        self._job = job
        self._templates = templates
        self._configs = {
            group.name: replace(training_config(job, group.name), checkpoint_path=checkpoint_path, endless=endless)
            for group in job.spec.pod_groups
        }
        self._directory = directory
        self._logs = logs
        self._plan_directory = plan_directory
        self._mechanism = mechanism
        self._token = token
        self._secret = secrets.token_hex(contract.SECRET_BYTES)
        self._gpus = GpuAssignment(job, templates)
        self._ports = Ports()
        self._path = interpreter_path(directory / "bin")
        self._scratch = tempfile.TemporaryDirectory(prefix="heterotrain-", ignore_cleanup_errors=True)

    def start(self, key: WorkerKey, *, beside_training: bool, taken: Collection[str] = ()) -> Pod:
        """Start this worker; `taken` are the GPUs that others have. Raises LimitError or OSError if its process cannot
        be had."""
        template = self._templates[key.group]
        files = WorkerFiles(self._directory / "workers" / key.name, str(uuid.uuid4()), self._logs / key.name)
        address, metrics_port = f"{HOST}:{self._ports.take()}", self._ports.take()
        scratch = Path(self._scratch.name, files.uid[:SCRATCH_LETTERS])
        scratch.mkdir()
        shown = self._gpus.choose(key, taken)
        environment = self._environment(
            key, template, files, metrics_port, scratch, shown=shown, beside_training=beside_training
        )
        command = [expand(word, environment) for word in template.command]
        limits = self._mechanism.create(key.name, None, template.memory_bytes, self._token)
        process = WorkerProcess(
            command,
            environment,
            working_dir=template.working_dir,
            files=files,
            limits=limits,
            memory_bytes=template.memory_bytes,
            scratch=scratch,
        )
        logger.info("worker %s is process %d, its log is %s", key.name, process.pid, files.log)
        return Pod(key, files, address, f"{HOST}:{metrics_port}", template.cores, process, gpu=shown)

    def close(self) -> None:
        """Remove what the workers have left among their temporary files."""
        self._scratch.cleanup()

    def _environment(
        self,
        key: WorkerKey,
        template: ProcessTemplate,
        files: WorkerFiles,
        metrics_port: int,
        scratch: Path,
        *,
        shown: str | None,
        beside_training: bool,
    ) -> dict[str, str]:
        contract_part = {
            contract.ENV_JOB: self._job.metadata.name,
            contract.ENV_WORKER: key.name,
            contract.ENV_UID: files.uid,
            contract.ENV_GROUP: key.group,
            contract.ENV_PLAN_DIR: str(self._plan_directory),
            contract.ENV_CONFIG: self._configs[key.group].to_json(),
            contract.ENV_METRICS_PORT: str(metrics_port),
            contract.ENV_TERMINATION_LOG: str(files.termination),
            contract.ENV_SERIES: str(files.series),
            contract.ENV_SECRET: self._secret,
            leftovers.ENV_RUNNER: self._token,
        }
        contract_part |= global_batch_variable(self._job)
        is_server = self._job.spec.parameter_server is not None and key.group == SERVER_GROUP
        if is_server:
            contract_part |= {contract.ENV_ROLE: contract.ROLE_SERVER, contract.ENV_GROUP: ""}
        cores = usable(template.cores)
        if cores is not None:
            contract_part[contract.ENV_CPU_LIMIT] = str(cores)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(OWN_PREFIX)}
        # A container's temporary files go with it; a killed worker cannot remove its own.
        habits = {"PYTHONUNBUFFERED": "1", "TMPDIR": str(scratch)}
        habits |= {contract.ENV_WARM_UP: "1"} if beside_training and not is_server else {}
        compiled = {ENV_COMPILED: str(Path(tempfile.gettempdir(), f"torchinductor_{os.getuid()}"))}
        inherited |= {} if shown is None else {ENV_VISIBLE: shown}
        given = {**compiled, **inherited, "PATH": self._path, **habits, **contract_part}
        fields = {
            "metadata.name": key.name,
            "metadata.namespace": self._job.metadata.namespace or DEFAULT_NAMESPACE,
            "metadata.uid": files.uid,
        }
        return {**given, **environment_of(template.environment, fields, given), **contract_part}


def _ephemeral_start() -> int:
    try:
        start = int(EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    except OSError:
        return USUAL_EPHEMERAL_START
    return start if start > LOWEST_PORT + PORT_ATTEMPTS else USUAL_EPHEMERAL_START


def is_free(port: int) -> bool:
    """Whether nothing listens there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


class Ports:
    """Hands out each port once. Start at random, so that several runners on a machine rarely try the same."""

    def __init__(self) -> None:
        self._given: set[int] = set()

    def take(self) -> int:
        """A free port. Raises OSError if none was found."""
        top = _ephemeral_start()
        for _ in range(PORT_ATTEMPTS):
            port = random.randrange(LOWEST_PORT, top)
            if port not in self._given and is_free(port):
                self._given.add(port)
                return port
        raise OSError(f"no free port between {LOWEST_PORT} and {top} on {HOST}")


def interpreter_path(spare: Path) -> str:
    """A PATH in which `python` and `python3` are the interpreter that runs this.

    Where its own folder lacks a name, a small script in the folder `spare` stands in: a link would not find
    the packages of a virtual environment.
    """
    own = Path(sys.executable).parent
    folders = [str(own), os.environ.get("PATH", os.defpath)]
    missing = [name for name in INTERPRETERS if not (own / name).exists()]
    if missing:
        spare.mkdir(parents=True, exist_ok=True)
        for name in missing:
            script = spare / name
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
            script.chmod(EXECUTABLE_MODE)
        folders.insert(0, str(spare))
    return os.pathsep.join(folders)
