"""A status and the schema: what is written must be admitted, and what is found may be of a newer operator."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from heterotrain_operator.api.status import JobStatus

_ATTEMPTS = 4
"""How often faults are taken out of a status that somebody else wrote, before all of it is dropped."""


def checked(status: Mapping[str, Any]) -> dict[str, Any]:
    """The status as the cluster will store it, with the schema's defaults: else the two would never be equal.

    Raises ValueError if the schema does not admit it.
    """
    model = JobStatus.model_validate_json(json.dumps(status))
    document: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return document


def tolerated(status: Mapping[str, Any]) -> dict[str, Any]:
    """What is understood here of a status that is found in the cluster: one of a newer operator may have more fields,
    conditions and phases, and those stay only until it is written again.
    """
    document = json.loads(json.dumps(status))  # what is compared below is read from JSON, too
    for _ in range(_ATTEMPTS):
        try:
            return checked(document)
        except ValidationError as error:
            document = _without_faults(document, error.errors(include_url=False))
        except ValueError:
            break
    return {}


def _without_faults(status: dict[str, Any], errors: Sequence[ErrorDetails]) -> dict[str, Any]:
    """The status without unknown fields, without fields of its own that are malformed, and without the entries of its
    lists that are.
    """
    entries: set[tuple[str | int, str | int]] = set()
    for error in reversed(errors):
        name, *below = error["loc"] or ("",)
        if error["type"] == "extra_forbidden" and len(below) == 2:
            del status[str(name)][below[0]][below[1]]
        elif below:
            entries.add((name, below[0]))
        else:
            status.pop(str(name), None)
    for name in {str(name) for name, _ in entries}:
        status[name] = [entry for place, entry in enumerate(status[name]) if (name, place) not in entries]
    return status
