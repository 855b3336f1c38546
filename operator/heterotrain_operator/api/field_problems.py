"""What is wrong with fields, in words: the checks that every kind of document shares, whatever its models are."""

from __future__ import annotations

import json
import re
from typing import Any, get_origin

from pydantic_core import ErrorDetails

from heterotrain_operator.api.base import PATTERN_MEANING, Model
from heterotrain_operator.api.problems import ManifestError, Problem, did_you_mean, magnitude_problem, render_path

Location = tuple[str | int, ...]

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


def plain_mapping(document: object) -> dict[str, Any]:
    """The document, if it is a mapping within all bounds. Raises ManifestError if it is not."""
    if not isinstance(document, dict):
        raise ManifestError([Problem("", f"must be a mapping, found {shown(document)}")])
    beyond = magnitude_problem(document)
    if beyond is not None:
        raise ManifestError([beyond])
    return document


def in_json(document: dict[str, Any]) -> dict[str, Any]:
    """A copy of JSON's types only, without nulls. Raises ManifestError if JSON cannot express it."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(_without_nulls(document)))
    except (TypeError, ValueError) as error:
        raise ManifestError([Problem("", f"holds what JSON cannot express: {error}")]) from error
    return plain


def field_problem(detail: ErrorDetails, root: type[Model]) -> Problem:
    """One of pydantic's errors in our words; `root` is the model that was validated."""
    kind, found, context = detail["type"], detail["input"], detail.get("ctx", {})
    reason = detail["msg"]
    if kind == "missing":
        reason = "is required"
    elif kind == "extra_forbidden":
        reason = _unknown_field(detail["loc"], root)
    elif kind == "literal_error":
        expected = str(context["expected"])
        hint = did_you_mean(str(found), re.findall(r"'([^']+)'", expected))
        reason = f"must be {expected.replace(chr(39), '')}, found {shown(found)}{hint}"
    elif kind in _TYPES:
        reason = f"must be {_TYPES[kind]}, found {shown(found)}"
    elif kind == "greater_than_equal":
        reason = f"must be at least {context['ge']}, found {shown(found)}"
    elif kind == "greater_than":
        reason = f"must be above {context['gt']}, found {shown(found)}"
    elif kind == "less_than_equal":
        reason = f"must be at most {context['le']}, found {shown(found)}"
    elif kind == "string_pattern_mismatch":
        reason = f"must be {PATTERN_MEANING[context['pattern']]}, found {shown(found)}"
    elif kind in ("string_too_short", "string_too_long"):
        bound = f"at least {context['min_length']}" if "min_length" in context else f"at most {context['max_length']}"
        reason = f"must have {bound} characters, found {len(str(found))}"
    elif kind in ("too_short", "too_long"):
        bound = f"at least {context['min_length']}" if "min_length" in context else f"at most {context['max_length']}"
        reason = f"must have {bound} entries, found {context['actual_length']}"
    return Problem(render_path(detail["loc"]), reason)


def _unknown_field(location: Location, root: type[Model]) -> str:
    """Say that a field is unknown, and which one may be meant."""
    model: Any = root
    keyed = False
    for part in location[:-1]:
        if keyed:
            keyed = False
        elif isinstance(part, str):
            model, keyed = _model_of(model, part)
    names = [field.alias or name for name, field in model.model_fields.items()]
    hint = did_you_mean(str(location[-1]), names) or f"; known are {', '.join(names)}"
    return f"unknown field{hint}"


def _model_of(model: type[Model], alias: str) -> tuple[type[Model], bool]:
    """The model of a field's value or of its entries, and whether those entries have keys of the user's own."""
    field = next(field for field in model.model_fields.values() if field.alias == alias)
    pending: list[Any] = [field.annotation]
    keyed = False
    while pending:
        candidate = pending.pop()
        if isinstance(candidate, type) and issubclass(candidate, Model):
            return candidate, keyed
        keyed = keyed or get_origin(candidate) is dict
        pending.extend(getattr(candidate, "__args__", ()))
    raise AssertionError(f"{model.__name__}.{alias} holds no model")


def _without_nulls(node: object) -> object:
    """A copy without the keys whose value is null; keys become strings, as in JSON."""
    if isinstance(node, dict):
        return {key: _without_nulls(value) for key, value in node.items() if value is not None}
    if isinstance(node, list):
        return [_without_nulls(entry) for entry in node]
    return node


def shown(value: object) -> str:
    """A value as it appears in a message: short, and recognisable from the manifest."""
    if isinstance(value, str):
        text = repr(value)
    elif value is None:
        text = "nothing"
    else:
        try:
            text = json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            text = repr(type(value).__name__)
    return text if len(text) <= 80 else f"{text[:77]}..."
