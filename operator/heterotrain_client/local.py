"""Jobs on this machine, each a `heterotrain run` in a process of its own: a notebook goes on, and may end.

A run lies where the command line keeps it (`.heterotrain/runs/JOB/MOMENT`), so `heterotrain logs`, `explain` and `runs`
know it, too. Beside its folder lies another one with what was submitted and what the run itself printed. The file of
that output is locked as long as the run lives: the lock belongs to its process, so it tells the truth to every client.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from heterotrain_client.backend import Document
from heterotrain_client.errors import (
    ClientError,
    InvalidJobError,
    JobExistsError,
    JobNotFoundError,
    NothingThereError,
)
from heterotrain_client.models import Explanation, Job, Jobs, Report
from heterotrain_client.options import FOR_FUNCTIONS, FOR_SCRIPTS, ON_CLUSTERS, RunOptions, options_of
from heterotrain_operator.api import API_VERSION, KIND, ManifestError, Problem, parse_manifest
from heterotrain_operator.api.base import PATTERN_MEANING, SERVICE_NAME
from heterotrain_operator.api.problems import did_you_mean
from heterotrain_operator.cli.cluster.logs import PIECE_BYTES, chosen_workers
from heterotrain_operator.cli.local.checks import Options, prepare
from heterotrain_operator.cli.local.job_file import JOB_FILE
from heterotrain_operator.cli.local.script_output import last_lines
from heterotrain_operator.cli.past_runs import explanation
from heterotrain_operator.cli.script_job import job_name
from heterotrain_operator.cli.terminal import print_report
from heterotrain_operator.clusters.kube.moments import timestamp
from heterotrain_operator.clusters.kube.reading_errors import WorkerNotFoundError
from heterotrain_operator.core.model import FINAL_PHASES
from heterotrain_operator.experiments import runs
from heterotrain_operator.experiments.figures.summary import Summary
from heterotrain_operator.experiments.locks import HeldError, held, holder_of
from heterotrain_operator.experiments.report import kept
from heterotrain_operator.experiments.trials.observer import Entry

OUTPUT = "output"
PROCESS = "process"
PAGE = "report.html"
LAST_LINES = 20
"""Of a run's own output, where it ended without a word about its job."""

CHANGED = "changed"
"""Locked while a client begins or deletes a job."""

END_SECONDS = 600.0
"""For a run to end once it is asked to: its workers write a checkpoint."""

FOLLOW_SECONDS = 0.25
MOST_BYTES = 16 * 2**20


