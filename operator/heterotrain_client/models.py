"""What a client answers: pydantic models over those of the resource, which show themselves in a notebook.

A job is shown by what `heterotrain status` prints, on both backends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from rich.console import Console, RenderableType

from heterotrain_operator.api import ManifestError, parse_stored
from heterotrain_operator.api.job import JobSpec
from heterotrain_operator.api.status import JobStatus
from heterotrain_operator.cli.cluster.job_state import JobState, read_job
from heterotrain_operator.cli.cluster.status import UNSEEN, job_view, jobs_table
from heterotrain_operator.clusters.kube.status.schema import tolerated
from heterotrain_operator.core.model import FINAL_PHASES
from heterotrain_operator.experiments.figures.summary import Summary

Backend = Literal["local", "kubernetes"]
WIDTH = 120
"""Columns of what is shown as text."""

FRAME_PIXELS = 640

_PRE = '<pre style="line-height:1.25;white-space:pre;overflow-x:auto">{code}</pre>'


def drawn(draw: Callable[[Console], None]) -> tuple[str, str]:
    """What is printed on a console, as plain text and, with its colours, as a piece of a page."""
    console = Console(
        file=StringIO(),
        width=WIDTH,
        record=True,
        markup=False,
        highlight=False,
        emoji=False,
        force_jupyter=False,  # in a notebook, rich would show by itself what it prints
    )
    draw(console)
    html = console.export_html(inline_styles=True, code_format=_PRE, clear=False)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines()), html


def as_text(view: RenderableType) -> str:
    """A view of the terminal as plain text."""
    return drawn(lambda console: console.print(view))[0]


def as_html(view: RenderableType) -> str:
    """A view of the terminal as a piece of a page."""
    return drawn(lambda console: console.print(view))[1]


class Shown(BaseModel):
    """A frozen answer that shows itself: as text, and in a notebook as HTML."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    def _html(self) -> str:
        raise NotImplementedError

    def _name(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name()}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._html()}


class Job(Shown):
    """A job as it is now. `spec` is None where this version cannot read it, `document` the object itself, without
    which nothing is lost: fields of a newer operator are in it.
    """

    name: str
    namespace: str = ""
    backend: Backend
    created: datetime | None = None
    spec: JobSpec | None = None
    status: JobStatus
    document: dict[str, Any]

    @classmethod
    def of(cls, document: Mapping[str, Any], backend: Backend) -> Job:
        """A job from its object, read as tolerantly as the command line reads it."""
        state = read_job(document)
        status = document.get("status")
        known = tolerated(status) if isinstance(status, Mapping) else {}
        try:
            spec = parse_stored({key: document.get(key) for key in ("apiVersion", "kind", "metadata", "spec")})[0].spec
        except ManifestError:
            spec = None
        return cls(
            name=state.name,
            namespace=state.namespace,
            backend=backend,
            created=state.created,
            spec=spec,
            status=JobStatus.model_validate_json(json.dumps(known)),
            document=dict(document),
        )

    @property
    def phase(self) -> str:
        """Where it is in its life; Unseen if no operator has looked at it."""
        return self.status.phase or UNSEEN

    @property
    def ended(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.phase in FINAL_PHASES

    def _view(self) -> RenderableType:
        return job_view(self.state(), datetime.now(UTC), width=WIDTH)

    def state(self) -> JobState:
        """As the command line's tables have it."""
        return read_job(self.document)

    def __str__(self) -> str:
        return as_text(self._view())

    def __repr__(self) -> str:
        return f"<Job {self.name}: {self.phase}>"

    def _html(self) -> str:
        return as_html(self._view())


class Jobs(tuple[Job, ...]):
    """Jobs, which show themselves as a table."""

    __slots__ = ()

    def _view(self) -> RenderableType:
        if not self:
            return "There are no jobs."
        return jobs_table([job.state() for job in self], datetime.now(UTC), everywhere=False, wide=False, width=WIDTH)

    def __str__(self) -> str:
        return as_text(self._view())

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(str(self))  # IPython would show the elements of any tuple

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": as_html(self._view())}


class Explanation(Shown):
    """Why a job's batches are as they are, as `heterotrain explain` prints it."""

    job: str
    text: str
    html: str

    @classmethod
    def of(cls, job: str, draw: Callable[[Console], None]) -> Explanation:
        """An explanation from what is printed on a console."""
        text, html = drawn(draw)
        return cls(job=job, text=text, html=html)

    def __str__(self) -> str:
        return self.text

    def _name(self) -> str:
        return self.job

    def _html(self) -> str:
        return self.html


class Report(Shown):
    """What came of a job. Of a run on this machine `summary` has its figures and `page` is its report with the plots;
    a cluster keeps no figures of single steps, so there both are None.
    """

    job: Job
    explanation: Explanation
    summary: Summary | None = None
    page: Path | None = None

    @property
    def verdict(self) -> str:
        """What to make of it, in a sentence; empty if nothing is known."""
        return self.summary.verdict if self.summary is not None else ""

    def html(self) -> str:
        """The whole page; without one, the job and its explanation."""
        if self.page is not None:
            return self.page.read_text(encoding="utf-8")
        return self.job._html() + self.explanation.html

    def __str__(self) -> str:
        return f"{self.job}\n\n{self.explanation}"

    def _name(self) -> str:
        return self.job.name

    def _html(self) -> str:
        if self.page is None:
            return self.html()
        # The page has styles of its own, which must not reach the notebook's.
        return (
            f'<iframe title="report of {escape(self.job.name)}" sandbox="allow-scripts" width="100%" '
            f'height="{FRAME_PIXELS}" style="border:0" srcdoc="{escape(self.html())}"></iframe>'
        )
