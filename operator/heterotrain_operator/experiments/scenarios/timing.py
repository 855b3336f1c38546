"""How long things take in a scenario beside steps."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from heterotrain_operator.api.base import MAX_COUNT, MAX_SECONDS, Model
from heterotrain_operator.clusters.simulated import scenario

_Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]


class Timing(Model):
    """How long things take beside steps."""

    pod_seconds: _Seconds = Field(default=1.0, description="From the creation of a pod until it runs.")
    prepare_seconds: _Seconds = Field(default=2.0, description="From then until its script is ready to train.")
    rendezvous_seconds: _Seconds = Field(default=1.0, description="Until the members of a new generation have met.")
    switch_steps: _Count = Field(
        default=2, description="Steps from the publication of a plan until it is followed, as loaders prefetch."
    )
    unmeasured_steps: _Count = Field(default=1, description="First steps under a new plan, which are not measured.")
    stop_seconds: _Seconds = Field(default=1.0, description="Until a deleted pod is gone.")
    reform_seconds: _Seconds = Field(
        default=1.0, description="Until workers of protocol 3 go on without one of them that has ended."
    )
    transition_seconds: _Seconds = Field(
        default=0.5, description="For so long they stand still when others join or leave them."
    )
    warms_up: bool = Field(
        default=True,
        description="A worker computes some steps by itself before it joins others, and shows what they took.",
    )

    def timing(self) -> scenario.Timing:
        """As the simulation takes it."""
        return scenario.Timing(**{name: getattr(self, name) for name in type(self).model_fields})
