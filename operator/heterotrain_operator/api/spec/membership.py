"""When a silent worker is given up."""

from __future__ import annotations

from pydantic import Field

from heterotrain_operator.api.base import Model, PositiveSeconds


class Membership(Model):
    """When a silent worker is given up."""

    heartbeat_timeout_seconds: PositiveSeconds = Field(
        default=5,
        description="With a worker without a heartbeat for so long the job is Degraded, and the others go on without "
        "it, if they are a majority of the members, or half of them with the first. Where workers need one another "
        "(NCCL), it is given up as one that hangs is.",
    )
    progress_timeout_seconds: PositiveSeconds = Field(
        default=60,
        description="A worker with heartbeats but without a step for so long (at least) hangs. The first step after a "
        "start, evaluations, checkpoints and session.pause() may take startupDeadlineSeconds if that is longer.",
    )
