"""Kinds of numbers that the fields of a scenario share; all are bounded, so that no scenario can overflow."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from heterotrain_operator.api.base import DNS_LABEL, MAX_BATCH, MAX_NAME, MAX_STEPS

MEBIBYTE = 2**20

MAX_WORKER_NAMES = 256
MAX_EVENTS = 256
MAX_PRODUCT = 1e6
"""By how much all events together may make steps longer, or shorter, if they all happened at once."""

MAX_TOTAL_STEPS = 10_000_000
"""Steps of one simulation; three figures of each are kept."""

MAX_RECORDED = 64
MAX_SERIES = 10_000

StepSeconds = Annotated[float, Field(ge=0, le=1_000_000)]
PositiveStepSeconds = Annotated[float, Field(ge=1e-9, le=1_000_000)]
Factor = Annotated[float, Field(ge=0.001, le=1000)]
Samples = Annotated[int, Field(ge=1, le=MAX_BATCH)]
Step = Annotated[int, Field(ge=0, le=MAX_STEPS)]
Variation = Annotated[float, Field(gt=0, le=2)]
Cores = Annotated[float, Field(ge=0.001, le=1024)]
Mebibytes = Annotated[float, Field(ge=0, le=1e9)]
PositiveMebibytes = Annotated[float, Field(ge=0.001, le=1e9)]
WorkerName = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=DNS_LABEL)]
"""A group, or one worker."""
