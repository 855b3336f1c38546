"""HeteroTrain from Python: run jobs on this machine or a cluster, and look at them, in scripts and notebooks.

It needs neither torch nor the operator's framework, and rests on what the command line rests on, so both say the same.
"""

from heterotrain_client.client import Client
from heterotrain_client.errors import (
    ClientError,
    ClusterError,
    ClusterUnreachableError,
    InvalidJobError,
    JobExistsError,
    JobFailedError,
    JobNotFoundError,
    NothingThereError,
    WaitTimeoutError,
)
from heterotrain_client.models import Explanation, Job, Jobs, Report

__all__ = [
    "Client",
    "ClientError",
    "ClusterError",
    "ClusterUnreachableError",
    "Explanation",
    "InvalidJobError",
    "Job",
    "JobExistsError",
    "JobFailedError",
    "JobNotFoundError",
    "Jobs",
    "NothingThereError",
    "Report",
    "WaitTimeoutError",
]
