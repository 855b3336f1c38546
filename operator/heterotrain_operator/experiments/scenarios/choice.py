"""One of several: a mapping with exactly one key, as Kubernetes has volumes, so that each kind has its own fields."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from heterotrain_operator.api.base import Model
from heterotrain_operator.api.problems import Problem, render_path

Path = tuple[str | int, ...]


class Choice(Model):
    """A mapping of which exactly one of the fields is given; subclasses have optional fields that hold models."""

    @classmethod
    def kinds(cls) -> tuple[str, ...]:
        """What it may be, as it is written."""
        return tuple(cls.model_fields[name].alias or name for name in cls.model_fields if cls.is_kind(name))

    @classmethod
    def is_kind(cls, name: str) -> bool:
        """Whether a field is one of those among which is chosen; a subclass may have others."""
        return True

    def given(self) -> tuple[str, ...]:
        """The kinds that are given, as they are written."""
        return tuple(
            field.alias or name
            for name, field in type(self).model_fields.items()
            if self.is_kind(name) and getattr(self, name) is not None
        )

    @property
    def chosen(self) -> Model:
        """The one that is given; `choice_problems` must have found nothing."""
        (model,) = (
            getattr(self, name)
            for name in type(self).model_fields
            if self.is_kind(name) and getattr(self, name) is not None
        )
        assert isinstance(model, Model)
        return model


def choice_problems(value: object, path: Path = ()) -> Iterator[Problem]:
    """Every choice at or below a value of which not exactly one kind is given."""
    if isinstance(value, Choice) and len(value.given()) != 1:
        found = " and ".join(value.given()) or "nothing"
        yield Problem(render_path(path), f"needs exactly one of {', '.join(value.kinds())}; found {found}")
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            yield from choice_problems(getattr(value, name), (*path, field.alias or name))
    elif isinstance(value, tuple):
        for index, entry in enumerate(value):
            yield from choice_problems(entry, (*path, index))
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from choice_problems(entry, (*path, key))
