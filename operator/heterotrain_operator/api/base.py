"""What all models of the resource share: strictness, and bounds that keep its schema cheap for a cluster.

Kubernetes estimates the cost of every validation rule from the largest object that the schema admits, and
refuses a CustomResourceDefinition whose estimate is too high; so all lists, maps and strings are bounded.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

MAX_NAME = 63
"""Characters of a DNS-1123 label, hence of a pod's host name."""

MAX_GROUP_NAME = 40
"""Leaves room for a job's name and an index within MAX_NAME."""

MAX_GROUPS = 16
MAX_REPLICAS = 10_000
MAX_BATCH = 2**24
"""Samples; MAX_GROUPS * MAX_REPLICAS * MAX_BATCH stays far inside 64 bits, in which rules calculate."""

MAX_STEPS = 2**53
"""Steps, epochs and seeds: the largest integer range that every JSON reader keeps exactly."""

MAX_SECONDS = 10 * 366 * 24 * 3600
MAX_COUNT = 1_000_000
MAX_TEXT = 1024
MAX_PATH = 4096
MAX_POINTS = 64

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SERVICE_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
POLICY_NAME = r"^[A-Za-z][A-Za-z0-9_.-]*$"
ABSOLUTE_PATH = r"^/"
HTTP_URL = r"^(https?://[^/?#@\s]+(/[^?#\s]*)?)?$"
DATA_KEY = r"^[-._a-zA-Z0-9]+$"

PATTERN_MEANING = {
    DNS_LABEL: "a DNS-1123 label (lower-case letters, digits and '-', at both ends a letter or digit)",
    SERVICE_NAME: "a DNS-1035 label (lower-case letters, digits and '-', first a letter, last none of '-')",
    DNS_SUBDOMAIN: "a DNS-1123 name (lower-case letters, digits, '-' and '.')",
    POLICY_NAME: "the name of a policy (a letter, then letters, digits, '_', '.' or '-')",
    ABSOLUTE_PATH: "an absolute path",
    HTTP_URL: "a URL that begins with http:// or https://, without credentials, query and fragment; or empty",
    DATA_KEY: "a key (letters, digits, '-', '_' and '.')",
}
"""What a pattern asks for, in words, for messages."""


class Model(BaseModel):
    """A frozen object of the resource; names are camelCase outside, and unknown fields are refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
    )


Seconds = Annotated[int, Field(ge=0, le=MAX_SECONDS)]
PositiveSeconds = Annotated[int, Field(ge=1, le=MAX_SECONDS)]
Batch = Annotated[int, Field(ge=1, le=MAX_BATCH)]
Steps = Annotated[int, Field(ge=1, le=MAX_STEPS)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(gt=0, le=1)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=DNS_SUBDOMAIN)]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Name = Annotated[str, Field(max_length=253)]