class LocalJobs:
    """The jobs that run, or were run, from one folder."""

    look_every_seconds = 0.25

    def __init__(self, folder: Path) -> None:
        self._here = folder.absolute()
        self._children: dict[Path, subprocess.Popen[bytes]] = {}  # that are to be reaped

    def run(self, script: Path, workers: str | None, options: Mapping[str, Any]) -> Job:
        """Run a training script below the folder."""
        asked = options_of(options, ON_CLUSTERS | FOR_FUNCTIONS)
        return self._run(self._here / script, workers, asked, None)

    def run_source(self, name: str, source: str, workers: str | None, options: Mapping[str, Any]) -> Job:
        """Run the text of a script, which stays with the run."""
        asked = options_of(options, ON_CLUSTERS)
        return self._run(Path(f"{name}.py"), workers, asked, source)

    def _run(self, script: Path, workers: str | None, asked: RunOptions, source: str | None) -> Job:
        name = asked.name or job_name(script)
        with self._beginning(name) as entry:
            if source is not None:
                script = _submitted(entry) / script
                script.write_text(source, encoding="utf-8")
            kept_in = None if asked.checkpoints is None else self._here / asked.checkpoints
            job = asked.job_of(script, workers, name, kept_in)
            self._check(Options(script, out=entry, script=job, seed=asked.seed, **_common(asked)))
            words = ["--name", name, *(["--workers", workers] if workers else [])]
            numbers: dict[str, object] = {
                "--global-batch": asked.global_batch,
                "--epochs": asked.epochs,
                "--steps": asked.steps,
            }
            numbers |= {"--seed": asked.seed, "--checkpoints": kept_in}
            for option, value in numbers.items():
                words += [] if value is None else [option, str(value)]
            # The run starts in the folder; so its manifest and report name the script as it lies there.
            place = script.relative_to(self._here) if script.is_relative_to(self._here) else script
            self._start(entry, [str(place), *words, *_words(asked), "--", *asked.arguments])
        return self._job(name, entry)

    def submit(self, document: Document, path: Path | None, options: Mapping[str, Any]) -> Job:
        """Run a job as its manifest says."""
        asked = options_of(options, FOR_SCRIPTS)
        try:
            name = parse_manifest(document).metadata.name
        except ManifestError as error:
            raise InvalidJobError.of(error) from None
        with self._beginning(name) as entry:
            manifest = (self._here / path) if path is not None else _submitted(entry) / "job.yaml"
            if path is None:
                manifest.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
            self._check(Options(manifest, out=entry, seed=asked.seed, **_common(asked)))
            words = [] if asked.seed is None else ["--seed", str(asked.seed)]
            self._start(entry, [str(manifest), *words, *_words(asked)])
        return self._job(name, entry)

    def list(self) -> Jobs:
        """The newest run of every job, by name."""
        found = ((name, self._newest(name)) for name in runs.jobs(self._here))
        return Jobs(self._job(name, entry) for name, entry in found if entry is not None)

    def status(self, name: str) -> Job:
        """The newest run of a job as it is now."""
        return self._job(name, self._found(name))

    def logs(self, name: str, worker: str | None, *, follow: bool, tail: int | None) -> Iterator[str]:
        """What the workers of the newest run have printed; of several, each line after its worker's name."""
        entry = self._found(name)
        known: dict[Path, tuple[str, _Log]] = {}  # of trials that follow one another, too
        with ExitStack() as files:
            while True:
                over = not (follow and self._lives(entry))
                for each, path in self._logs_of(name, worker, entry).items():
                    if path not in known:
                        head = "" if worker is not None else f"{each} | "
                        known[path] = head, _Log(files.enter_context(path.open("rb")), from_now=tail is not None)
                        yield from (f"{head}{line}" for line in last_lines(path, tail or 0))
                for head, log in known.values():
                    yield from (f"{head}{line}" for line in log.lines(over=over))
                if over:
                    break
                time.sleep(FOLLOW_SECONDS)
        if not known:
            raise NothingThereError(f"the workers of job {name} have printed nothing {self._own_words(entry)}".rstrip())

    def explain(self, name: str) -> Explanation:
        """The figures and decisions of a run that is over; of one that goes on, its last decision."""
        entry = self._found(name)
        if self._lives(entry):
            job = self._job(name, entry)
            return Explanation.of(name, lambda console: console.print(job.status.reason or "It has just begun."))
        summary, decisions = self._kept(name, entry)
        found = explanation(summary, decisions)
        return Explanation.of(name, lambda console: print_report(console, found))

    def report(self, name: str) -> Report:
        """The figures and the page of a run that is over."""
        entry = self._found(name)
        if self._lives(entry):
            raise NothingThereError(f"job {name} still runs; its report is there once it has ended (see wait)")
        summary, _ = self._kept(name, entry)
        page = entry / PAGE
        there = page.resolve() if page.exists() else None
        return Report(job=self._job(name, entry), explanation=self.explain(name), summary=summary, page=there)

    def delete(self, name: str) -> None:
        """End the job, if it runs, and remove all its runs; what lies in folders of `--out`, and checkpoints, stay."""
        entry = self._found(name)
        with _alone(name, entry.parent):
            for each in self._known(name):
                if self._lives(each):
                    self._end(name, each)
            shutil.rmtree(entry.parent, ignore_errors=True)

    # --- inside ---------------------------------------------------------------------------------------------

    @contextmanager
    def _beginning(self, name: str) -> Iterator[Path]:
        """The folder of a run that begins now. What is submitted lies beside it, and is gone again if it is refused.

        Raises JobExistsError if the job runs already, or another client just begins it, InvalidJobError for what is no
        name, and might lead out of the folder, and ClientError where nothing can be written.
        """
        if not re.fullmatch(SERVICE_NAME, name):
            raise InvalidJobError([Problem("name", f"must be {PATTERN_MEANING[SERVICE_NAME]}, found {name!r:.60}")])
        entry = runs.run_folder(self._here, name, datetime.now(UTC))
        submitted = _submitted(entry)
        with _alone(name, entry.parent):
            if any(map(self._lives, self._known(name))):
                raise JobExistsError(f"job {name} runs already; wait for its end, delete it, or choose another name")
            try:
                submitted.mkdir()
                yield entry
            except BaseException:
                shutil.rmtree(submitted, ignore_errors=True)
                raise

    def _check(self, options: Options) -> None:
        try:
            prepare(options, self._here)
        except ManifestError as error:
            raise InvalidJobError.of(error) from None

    def _start(self, entry: Path, words: Sequence[str]) -> None:
        submitted = _submitted(entry)
        program = [sys.executable, "-m", "heterotrain_operator.cli.main"]
        command = [*program, "run", "--logs", "none", "--out", str(entry), *words]
        with (submitted / OUTPUT).open("wb") as output:
            with suppress(OSError):  # a file system without locks: then this client alone knows
                fcntl.flock(output, fcntl.LOCK_EX)  # the run inherits the file, and with it the lock
            # A session of its own: what interrupts a cell does not interrupt the job.
            child = subprocess.Popen(
                command,
                cwd=self._here,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children[entry] = child
        (submitted / PROCESS).write_text(f"{child.pid} {socket.gethostname()}", encoding="ascii")

    def _known(self, name: str) -> Sequence[Path]:
        """The folders of a job's runs, newest last; that one may not be made yet."""
        known = {entry.name for entry in runs.entries(self._here, name)}
        beside = (self._here / runs.RUNS / name).glob(f"*{runs.SUBMITTED}")
        known |= {each.name.removesuffix(runs.SUBMITTED) for each in beside}
        return [self._here / runs.RUNS / name / each for each in sorted(known)]

    def _newest(self, name: str) -> Path | None:
        return next(reversed(self._known(name)), None)

    def _found(self, name: str) -> Path:
        newest = self._newest(name) if name and os.sep not in name else None
        if newest is None:
            known = [each for each in runs.jobs(self._here) if self._newest(each) is not None]
            near = did_you_mean(name, known) or f"; there are {', '.join(known) or 'none'}"
            raise JobNotFoundError(f"there is no job {name!r} in {self._here}{near}")
        return newest

    def _lives(self, entry: Path) -> bool:
        child = self._children.get(entry)
        if child is not None and child.poll() is None:
            return True
        self._children.pop(entry, None)
        return bool(holder_of(_submitted(entry) / OUTPUT) or holder_of(entry / runs.MARKER))

    def _job(self, name: str, entry: Path) -> Job:
        lives = self._lives(entry)  # first: what is read after a run's end is its last word
        document = self._document(name, entry)
        status = dict(document.get("status") or {})
        if lives and (not status or status.get("phase") in FINAL_PHASES):
            # Of several trials another one is to come, or the report is being written.
            status |= {"phase": "Running"} if status else {"phase": "Created", "reason": "the run is being started"}
        elif not lives and status.get("phase") not in FINAL_PHASES:
            words = self._own_words(entry) or "it was killed"
            status |= {"phase": "Failed", "reason": f"the run ended without a word about its job: {words}"[-1024:]}
        return Job.of({**document, "status": status}, "local")

    def _document(self, name: str, entry: Path) -> Document:
        try:
            with (entry / JOB_FILE).open("rb") as file:
                document: Document = json.loads(file.read(MOST_BYTES))
        except (OSError, ValueError):
            metadata = {"name": name, "creationTimestamp": timestamp(runs.began(entry).timestamp())}
            document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}
        if "status" not in document:
            try:  # a run of a version that wrote no such file
                summary, _ = kept.read(entry)
                document["status"] = {"phase": summary.phase, "reason": summary.message or summary.verdict}
            except (OSError, ValueError):
                pass
        return document

    def _own_words(self, entry: Path) -> str:
        return "\n".join(last_lines(_submitted(entry) / OUTPUT, LAST_LINES))

    def _logs_of(self, name: str, worker: str | None, entry: Path) -> dict[str, Path]:
        """The logs of the newest trial that trains, by worker."""
        found = runs.trials(entry) if (entry / runs.TRIALS).is_dir() else []
        trained = [each for each in found if not each.slug.startswith("profile-")] or found
        logs = trained[-1].workers if trained else {}
        try:
            return {each: logs[each] for each in chosen_workers(name, worker, [*logs])} if logs else {}
        except WorkerNotFoundError as error:
            raise JobNotFoundError(str(error)) from None

    def _kept(self, name: str, entry: Path) -> tuple[Summary, dict[str, tuple[Entry, ...]]]:
        try:
            return kept.read(entry)
        except (OSError, ValueError):
            words = self._own_words(entry)
            raise NothingThereError(
                f"the run of job {name} has left no figures{': ' + words if words else ''}"
            ) from None

    def _end(self, name: str, entry: Path) -> None:
        """Ask a run to end, as Ctrl-C does, and wait for it; its workers write a checkpoint and end."""
        try:
            pid, host = (_submitted(entry) / PROCESS).read_text(encoding="ascii").split()
        except (OSError, ValueError):
            raise ClientError(f"job {name} is run by `heterotrain run`, not from Python; stop it there") from None
        if host != socket.gethostname():  # another machine or container, which shares the folder
            raise ClientError(f"job {name} runs on {host}, by process {pid} there; delete it there")
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(int(pid), signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        while self._lives(entry):
            if time.monotonic() > deadline:
                raise ClientError(f"job {name} has not ended in {END_SECONDS:g} s; its process is {pid}")
            time.sleep(FOLLOW_SECONDS)


class _Log:
    """A log that may still grow, line by line from its beginning or from where it ends now; none is left out."""

    def __init__(self, file: BinaryIO, *, from_now: bool) -> None:
        self._file, self._rest = file, b""
        if from_now:
            file.seek(0, os.SEEK_END)

    def lines(self, *, over: bool) -> Iterator[str]:
        """The lines that were written since the last call; where it is `over`, also one that has no end."""
        while piece := self._file.read(PIECE_BYTES):
            *whole, self._rest = (self._rest + piece).split(b"\n")
            yield from (line.decode(errors="replace") for line in whole)
            if len(self._rest) > PIECE_BYTES:
                yield self._rest.decode(errors="replace")
                self._rest = b""
        if over and self._rest:
            yield self._rest.decode(errors="replace")


@contextmanager
def _alone(name: str, folder: Path) -> Iterator[None]:
    """Inside, no other client begins or deletes the job of this folder. Raises JobExistsError if one does, ClientError
    where nothing can be written."""
    try:
        with held(folder / CHANGED):
            yield
    except HeldError:
        raise JobExistsError(f"job {name} is just being started or deleted by another client; see its status") from None
    except OSError as error:
        raise ClientError(f"job {name}: {error}") from error


def _submitted(entry: Path) -> Path:
    return entry.with_name(f"{entry.name}{runs.SUBMITTED}")


def _common(asked: RunOptions) -> dict[str, Any]:
    """Options of `heterotrain run` for manifests and scripts."""
    common = {name: getattr(asked, name) for name in ("policy", "compare", "rounds", "resume", "fresh")}
    return {**common, "logs": "none"}


def _words(asked: RunOptions) -> list[str]:
    """The same on the command line."""
    words = [] if asked.policy is None else ["--policy", asked.policy]
    words += ["--compare", ",".join(asked.compare)] if asked.compare else []
    words += ["--rounds", str(asked.rounds)] if asked.rounds > 1 else []
    return [*words, *(f"--{name}" for name in ("resume", "fresh") if getattr(asked, name))]
