"""`heterotrain validate`: all that is wrong with manifests, before anything starts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterotrain_operator.api import KIND, HeteroTrainingJob, ManifestError, Problem, parse_manifest
from heterotrain_operator.api.document import STANDARD_INPUT, read_documents
from heterotrain_operator.api.lint import doubts, faults
from heterotrain_operator.cli import BAD_INPUT, SUCCEEDED
from heterotrain_operator.clusters.kube.objects.names import CHECKPOINT_VOLUME, PLAN_VOLUME
from heterotrain_operator.clusters.local.template import read_templates

SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class _Source:
    """A file, and whether the user named it: files that are found in a folder need not be jobs."""

    path: Path
    named: bool

    @property
    def name(self) -> str:
        return "standard input" if self.path == STANDARD_INPUT else str(self.path)


def validate(paths: Sequence[Path], *, strict: bool) -> int:
    """Check every job in files, folders and standard input (`-`), and say of each what it is or all that is wrong with
    it; with `strict`, what is merely doubtful is wrong, too. Returns the exit code.
    """
    refused = found = 0
    for source in _sources(paths):
        if isinstance(source, ManifestError):
            refused += _refuse("", source)
            continue
        try:
            documents = read_documents(source.path)
        except ManifestError as error:
            refused += _refuse(source.name, error)
            continue
        jobs = [(index, each) for index, each in enumerate(documents, start=1) if _is_meant(each, documents, source)]
        found += len(jobs)
        for index, document in jobs:
            name = source.name if len(documents) == 1 else f"{source.name}, document {index}"
            try:
                _describe(name, document, strict=strict)
            except ManifestError as error:
                refused += _refuse(name, error)
        if source.named and not jobs:
            refused += _refuse(source.name, ManifestError([Problem("", f"holds no {KIND}")]))
    if not found and not refused:
        refused += _refuse(", ".join(map(str, paths)), ManifestError([Problem("", f"no file holds a {KIND}")]))
    return BAD_INPUT if refused else SUCCEEDED


def _sources(paths: Sequence[Path]) -> Iterator[_Source | ManifestError]:
    for path in paths:
        try:
            if path != STANDARD_INPUT and path.is_dir():
                files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
                yield from (_Source(file, named=False) for file in files)
                continue
        except OSError as error:
            yield ManifestError([Problem(str(path), f"cannot be read: {error.strerror}")])
            continue
        yield _Source(path, named=True)


def _is_meant(document: Any, documents: Sequence[Any], source: _Source) -> bool:
    """Whether a document is to be a job. One of another kind is passed over, unless the user named it alone."""
    alone = source.named and len(documents) == 1
    return alone or (isinstance(document, dict) and _resembles(document.get("kind")))


def _resembles(kind: object) -> bool:
    return isinstance(kind, str) and kind.lower() == KIND.lower()


def _describe(name: str, document: Any, *, strict: bool) -> None:
    """Say what a job is. Raises ManifestError with all that is wrong with it."""
    job = parse_manifest(document)
    wrong = faults(job, volumes_of(job))
    doubtful = doubts(job)
    if wrong or (strict and doubtful):
        raise ManifestError([*wrong, *(doubtful if strict else [])])
    sys.stdout.write(f"{name} is valid: {described(job)}\n")
    for problem in doubtful:
        sys.stdout.write(f"  Doubtful: {problem}\n")
    try:
        read_templates(job)
    except ManifestError as error:
        sys.stdout.write("It cannot run on this machine, though:\n")
        for problem in error.problems:
            sys.stdout.write(f"  {problem}\n")


def volumes_of(job: HeteroTrainingJob) -> set[str]:
    """The volumes that the operator adds to the job's pods."""
    claimed = job.spec.checkpoint.persistent_volume_claim is not None
    return {PLAN_VOLUME, CHECKPOINT_VOLUME} if claimed else {PLAN_VOLUME}


def described(job: HeteroTrainingJob) -> str:
    """A job in one line."""
    groups, workers = len(job.spec.worker_groups), job.spec.total_replicas
    return (
        f"{job.metadata.name}, {workers} {'worker' if workers == 1 else 'workers'} in {groups} "
        f"{'group' if groups == 1 else 'groups'}, global batch {job.spec.global_batch_size}, "
        f"policy {job.spec.batching.policy}"
    )


def _refuse(name: str, error: ManifestError) -> int:
    """Print why; returns 1, so that callers can count."""
    if name:
        sys.stderr.write(f"{name} is refused:\n")
    for problem in error.problems:
        sys.stderr.write(f"  {problem}\n")
    return 1
