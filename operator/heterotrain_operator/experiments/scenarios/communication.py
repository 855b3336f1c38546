"""What exchanging gradients takes in a scenario: by a ring, or by parameter servers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from heterotrain_operator.api.base import MAX_COUNT, Model
from heterotrain_operator.clusters.simulated import communication
from heterotrain_operator.experiments.scenarios.base import MEBIBYTE, PositiveMebibytes, StepSeconds
from heterotrain_operator.experiments.scenarios.choice import Choice

_SIZE = Field(description="Size of the gradients of the whole model.")
_BANDWIDTH = Field(description="Bandwidth of each one's network.")
_LATENCY = Field(default=0.0, description="Seconds of one message, whatever its size.")


class Ring(Model):
    """An all-reduce around a ring: each worker sends twice n - 1 messages of one n-th of the gradients."""

    model_mebibytes: PositiveMebibytes = _SIZE
    mebibytes_per_second: PositiveMebibytes = _BANDWIDTH
    latency_seconds: StepSeconds = _LATENCY


class ParameterServer(Model):
    """Every worker sends its gradients to servers, whose network is shared, and fetches the parameters."""

    model_mebibytes: PositiveMebibytes = _SIZE
    mebibytes_per_second: PositiveMebibytes = _BANDWIDTH
    latency_seconds: StepSeconds = _LATENCY
    servers: Annotated[int, Field(ge=1, le=MAX_COUNT)] = Field(
        default=1, description="Servers that each hold a part of the parameters."
    )


class Communication(Choice):
    """What a step takes after the slowest worker's own time."""

    ring: Ring | None = Field(default=None, description="All-reduce, as gloo and NCCL do it.")
    parameter_server: ParameterServer | None = Field(default=None, description="Servers that all workers share.")

    def communication(self) -> communication.Communication:
        """As the simulation takes it; there is exactly one."""
        chosen = self.chosen
        assert isinstance(chosen, Ring | ParameterServer)
        figures = (
            chosen.model_mebibytes * MEBIBYTE,
            chosen.mebibytes_per_second * MEBIBYTE,
            chosen.latency_seconds,
        )
        if isinstance(chosen, Ring):
            return communication.RingAllReduce(*figures)
        return communication.ParameterServer(*figures, servers=chosen.servers)
