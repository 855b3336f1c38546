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
from heterotrain_operator.cli.terminal import print_json
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


def validate(paths: Sequence[Path], *, strict: bool, as_json: bool = False) -> int:
    """Check every job in files, folders and standard input (`-`), and say of each what it is or all that is wrong with
    it; with `strict`, what is merely doubtful is wrong, too. Returns the exit code.
    """
    found = list(_found(paths, strict=strict))
    if not found:
        found.append(Found(", ".join(map(str, paths)), (Problem("", f"no file holds a {KIND}"),)))
    if as_json:
        print_json([each.to_json() for each in found])
    else:
        for each in found:
            each.print()
    return BAD_INPUT if any(each.problems for each in found) else SUCCEEDED


@dataclass(frozen=True, slots=True)
class Found:
    """What was found in one source: a job in words, if it is valid, with what is doubtful and what this machine
    refuses; or all that is wrong."""

    name: str
    problems: tuple[Problem, ...] = ()
    job: str = ""
    doubtful: tuple[Problem, ...] = ()
    not_here: tuple[Problem, ...] = ()

    def print(self) -> None:
        """Say it: what is valid on standard output, what is refused on standard error."""
        out = sys.stderr if self.problems else sys.stdout
        out.write(f"{self.name} is {'refused:' if self.problems else f'valid: {self.job}'}\n" if self.name else "")
        out.writelines(f"  {problem}\n" for problem in self.problems)
        out.writelines(f"  Doubtful: {problem}\n" for problem in self.doubtful)
        if self.not_here:
            out.write("It cannot run on this machine, though:\n")
            out.writelines(f"  {problem}\n" for problem in self.not_here)

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "source": self.name,
            "valid": not self.problems,
            "job": self.job or None,
            "problems": list(map(str, self.problems)),
            "doubtful": list(map(str, self.doubtful)),
            "not_on_this_machine": list(map(str, self.not_here)),
        }


def _found(paths: Sequence[Path], *, strict: bool) -> Iterator[Found]:
    for source in _sources(paths):
        if isinstance(source, ManifestError):
            yield Found("", tuple(source.problems))
            continue
        try:
            documents = read_documents(source.path)
        except ManifestError as error:
            yield Found(source.name, tuple(error.problems))
            continue
        jobs = [(index, each) for index, each in enumerate(documents, start=1) if _is_meant(each, documents, source)]
        for index, document in jobs:
            name = source.name if len(documents) == 1 else f"{source.name}, document {index}"
            try:
                yield _checked(name, document, strict=strict)
            except ManifestError as error:
                yield Found(name, tuple(error.problems))
        if source.named and not jobs:
            yield Found(source.name, (Problem("", f"holds no {KIND}"),))


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


def _checked(name: str, document: Any, *, strict: bool) -> Found:
    """What a job is. Raises ManifestError with all that is wrong with it."""
    job = parse_manifest(document)
    wrong = faults(job, volumes_of(job))
    doubtful = doubts(job)
    if wrong or (strict and doubtful):
        raise ManifestError([*wrong, *(doubtful if strict else [])])
    try:
        read_templates(job)
    except ManifestError as error:
        return Found(name, job=described(job), doubtful=tuple(doubtful), not_here=tuple(error.problems))
    return Found(name, job=described(job), doubtful=tuple(doubtful))


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
