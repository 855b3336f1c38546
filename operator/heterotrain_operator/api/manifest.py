"""Read a manifest and refuse what is wrong with it, all at once, each fault by its path.

A fault in one field must not hide the faults of others: what is malformed is set aside, and every rule that
does not read it is still judged.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from heterotrain_operator.api.availability import unavailable
from heterotrain_operator.api.base import PATTERN_MEANING, Model
from heterotrain_operator.api.document import read_document
from heterotrain_operator.api.hints import did_you_mean
from heterotrain_operator.api.job import API_VERSION, KIND, HeteroTrainingJob
from heterotrain_operator.api.magnitude import magnitude_problem
from heterotrain_operator.api.problems import ManifestError, Problem, render_path
from heterotrain_operator.api.rules import RULES

_Location = tuple[str | int, ...]

_PLACEHOLDERS: dict[str, Any] = {
    "name": "placeholder",
    "template": {},
    "training": {},
    "value": 0,
    "seconds": 0,
}
"""Stand for required fields that are absent or malformed while the others are judged."""

_TYPES = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing_size": "an integer of 64 bits",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "tuple_type": "a list",
}


def load_manifest(path: str | Path) -> HeteroTrainingJob:
    """The job that a YAML (or JSON) file describes, defaults filled in.

    Raises ManifestError with all that is wrong with it: unreadable, not YAML, not one document, or not a
    valid job.
    """
    return parse_manifest(read_document(Path(path)))


def parse_manifest(document: object) -> HeteroTrainingJob:
    """The job that a parsed document describes, defaults filled in; null counts as absent, as in a cluster.

    Raises ManifestError with all that is wrong with it.
    """
    return _judged(_plain(document))


def parse_stored(document: object) -> tuple[HeteroTrainingJob, tuple[str, ...]]:
    """The job that an object in a cluster describes, and the paths of its fields that are not known here, which are
    passed over: a newer resource definition admits what it alone knows, and the job must be supervised all the same.

    Raises ManifestError with all else that is wrong with it.
    """
    plain = _plain(document)
    unknown = _unknown_locations(plain)
    for *parents, last in unknown:
        node: Any = plain
        for part in parents:
            node = node[part]
        del node[last]
    return _judged(plain), tuple(map(render_path, unknown))


def _plain(document: object) -> dict[str, Any]:
    """A copy of JSON's types only, without nulls. Raises ManifestError if it is no job, or beyond all bounds."""
    if not isinstance(document, dict):
        raise ManifestError([Problem("", f"must be a mapping, found {_shown(document)}")])
    beyond = magnitude_problem(document)
    if beyond is not None:
        raise ManifestError([beyond])
    wrong_kind = [
        Problem(key, f"must be {wanted}, found {_shown(document.get(key))}")
        for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND))
        if document.get(key) != wanted
    ]
    if wrong_kind:
        raise ManifestError(wrong_kind)
    try:
        plain: dict[str, Any] = json.loads(json.dumps(_without_nulls(document)))
    except (TypeError, ValueError) as error:
        raise ManifestError([Problem("", f"holds what JSON cannot express: {error}")]) from error
    return plain


def _judged(document: dict[str, Any]) -> HeteroTrainingJob:
    problems: list[Problem] = []
    job = _validated(document, problems)
    if job is not None:
        malformed = {problem.path for problem in problems}
        problems += unavailable(job.model_dump(mode="json", by_alias=True, exclude_none=True))
        for rule in RULES:
            if not any(_overlaps(read, path) for read in rule.reads for path in malformed):
                problems += rule.check(job)
    if job is None or problems:
        raise ManifestError(problems)
    return job


def _unknown_locations(document: dict[str, Any]) -> list[_Location]:
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
            problems += [_problem(detail) for detail in errors]
        # From the last to the first, so that the positions of list entries stay what they are.
        for detail in reversed(errors):
            _set_aside(document, detail["loc"])
    return None


