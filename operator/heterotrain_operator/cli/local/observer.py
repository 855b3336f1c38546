"""Show an experiment on the terminal: the live view, and what the workers' scripts print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from heterotrain_operator.cli.local.live import View
from heterotrain_operator.cli.local.script_output import ScriptOutput
from heterotrain_operator.core.model import Decision, Job, Seen
from heterotrain_operator.experiments.trials.journal import Entry
from heterotrain_operator.experiments.trials.observer import Observer
from heterotrain_operator.experiments.trials.workers import worker_names


class TerminalObserver(Observer):
    """Passes on to a view what an experiment reports; `shown` is one of `script_output.CHOICES`."""

    def __init__(self, view: View, shown: str) -> None:
        self._view = view
        self._shown = shown
        self._output: ScriptOutput | None = None

    def begin(
        self, title: str, job: Job, log_file: Callable[[str], Path], *, position: str = "", endless: bool = False
    ) -> None:
        """Start a new live view, and follow the logs of the workers that are shown."""
        self._view.begin(title, job, position=position, endless=endless)
        self._output = ScriptOutput(worker_names(job), log_file, self._view.script_says, self._shown)

    def look(self) -> None:
        """Show what scripts have printed."""
        if self._output is not None:
            self._output.look()

    def show(self, seen: Seen, decision: Decision, entry: Entry | None) -> None:
        """Show one round of the loop."""
        if self._output is not None and seen.plan is not None:
            self._output.follow([worker.name for worker in seen.workers], seen.plan.members[0].name)
        self.look()
        self._view.show(seen, decision, entry)

    def end(self) -> None:
        """Show the rest of what scripts have printed, and remove the live view."""
        if self._output is not None:
            self._output.end()
        self._view.clear()

    def warn(self, text: str) -> None:
        """Print a line that stays."""
        self._view.say(text, style="yellow")
