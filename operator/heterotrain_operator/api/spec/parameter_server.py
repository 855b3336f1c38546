"""The parameter server of an asynchronous job: one more pod, which runs the workers' script."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from heterotrain_operator.api.base import Model
from heterotrain_operator.api.template import POD


class ParameterServer(Model):
    """The pod that holds an asynchronous job's model."""

    template: dict[str, Any] | None = Field(
        default=None,
        description="Pod template of the parameter server (a whole core/v1 PodTemplateSpec), bounded as those of the "
        "worker groups; its first container runs the workers' script. Absent: that of the first group.",
        json_schema_extra={"properties": {"spec": POD}},
    )
    price_per_hour: Annotated[float, Field(ge=0, le=1e6)] | None = Field(
        default=None,
        description="Price of the parameter server for one hour, in the groups' currency. Absent: its cost, and the "
        "job's, is not known.",
    )
