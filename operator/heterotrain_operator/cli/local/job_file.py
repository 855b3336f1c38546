"""A run's job as an object with a status, in a file of the run's folder: what a cluster shows of a job, another program
reads here.

The status is made by the function that the operator makes it with, so both say the same in the same fields.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from heterotrain_operator.api import HeteroTrainingJob
from heterotrain_operator.clusters.kube.moments import timestamp
from heterotrain_operator.clusters.kube.status.job_status import CHECKPOINT_NOT_DURABLE, next_status
from heterotrain_operator.clusters.kube.status.schema import checked
from heterotrain_operator.core.model import FINAL_PHASES, Decision, Job, Seen
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.experiments.figures.summary import Summary
from heterotrain_operator.experiments.trials.observer import Entry, Observer

logger = logging.getLogger(__name__)

JOB_FILE = "job.json"

LEAST_SECONDS = 0.5
"""Between two writes, unless a decision was taken: whoever reads the file sees no difference."""


class JobFile(Observer):
    """Passes all on to another observer, and writes the job's object after a round."""

    def __init__(self, observer: Observer, job: HeteroTrainingJob, folder: Path) -> None:
        self._observer, self._job, self._path = observer, job, folder / JOB_FILE
        self._memory = Remembered.initial()
        self._draft: Mapping[str, Any] = {}
        self._written_at = float("-inf")
        document: dict[str, Any] = job.model_dump(mode="json", by_alias=True, exclude_none=True)
        created = datetime.now(UTC).timestamp()
        self._document = {**document, "metadata": {**document["metadata"], "creationTimestamp": timestamp(created)}}

    def begin(
        self, title: str, job: Job, log_file: Callable[[str], Path], *, position: str = "", endless: bool = False
    ) -> None:
        """A trial begins: nothing of the one before it holds."""
        self._memory, self._draft = Remembered.initial(), {}
        policy = {**self._document["spec"]["batching"], "policy": job.policy}
        self._document["spec"] = {**self._document["spec"], "batching": policy}
        self._observer.begin(title, job, log_file, position=position, endless=endless)

    def look(self) -> None:
        """Passed on."""
        self._observer.look()

    def remember(self, memory: Remembered) -> None:
        """Restarts, arrivals and costs are in the status."""
        self._memory = memory
        self._observer.remember(memory)

    def show(self, seen: Seen, decision: Decision, entry: Entry | None) -> None:
        """Write the status, where the last one is old enough or something was decided."""
        draft = next_status(self._draft, self._job, seen, decision, self._memory, time.time())
        kept = [each for each in draft["conditions"] if each["type"] != CHECKPOINT_NOT_DURABLE]  # is about volumes
        self._draft = {**draft, "conditions": kept}
        moment = time.monotonic()
        if entry is not None or decision.phase in FINAL_PHASES or moment - self._written_at >= LEAST_SECONDS:
            self._written_at = moment
            self._write(self._draft)
        self._observer.show(seen, decision, entry)

    def end(self) -> None:
        """Passed on."""
        self._observer.end()

    def warn(self, text: str) -> None:
        """Passed on."""
        self._observer.warn(text)

    def finish(self, summary: Summary) -> None:
        """The run is over, whatever ended it; a phase that no cluster knows, such as that of a stopped run, is Failed.
        Of several trials the last one's workers stay.
        """
        phase = summary.phase if summary.phase in FINAL_PHASES else "Failed"
        reason = summary.message or summary.verdict or self._draft.get("reason", "")
        self._write({**self._draft, "phase": phase, "reason": reason[:1024]})

    def _write(self, status: Mapping[str, Any]) -> None:
        being_written = self._path.with_suffix(".new")
        try:
            being_written.write_text(json.dumps({**self._document, "status": checked(status)}), encoding="utf-8")
            being_written.rename(self._path)
        except (OSError, ValueError) as error:
            logger.warning("the state of the run is not kept in %s: %s", self._path, error)
