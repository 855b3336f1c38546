"""Read one YAML document as a cluster would, refuse what would silently lose data, and say in words what is wrong.

These are the checks that every kind of document shares, whatever its models are.
"""

from __future__ import annotations

import json
import re
import sys
from itertools import islice
from pathlib import Path
from typing import Any, get_origin

import yaml
from pydantic_core import ErrorDetails

from heterotrain_operator.api.base import PATTERN_MEANING, Model
from heterotrain_operator.api.problems import ManifestError, Problem, did_you_mean, magnitude_problem, render_path

MAX_NEIGHBOURS = 10_000
"""Files of a folder among which one of nearly the same name is looked for."""

STANDARD_INPUT = Path("-")
MAX_CHARACTERS = 8 * 2**20
"""Characters of a file at most: far more than a manifest may hold, and a scenario with all its values."""
LONGEST_LINE = 100
"""Characters of a faulty line that are shown."""


class _Loader(yaml.SafeLoader):
    """SafeLoader that sees repeated keys, and reads scalars as Kubernetes does.

    PyYAML follows YAML 1.1, where `1.0e12` is a string and `2026-01-01` a date.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.problems: list[Problem] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue
            if key_node.value in seen:
                mark = key_node.start_mark
                self.problems.append(
                    Problem(f"line {mark.line + 1}, column {mark.column + 1}", f"repeated key {key_node.value!r}")
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


_JSON_TAGS = {"map", "seq", "str", "int", "float", "bool", "null"}
_TAG = "tag:yaml.org,2002:"
_Loader.yaml_constructors = {
    tag: constructor
    for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix(_TAG) in _JSON_TAGS
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG}timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
NUMBER_TAG, NUMBER = f"{_TAG}float", re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")
"""Numbers such as 1e-3, which PyYAML takes for text: all other readers of YAML take them for numbers."""
_Loader.add_implicit_resolver(NUMBER_TAG, NUMBER, list("-+.0123456789"))


def read_document(path: Path) -> object:
    """The one document in a YAML (or JSON) file, of JSON's types only.

    Raises ManifestError if the file cannot be read, is not YAML, repeats a key, or holds not one document.
    """
    return document_in(read_text(path), path)


def near_miss(path: Path) -> str:
    """A question to append to a message about a file that is not there: the file beside it of nearly that name."""
    try:
        if path.exists():
            return ""
        beside = [each.name for each in islice(path.parent.iterdir(), MAX_NEIGHBOURS) if each.is_file()]
    except (OSError, ValueError):
        return ""
    return did_you_mean(path.name, beside)


def read_text(path: Path) -> str:
    """What is in a file, or in standard input (`-`). Raises ManifestError if it cannot be read or is too large."""
    try:
        # A device or a pipe may never end, so no more is read than may be there.
        if path == STANDARD_INPUT:
            text = sys.stdin.read(MAX_CHARACTERS + 1)
        else:
            with path.open(encoding="utf-8") as file:
                text = file.read(MAX_CHARACTERS + 1)
    except OSError as error:
        raise ManifestError(
            [Problem(str(path), f"cannot be read: {error.strerror or error}{near_miss(path)}")]
        ) from error
    except UnicodeDecodeError as error:
        raise ManifestError([Problem(str(path), f"is not UTF-8 text: {error.reason} at byte {error.start}")]) from error
    except ValueError as error:  # of a path with a null character
        raise ManifestError([Problem(str(path), f"cannot be read: {error}")]) from error
    if len(text) > MAX_CHARACTERS:
        raise ManifestError([Problem(str(path), f"has more than {MAX_CHARACTERS} characters")])
    return text


def document_in(text: str, path: Path) -> object:
    """As `read_document`, of a file that was read."""
    documents = documents_in(text, path)
    if len(documents) != 1:
        raise ManifestError([Problem(str(path), f"must hold exactly one document, found {len(documents)}")])
    if not isinstance(documents[0], dict):
        kind = type(documents[0]).__name__
        raise ManifestError([Problem(str(path), f"must hold a mapping, found a {kind}")])
    return documents[0]


def read_documents(path: Path) -> list[Any]:
    """The documents in a YAML (or JSON) file, or in standard input (`-`), without empty ones.

    Raises ManifestError if it cannot be read, is not YAML, or repeats a key.
    """
    return documents_in(read_text(path), path)


def documents_in(text: str, path: Path) -> list[Any]:
    """As `read_documents`, of a file that was read."""
    try:
        loader = _Loader(text)
        documents: list[Any] = []
        while loader.check_node():
            documents.append(loader.construct_document(loader.get_node()))
    except yaml.YAMLError as error:
        raise ManifestError([Problem(str(path), f"is not YAML: {_in_one_line(error)}")]) from error
    except RecursionError:
        raise ManifestError([Problem(str(path), "is nested too deeply")]) from None
    except ValueError as error:  # of a number that is none, such as 0x_, or has thousands of digits
        raise ManifestError([Problem(str(path), f"holds a number that is none: {error}")]) from error
    if loader.problems:
        raise ManifestError(Problem(f"{path}, {found.path}", found.reason) for found in loader.problems)
    return [document for document in documents if document is not None]


def _in_one_line(error: yaml.YAMLError) -> str:
    """What and where, and the line itself."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        lines = (mark.buffer or "").split("\n")
        line = lines[mark.line].strip("\0 \t\r")[:LONGEST_LINE] if mark.line < len(lines) else ""
        shown = f" (the line is: {line})" if line else ""
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}{shown}"
    return " ".join(str(error).split())


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
