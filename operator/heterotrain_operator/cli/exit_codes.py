"""What the exit code of a command says."""

SUCCEEDED = 0
FAILED = 1
"""The job failed or was deleted, or a worker has no log."""
BAD_INPUT = 2
NO_CLUSTER = 3
"""The cluster does not answer, refuses, or has no HeteroTrain."""
