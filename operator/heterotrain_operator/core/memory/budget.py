"""How often all workers have started again, and when they may next (`lifecycle/restarts.py`)."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class RestartBudget:
    """So many `restarts` count against the job's limit; `interruptions` are those that did not, one soon after the
    other. The present workers got their first plan at `generation_at`. Since `unexplained_at` workers have ended who
    say that they were asked to stop, and nobody else does. `draining`: all pods are being deleted. None is created
    before `restart_at`. The script raised when training had come to `script_error_step` (-1: it has not, or training
    has got past it since).
    """

    restarts: int = 0
    interruptions: int = 0
    generation_at: float | None = None
    unexplained_at: float | None = None
    draining: bool = False
    restart_at: float | None = None
    script_error_step: int = -1

    def raised_at(self, step: int) -> RestartBudget:
        """Once the script has raised when training had come so far; -1: training has got past it."""
        return replace(self, script_error_step=step)
