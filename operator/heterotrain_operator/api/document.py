"""Read one YAML document as a cluster would, and refuse what would silently lose data."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml

from heterotrain_operator.api.problems import ManifestError, Problem

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
_Loader.add_implicit_resolver(
    f"{_TAG}float", re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"), list("-+.0123456789")
)


def read_document(path: Path) -> object:
    """The one document in a YAML (or JSON) file, of JSON's types only.

    Raises ManifestError if the file cannot be read, is not YAML, repeats a key, or holds not one document.
    """
    return document_in(read_text(path), path)


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
        raise ManifestError([Problem(str(path), f"cannot be read: {error.strerror or error}")]) from error
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
