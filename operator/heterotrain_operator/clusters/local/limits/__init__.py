"""The resource limits of workers on this machine: one mechanism each, and `detect` to find the best that works."""

from heterotrain_operator.clusters.local.limits.mechanism import LimitError, Limits, Mechanism, machine_cores

__all__ = ["LimitError", "Limits", "Mechanism", "machine_cores"]
