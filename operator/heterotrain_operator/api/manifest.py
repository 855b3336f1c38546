"""Read a manifest and refuse what is wrong with it, the first dozen faults at once, each by its path.

A fault in one field must not hide the faults of others: what is malformed is set aside, and every rule that
does not read it is still judged.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from heterotrain_operator.api.availability import unavailable
from heterotrain_operator.api.document import Location, field_problem, in_json, plain_mapping, read_document, shown
from heterotrain_operator.api.job import API_VERSION, KIND, HeteroTrainingJob
from heterotrain_operator.api.problems import MOST_PROBLEMS, ManifestError, Problem, render_path, size_problem
from heterotrain_operator.api.rule import Rule
from heterotrain_operator.api.rules import RULES
from heterotrain_operator.api.rules.workers import PLAN_FITS_INTO_A_CONFIG_MAP

READ_OF_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
)
"""Of an object in a cluster. Whatever else its metadata hold is Kubernetes' to judge, and was admitted by it."""

_PLACEHOLDERS: dict[str, Any] = {
    "name": "placeholder",
    "template": {},
    "training": {},
    "value": 0,
    "seconds": 0,
}
"""Stand for required fields that are absent or malformed while the others are judged."""


def load_manifest(path: str | Path) -> HeteroTrainingJob:
    """The job that a YAML (or JSON) file describes, defaults filled in.

    Raises ManifestError with the first dozen things that are wrong with it: unreadable, not YAML, not one document, or
    not a valid job.
    """
    return parse_manifest(read_document(Path(path)))


def parse_manifest(document: object) -> HeteroTrainingJob:
    """The job that a parsed document describes, defaults filled in; null counts as absent, as in a cluster.

    Raises ManifestError with all that is wrong with it.
    """
    return _judged(_plain(document))


def parse_simulated(document: object) -> HeteroTrainingJob:
    """The job of a simulation: of any size, since no ConfigMap has to hold its plan.

    Raises ManifestError with all that is wrong with it.
    """
    return _judged(_plain(document), tuple(rule for rule in RULES if rule is not PLAN_FITS_INTO_A_CONFIG_MAP))


def parse_stored(document: object) -> tuple[HeteroTrainingJob, tuple[str, ...]]:
    """The job that an object in a cluster describes, and the paths of its fields that are not known here, which are
    passed over: a newer resource definition admits what it alone knows, and the job must be supervised all the same.

    Raises ManifestError with all else that is wrong with it.
    """
    plain = _plain(document)
    if isinstance(metadata := plain.get("metadata"), dict):
        plain["metadata"] = {name: metadata[name] for name in READ_OF_METADATA if name in metadata}
    unknown = _unknown_locations(plain)
    for *parents, last in unknown:
        node: Any = plain
        for part in parents:
            node = node[part]
        del node[last]
    return _judged(plain), tuple(map(render_path, unknown))


def _plain(document: object) -> dict[str, Any]:
    """A copy of JSON's types only, without nulls. Raises ManifestError if it is no job, or beyond all bounds."""
    given = plain_mapping(document)
    wrong_kind = [
        Problem(key, f"must be {wanted}, found {shown(given.get(key))}")
        for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND))
        if given.get(key) != wanted
    ]
    if wrong_kind:
        raise ManifestError(wrong_kind)
    plain = in_json(given)
    too_large = size_problem(plain.get("spec"))
    if too_large is not None:
        raise ManifestError([too_large])
    return plain


def _judged(document: dict[str, Any], rules: tuple[Rule[HeteroTrainingJob], ...] = RULES) -> HeteroTrainingJob:
    problems: list[Problem] = []
    job = _validated(document, problems)
    if job is not None:
        malformed = {problem.path for problem in problems}
        problems += unavailable(job.model_dump(mode="json", by_alias=True, exclude_none=True))
        for rule in rules:
            if not any(_overlaps(read, path) for read in rule.reads for path in malformed):
                problems += rule.check(job)
    if job is None or problems:
        raise ManifestError(problems[:MOST_PROBLEMS])
    return job


def _unknown_locations(document: dict[str, Any]) -> list[Location]:
    try:
        HeteroTrainingJob.model_validate_json(json.dumps(document))
    except ValidationError as error:
        return [detail["loc"] for detail in error.errors(include_url=False) if detail["type"] == "extra_forbidden"]
    return []


def _validated(document: dict[str, Any], problems: list[Problem]) -> HeteroTrainingJob | None:
    """The job without its malformed parts, which are reported; None if too little is left of it."""
    document = copy.deepcopy(document)
    for attempt in range(3):
        try:
            return HeteroTrainingJob.model_validate_json(json.dumps(document))
        except ValidationError as error:
            errors = [detail for detail in error.errors(include_url=False) if not _is_echo(detail)]
        if attempt == 0:
            problems += [field_problem(detail, HeteroTrainingJob) for detail in errors[:MOST_PROBLEMS]]
        # From the last to the first, so that the positions of list entries stay what they are.
        for detail in reversed(errors):
            _set_aside(document, detail["loc"])
    return None


def _is_echo(detail: ErrorDetails) -> bool:
    """Whether pydantic finds a list too short only because it left out entries that it reports anyway."""
    return detail["type"] == "too_short" and len(detail["input"]) >= detail["ctx"]["min_length"]


def _set_aside(document: Any, location: Location) -> None:
    """Take a malformed value out of the document, or put a placeholder where one is needed."""
    *parents, last = location
    node = document
    for part in parents:
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            return
    if isinstance(node, dict) and isinstance(last, str):
        if last in _PLACEHOLDERS and node.get(last) != _PLACEHOLDERS[last]:
            node[last] = copy.deepcopy(_PLACEHOLDERS[last])
        else:
            node.pop(last, None)
    elif isinstance(node, list) and isinstance(last, int) and last < len(node):
        node[last] = {}


def _overlaps(read: str, path: str) -> bool:
    """Whether a malformed path touches a field that a rule reads: equal, above or below it."""
    path = re.sub(r"\[\d+\]", "[]", path)
    longer, shorter = (read, path) if len(read) > len(path) else (path, read)
    return longer == shorter or longer.startswith((f"{shorter}.", f"{shorter}["))
