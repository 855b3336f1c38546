"""What a client raises: one small hierarchy, each with a text that says what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from heterotrain_operator.api import ManifestError, Problem

if TYPE_CHECKING:
    from heterotrain_client.models import Job


class ClientError(Exception):
    """Whatever a client refuses or cannot do."""


class InvalidJobError(ClientError, ValueError):
    """A job, or an option, that is wrong; nothing was started. `problems` are all that was found, each with the path
    of its field or the name of its option.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(Problem(_option(each.path), each.reason) for each in problems)
        super().__init__("\n".join(map(str, self.problems)))

    @classmethod
    def of(cls, error: ManifestError) -> InvalidJobError:
        """The same problems, with options of the command line as those of a client."""
        return cls(error.problems)


class JobExistsError(ClientError):
    """A job of that name runs here, or exists on the cluster."""


class JobNotFoundError(ClientError, LookupError):
    """There is no job, or no worker, of that name."""


class NothingThereError(ClientError):
    """The job exists, but not yet (or no longer) what was asked for: its log, or its report."""


class ClusterError(ClientError):
    """There is no way to a cluster, or it does not answer, refuses, or has no HeteroTrain."""


class ClusterUnreachableError(ClusterError):
    """The cluster does not answer, or not as a Kubernetes API does; that may pass."""


class JobFailedError(ClientError):
    """A job ended otherwise than was waited for; `job` is how it ended."""

    def __init__(self, text: str, job: Job | None = None) -> None:
        super().__init__(text)
        self.job = job


class WaitTimeoutError(ClientError, TimeoutError):
    """A job did not come so far in time; it goes on. `job` is how it was last seen."""

    def __init__(self, text: str, job: Job) -> None:
        super().__init__(text)
        self.job = job


def _option(path: str) -> str:
    """`--global-batch` of the command line is `global_batch` here; paths of fields stay."""
    return path[2:].replace("-", "_") if path.startswith("--") else path
