"""Why a cluster could not be asked, in words for the user; apart, so that saying so needs no client library."""

from __future__ import annotations


class ReadingError(Exception):
    """Something that was asked of a cluster has no answer; the text says what, and what to do about it."""


class AccessError(ReadingError):
    """There is no usable way to a cluster: no kubeconfig, a broken one, or an unknown context."""


class JobNotFoundError(ReadingError):
    """The cluster answers, but has no job of that name."""


class WorkerNotFoundError(ReadingError):
    """The job exists, but has no worker of that name."""


class UnreachableError(ReadingError):
    """The cluster does not answer, or not as a Kubernetes API does."""


class RefusedError(ReadingError):
    """The cluster does not accept the credentials, or they do not suffice."""


class NotInstalledError(ReadingError):
    """The cluster does not know the resource."""


class ExpiredError(ReadingError):
    """A watch asked for changes from longer ago than the cluster remembers; look again and watch from there."""


class NoLogError(ReadingError):
    """A pod that has printed nothing that could be read: it has not started yet, or is gone."""


class JobExistsError(ReadingError):
    """A job of that name exists already."""


class JobRefusedError(ReadingError):
    """The cluster does not admit a job as it is; the text says why."""
