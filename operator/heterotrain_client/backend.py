"""What a place where jobs run offers to a client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from heterotrain_client.models import Explanation, Job, Jobs, Report

Document = dict[str, Any]


class Backend(Protocol):
    """Jobs of one place. All methods raise ClientError in its kinds; `name` is a job's name."""

    look_every_seconds: float
    """How often a job is looked at while somebody waits for it."""

    def run(self, script: Path, workers: str | None, options: Mapping[str, Any]) -> Job:
        """Run a training script."""

    def run_source(self, name: str, source: str, workers: str | None, options: Mapping[str, Any]) -> Job:
        """Run the text of a script, of a function of this name."""

    def submit(self, document: Document, path: Path | None, options: Mapping[str, Any]) -> Job:
        """Run a job as its manifest says, which was read from `path` if there is one."""

    def list(self) -> Jobs:
        """All jobs."""

    def status(self, name: str) -> Job:
        """One job as it is now."""

    def logs(self, name: str, worker: str | None, *, follow: bool, tail: int | None) -> Iterator[str]:
        """What workers have printed, line by line."""

    def explain(self, name: str) -> Explanation:
        """Why the batches are as they are."""

    def report(self, name: str) -> Report:
        """What came of a job."""

    def delete(self, name: str) -> None:
        """End a job, and remove what is kept of it."""
