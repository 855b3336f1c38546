"""Values that describe themselves: what files call their fields, what these mean, and within which bounds.

A law, noise, communication or event is one frozen dataclass with its behaviour. Each field that a user may set is
annotated with its bounds and description; `Written` is what a file says of such a value, `Choice` one of several kinds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Generic, TypeVar, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, Field, create_model
from pydantic.fields import FieldInfo

from heterotrain_operator.api.base import DNS_LABEL, MAX_BATCH, MAX_COUNT, MAX_NAME, MAX_SECONDS, MAX_STEPS, Model
from heterotrain_operator.api.problems import Problem, render_path

MEBIBYTE = 2**20
MAX_WORKER_NAMES = 256

StepSeconds = Annotated[float, Field(ge=0, le=1_000_000)]
PositiveStepSeconds = Annotated[float, Field(ge=1e-9, le=1_000_000)]
Duration = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
Factor = Annotated[float, Field(ge=0.001, le=1000)]
Samples = Annotated[int, Field(ge=1, le=MAX_BATCH)]
Step = Annotated[int, Field(ge=0, le=MAX_STEPS)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
PositiveCount = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Cores = Annotated[float, Field(ge=0.001, le=1024)]
WorkerName = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=DNS_LABEL)]
"""A group, or one worker."""

IN_BYTES = AfterValidator(lambda mebibytes: mebibytes * MEBIBYTE)
Mebibytes = Annotated[float, Field(ge=0, le=1e9), IN_BYTES]
PositiveMebibytes = Annotated[float, Field(ge=0.001, le=1e9), IN_BYTES]
"""Mebibytes in files, bytes in values."""

Value = TypeVar("Value")
Path = tuple[str | int, ...]


class Described:
    """A frozen dataclass of which files may set the annotated fields.

    Values that code makes are checked by the same bounds, which are closed there: it may say that something does not
    vary at all. A fault is a ValueError that names the field.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        of: Any = type(self)
        bounded(self, _bounds(of))


class Written(Model, Generic[Value]):
    """What a file says of a value: `Written[Jump]` is the model of a `Jump`, made of its annotated fields.

    A field's default in files is that of its annotation, else that of the value.
    """

    of: ClassVar[type[Any]]

    def __class_getitem__(cls, of: Any) -> Any:
        return _written(of)

    def value(self, **outside: object) -> Value:
        """It, with what of `outside` it has fields for: what files say elsewhere, as when an event begins."""
        known = {field.name for field in fields(self.of)}
        said = {name: getattr(self, name) for name in type(self).model_fields}
        found: Value = self.of(**said, **{name: value for name, value in outside.items() if name in known})
        return found


@cache
def _written(of: Any) -> type[Written[Any]]:
    hints = get_type_hints(of, include_extras=True)
    said: dict[str, Any] = {}
    for field in fields(of):
        hint = hints[field.name]
        if get_origin(hint) is Annotated:
            default = FieldInfo.from_annotation(hint).get_default()
            if field.default is not MISSING:
                default = field.default
            said[field.name] = hint, default
    model = create_model(of.__name__, __base__=Written, __module__=of.__module__, __doc__=of.__doc__, **said)
    model.of = of
    return model


def bounded(of: object, bounds: Mapping[str, tuple[float, float]]) -> None:
    """Raises ValueError, with its name, if a number among these fields is beyond its bounds; None is none."""
    for name, (least, most) in bounds.items():
        value = getattr(of, name)
        if value is not None and not least <= value <= most:
            raise ValueError(f"{name}: expected a number from {least:g} to {most:g}, found {value}")


@cache
def _bounds(of: Any) -> dict[str, tuple[float, float]]:
    """The numbers among a value's annotated fields, with their least and greatest, in the value's units."""
    found = {}
    for name, field in _written(of).model_fields.items():
        least, most = -math.inf, math.inf
        for each in _metadata(field):
            if each is IN_BYTES:
                least, most = least * MEBIBYTE, most * MEBIBYTE
            least = getattr(each, "ge", getattr(each, "gt", least))
            most = getattr(each, "le", most)
        if (least, most) != (-math.inf, math.inf):
            found[name] = least, most
    return found


def _metadata(field: FieldInfo) -> Iterator[Any]:
    """What is said of a field's numbers, also where there need be none: of `Bounded | None` the arguments say it."""
    for each in (*field.metadata, *(said for one in get_args(field.annotation) for said in get_args(one)[1:])):
        if isinstance(each, FieldInfo):
            yield from _metadata(each)
        else:
            yield each


class Choice(Model):
    """One of several, as Kubernetes has volumes: a mapping of which exactly one of the kinds is given."""

    beside: ClassVar[tuple[str, ...]] = ()
    """Fields that are no kinds."""

    @classmethod
    def kinds(cls) -> dict[str, str]:
        """What it may be: names of fields, as they are written."""
        return {field.alias or name: name for name, field in cls.model_fields.items() if name not in cls.beside}

    def given(self) -> dict[str, Written[Any]]:
        """The kinds that are given, as they are written."""
        found = {alias: getattr(self, name) for alias, name in self.kinds().items()}
        return {alias: kind for alias, kind in found.items() if kind is not None}

    @property
    def chosen(self) -> Written[Any]:
        """The one that is given; `choice_problems` must have found nothing."""
        (kind,) = self.given().values()
        return kind


def said(description: str, **bounds: Any) -> Any:
    """What a field means in files, and its bounds there; with an `alias` it has another name in them."""
    return Field(description=description, **bounds)


def kind(of: type[Any]) -> Any:
    """A kind of a choice, which the first paragraph of its docstring describes."""
    return Field(default=None, description=(of.__doc__ or "").partition("\n\n")[0])


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
