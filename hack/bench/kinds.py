"""The kinds of laws, noises and events of simulated clusters, as benchmarks use them, in one place."""

# ruff: noqa: F401  # they are used as kinds.NAME

from __future__ import annotations

from heterotrain_operator.clusters.simulated.communication import (
    Communication,
    Measured,
    NoCommunication,
    ParameterServer,
    RingAllReduce,
)
from heterotrain_operator.clusters.simulated.events import (
    ClusterEvent,
    Death,
    Drift,
    Interference,
    Jump,
    LateMetrics,
    LimitChange,
    Preemption,
    SourceDown,
    Unreadable,
    WarmUp,
)
from heterotrain_operator.clusters.simulated.laws import Affine, MemoryCliff, Padded, Plateau, Power, Throttled, TimeLaw
from heterotrain_operator.clusters.simulated.noise import AR1, HeavyTailed, Independent, Noise, NoNoise, Replayed
from heterotrain_operator.clusters.simulated.scenario import MemoryUse, Scenario, Timing, WorkerModel
