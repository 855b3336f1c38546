"""All CEL rules of the CRD: rules between fields, what is not available yet, and what never changes.

Each comes from the table that the command line and the operator use, so that no two of them can disagree.
"""

from __future__ import annotations

from collections.abc import Iterator

from heterotrain_operator.api.availability import NOT_YET, Limit
from heterotrain_operator.api.generate.schema import Schema, node_at
from heterotrain_operator.api.mutability import MUTABLE, is_mutable
from heterotrain_operator.api.rule import Cel
from heterotrain_operator.api.rules import RULES

_KEY = "x-kubernetes-validations"


def add_validations(schema: Schema) -> None:
    """Put every rule into the structural schema, where it belongs."""
    rules = [cel for rule in RULES for cel in rule.cel]
    rules += [_availability(limit) for limit in NOT_YET]
    rules += _immutability(node_at(schema, "spec"), "spec")
    for cel in rules:
        node_at(schema, cel.at).setdefault(_KEY, []).append({"rule": cel.rule, "message": cel.message})


def _availability(limit: Limit) -> Cel:
    """Refuse at the API server what is not available yet."""
    at, _, name = limit.path.rpartition(".")
    if limit.missing:
        names = ", ".join(f"'{value}'" for value in limit.missing)
        return Cel(at, f"!(self.{name} in [{names}])", f"{names} is not available yet; {limit.advice()}")
    if not limit.works:
        return Cel(at, f"!has(self.{name})", f"{name} is not available yet; {limit.advice()}")
    names = ", ".join(f"'{value}'" for value in limit.works)
    return Cel(at, f"self.{name} in [{names}]", f"this {name} is not available yet; {limit.advice()}")


def _immutability(schema: Schema, path: str) -> Iterator[Cel]:
    """Compare whatever `MUTABLE` does not name with what it was, at the highest level at which that is possible."""
    for name, child in schema["properties"].items():
        here = f"{path}.{name}"
        if is_mutable(here):
            continue
        if not any(mutable.startswith((f"{here}.", f"{here}[")) for mutable in MUTABLE):
            yield _unchanged(schema, path, name)
        elif child["type"] == "array":
            (key,) = child["x-kubernetes-list-map-keys"]
            yield Cel(
                here,
                f"self.size() == oldSelf.size() && self.all(new, oldSelf.exists(old, old.{key} == new.{key}))",
                f"entries of {name} cannot be added, removed or renamed",
            )
            # An entry is compared with the one of the same key, so the key itself needs no rule.
            entries = {**child["items"], "properties": dict(child["items"]["properties"])}
            del entries["properties"][key]
            yield from _immutability(entries, f"{here}[]")
        else:
            yield from _immutability(child, here)


def _unchanged(schema: Schema, path: str, name: str) -> Cel:
    """A rule of the parent, since a rule of the field itself is not judged when the field is added or removed."""
    same = f"self.{name} == oldSelf.{name}"
    if name not in schema.get("required", ()) and "default" not in schema["properties"][name]:
        same = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || {same})"
    return Cel(path, same, f"{name} is immutable")
