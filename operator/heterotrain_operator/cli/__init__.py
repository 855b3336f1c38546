"""The command line: parses what the user asks for, and prints what comes of it. It needs no torch."""

from importlib.metadata import PackageNotFoundError, version

SUCCEEDED = 0
FAILED = 1
"""The job failed or was deleted, or a worker has no log."""
BAD_INPUT = 2
NO_CLUSTER = 3
"""The cluster does not answer, refuses, or has no HeteroTrain."""


def package_version() -> str:
    """The installed version; "unknown" in a checkout that is not installed."""
    try:
        return version("heterotrain")
    except PackageNotFoundError:
        return "unknown"
