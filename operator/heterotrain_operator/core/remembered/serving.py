"""What is remembered of a job's parameter server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Serving:
    """So many parameter servers (`server_ends`) have ended, or did not start, by their own fault; the end of the one
    with the key `server_ended` was taken in last. A server that is not seen yet was asked for at `server_asked_at`, and
    none is before `server_due_at`. Since `server_away_at` a job that trains has been without its server.
    """

    server_ends: int = 0
    server_ended: str = ""
    server_asked_at: float | None = None
    server_due_at: float | None = None
    server_away_at: float | None = None
