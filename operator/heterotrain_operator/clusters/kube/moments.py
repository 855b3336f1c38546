"""Moments as Kubernetes writes them, and as the core counts them: RFC 3339 in UTC, and Unix seconds."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(unix_seconds: float) -> str:
    """A moment in whole seconds, e.g. 2026-01-31T12:00:00Z. Raises ValueError outside of the years 1 to 9999."""
    try:
        return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError) as error:
        raise ValueError(f"{unix_seconds} is no moment: {error}") from error


def unix_seconds(text: str) -> float:
    """The moment that an API server's timestamp names. Raises ValueError if it names none."""
    return datetime.fromisoformat(text).timestamp()