def _is_echo(detail: ErrorDetails) -> bool:
    """Whether pydantic finds a list too short only because it left out entries that it reports anyway."""
    return detail["type"] == "too_short" and len(detail["input"]) >= detail["ctx"]["min_length"]


def _set_aside(document: Any, location: _Location) -> None:
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


def _problem(detail: ErrorDetails) -> Problem:
    """One of pydantic's errors in our words."""
    kind, found, context = detail["type"], detail["input"], detail.get("ctx", {})
    reason = detail["msg"]
    if kind == "missing":
        reason = "is required"
    elif kind == "extra_forbidden":
        reason = _unknown_field(detail["loc"])
    elif kind == "literal_error":
        expected = str(context["expected"])
        hint = did_you_mean(str(found), re.findall(r"'([^']+)'", expected))
        reason = f"must be {expected.replace(chr(39), '')}, found {_shown(found)}{hint}"
    elif kind in _TYPES:
        reason = f"must be {_TYPES[kind]}, found {_shown(found)}"
    elif kind == "greater_than_equal":
        reason = f"must be at least {context['ge']}, found {_shown(found)}"
    elif kind == "greater_than":
        reason = f"must be above {context['gt']}, found {_shown(found)}"
    elif kind == "less_than_equal":
        reason = f"must be at most {context['le']}, found {_shown(found)}"
    elif kind == "string_pattern_mismatch":
        reason = f"must be {PATTERN_MEANING[context['pattern']]}, found {_shown(found)}"
    elif kind in ("string_too_short", "string_too_long"):
        bound = f"at least {context['min_length']}" if "min_length" in context else f"at most {context['max_length']}"
        reason = f"must have {bound} characters, found {len(str(found))}"
    elif kind in ("too_short", "too_long"):
        bound = f"at least {context['min_length']}" if "min_length" in context else f"at most {context['max_length']}"
        reason = f"must have {bound} entries, found {context['actual_length']}"
    return Problem(render_path(detail["loc"]), reason)


def _unknown_field(location: _Location) -> str:
    """Say that a field is unknown, and which one may be meant."""
    model: Any = HeteroTrainingJob
    for part in location[:-1]:
        if isinstance(part, str):
            model = _model_of(model, part)
    names = [field.alias or name for name, field in model.model_fields.items()]
    hint = did_you_mean(str(location[-1]), names) or f"; known are {', '.join(names)}"
    return f"unknown field{hint}"


def _model_of(model: type[Model], alias: str) -> type[Model]:
    """The model of a field's value or of its entries."""
    field = next(field for field in model.model_fields.values() if field.alias == alias)
    pending: list[Any] = [field.annotation]
    while pending:
        candidate = pending.pop()
        if isinstance(candidate, type) and issubclass(candidate, Model):
            return candidate
        pending.extend(getattr(candidate, "__args__", ()))
    raise AssertionError(f"{model.__name__}.{alias} holds no model")


def _overlaps(read: str, path: str) -> bool:
    """Whether a malformed path touches a field that a rule reads: equal, above or below it."""
    path = re.sub(r"\[\d+\]", "[]", path)
    longer, shorter = (read, path) if len(read) > len(path) else (path, read)
    return longer == shorter or longer.startswith((f"{shorter}.", f"{shorter}["))


def _without_nulls(node: object) -> object:
    """A copy without the keys whose value is null; keys become strings, as in JSON."""
    if isinstance(node, dict):
        return {key: _without_nulls(value) for key, value in node.items() if value is not None}
    if isinstance(node, list):
        return [_without_nulls(entry) for entry in node]
    return node


def _shown(value: object) -> str:
    """A value as it appears in a message: short, and recognisable from the manifest."""
    if isinstance(value, str):
        shown: Iterable[str] = repr(value)
    elif value is None:
        shown = "nothing"
    else:
        try:
            shown = json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            shown = repr(type(value).__name__)
    text = "".join(shown)
    return text if len(text) <= 80 else f"{text[:77]}..."
