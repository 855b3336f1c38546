"""Messages between workers as JSON documents: writing them, and reading them with mistrust.

A peer may run another version of this library, or be anything else that reaches the port. So a document is bounded in
bytes, in the number of its values and in each field; fields that are not known here are passed over, and so are
messages of a kind that is not known here.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, NamedTuple, TypeAlias, get_args

from heterotrain.contract import MAX_NAME_LENGTH, MAX_PLAN_BYTES
from heterotrain.foreign import as_text, is_measurement, is_number, is_text, is_whole, parse_object, shown
from heterotrain.groups.convening import protocol
from heterotrain.groups.convening.roster import Number, Roster, Standing
from heterotrain.groups.peering.messages import Message
from heterotrain.peers import LONGEST_NAME, LONGEST_WORD, MAX_BYTES, PeerError

MAX_VALUE_BYTES = 2**20
"""The longest value of one key on a board: the addresses that a worker offers to all others."""

MAX_MEMBERS = 2**13
"""More members than a plan of the greatest length holds."""

_MAX_ROSTERS = 64
_MAX_SEPARATORS = 2**17  # of a document's values; a plan of the greatest length has about a third of that


def encode_message(message: Message) -> bytes:
    """The document of a message."""
    return json.dumps(_document(message, _FIELDS), separators=(",", ":")).encode()


def parse_message(document: bytes) -> Message | None:
    """The message in a document, None if its kind is not known here. Raises PeerError."""
    try:
        # A list or an object takes up to thirty times the bytes that say so.
        if sum(map(document.count, (b",", b"[", b"{"))) > _MAX_SEPARATORS:
            raise ValueError(f"it has more than {_MAX_SEPARATORS} values")
        found = parse_object(document, MAX_BYTES)
        message: Message = _read(found, _TYPES, _FIELDS)
    except _UnknownKindError:
        return None
    except ValueError as error:
        raise PeerError(f"a worker's message cannot be understood: {error}") from error
    return message


class _UnknownKindError(ValueError):
    """Only a newer peer knows this kind of message."""


def _document(message: Any, known: _Fields) -> dict[str, Any]:
    kind = type(message).__name__
    return {"type": kind} | {name: codec.write(getattr(message, name)) for name, codec, _ in known[kind]}


def _read(found: dict[str, Any], types: dict[str, type[Any]], known: _Fields) -> Any:
    kind = found.get("type")
    if not is_text(kind, MAX_NAME_LENGTH):
        raise ValueError(f"type: expected a kind of message, found {shown(kind)}")
    if kind not in known:
        raise _UnknownKindError(kind)
    return types[kind](**_arguments(kind, found, known))


def _arguments(kind: str, found: dict[str, Any], known: _Fields) -> dict[str, Any]:
    arguments = {}
    for name, codec, required in known[kind]:
        if name not in found:
            if required:
                raise ValueError(f"{kind}.{name}: is missing")
            continue
        try:
            arguments[name] = codec.read(found[name])
        except _UnknownKindError:
            raise
        except ValueError as error:
            raise ValueError(f"{kind}.{name}: {error}") from error
    return arguments


class _Codec(NamedTuple):
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]  # raises ValueError


_Fields: TypeAlias = dict[str, list[tuple[str, _Codec, bool]]]


def _same(value: Any) -> Any:
    return value


def _read_name(value: Any) -> str:
    if not is_text(value, MAX_NAME_LENGTH):
        raise ValueError(f"expected at most {MAX_NAME_LENGTH} characters of text, found {shown(value)}")
    return value


def _read_names(value: Any) -> tuple[str, ...]:
    return tuple(map(_read_name, _list(value)))


def _write_word(value: str) -> str:
    return as_text(value, LONGEST_WORD)


def _read_word(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, found {shown(value)}")
    return as_text(value, LONGEST_WORD)


def _read_key(value: Any) -> str:
    if not is_text(value, LONGEST_NAME):
        raise ValueError(f"expected at most {LONGEST_NAME} characters of text, found {shown(value)}")
    return value


def _read_whole(value: Any) -> int:
    if not is_whole(value):
        raise ValueError(f"expected a whole number, found {shown(value)}")
    return value


def _read_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, found {shown(value)}")
    return value


def _write_number(value: Number) -> list[int]:
    return [value.generation, value.attempt]


def _read_number(value: Any) -> Number:
    match value:
        case [generation, attempt] if is_whole(generation) and is_whole(attempt):
            return Number(generation, attempt)
    raise ValueError(f"expected a generation and an attempt, found {shown(value)}")


def _read_document(value: Any) -> str:
    if not is_text(value, MAX_PLAN_BYTES):
        raise ValueError(f"expected at most {MAX_PLAN_BYTES} characters of text, found {shown(value)}")
    return value


def _read_seconds(value: Any) -> float:
    if not is_number(value):
        raise ValueError(f"expected a number, found {shown(value)}")
    return float(value)


def _read_figure(value: Any) -> float:
    if not is_measurement(value):
        raise ValueError(f"expected a number, found {shown(value)}")
    return float(value)


def _read_wholes(value: Any) -> tuple[int, ...]:
    return tuple(map(_read_whole, _list(value)))


def _read_numbers(value: Any) -> frozenset[Number]:
    return frozenset(map(_read_number, _list(value)))


def _write_roster(value: Roster) -> list[Any]:
    return [_write_number(value.number), list(value.members), value.announcer]


def _read_roster(value: Any) -> Roster:
    match value:
        case [number, list() as members, announcer]:
            named = None if announcer is None else _read_name(announcer)
            return Roster(_read_number(number), _read_names(members), named)
    raise ValueError(f"expected the number, members and announcer of a roster, found {shown(value)}")


def _write_standing(value: Standing) -> list[Any]:
    return [_optional(_write_roster)(value.formed), list(map(_write_roster, value.pending))]


def _read_standing(value: Any) -> Standing:
    match value:
        case [formed, list() as pending] if len(pending) <= _MAX_ROSTERS:
            return Standing(_optional(_read_roster)(formed), tuple(map(_read_roster, pending)))
    raise ValueError(f"expected the rosters of a standing, found {shown(value)}")


def _read_owed(value: Any) -> tuple[tuple[str, float], ...]:
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in _list(value)):
        raise ValueError(f"expected pairs, found {shown(value)}")
    return tuple((_read_name(name), _read_seconds(seconds)) for name, seconds in value)


def _optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _read_convened(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"expected a message, found {shown(value)}")
    return _read(value, _CONVENED, _CONVENED_FIELDS)


def _write_blob(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _read_blob(value: Any) -> bytes:
    if not isinstance(value, str) or len(value) > 2 * MAX_VALUE_BYTES:
        raise ValueError(f"expected at most {MAX_VALUE_BYTES} bytes in base64, found {shown(value)}")
    try:
        blob = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"not base64: {error}") from error
    if len(blob) > MAX_VALUE_BYTES:
        raise ValueError(f"has {len(blob)} bytes, of which at most {MAX_VALUE_BYTES} are read")
    return blob


def _read_blobs(value: Any) -> tuple[bytes | None, ...]:
    return tuple(None if each is None else _read_blob(each) for each in _list(value))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_MEMBERS:
        raise ValueError(f"expected a list of at most {MAX_MEMBERS} entries, found {shown(value)}")
    return value


_CODECS = {
    "Name": _Codec(_same, _read_name),
    "str": _Codec(_same, _read_name),
    "tuple[str, ...]": _Codec(list, _read_names),
    "frozenset[str]": _Codec(sorted, lambda value: frozenset(_read_names(value))),
    "Word": _Codec(_write_word, _read_word),
    "Key": _Codec(_same, _read_key),
    "Whole": _Codec(_same, _read_whole),
    "int": _Codec(_same, _read_whole),
    "Seconds": _Codec(_same, _read_seconds),
    "MaybeSeconds": _Codec(_same, _optional(_read_seconds)),
    "Figure": _Codec(_same, _read_figure),
    "Wholes": _Codec(list, _read_wholes),
    "bool": _Codec(_same, _read_flag),
    "Number": _Codec(_write_number, _read_number),
    "Number | None": _Codec(_optional(_write_number), _optional(_read_number)),
    "frozenset[Number]": _Codec(lambda numbers: list(map(_write_number, sorted(numbers))), _read_numbers),
    "Document": _Codec(_same, _read_document),
    "Roster": _Codec(_write_roster, _read_roster),
    "Standing": _Codec(_write_standing, _read_standing),
    "tuple[tuple[str, float], ...]": _Codec(_same, _read_owed),
    "Convened": _Codec(lambda message: _document(message, _CONVENED_FIELDS), _read_convened),
    "Blob": _Codec(_write_blob, _read_blob),
    "Blobs": _Codec(lambda blobs: list(map(_write_blob, blobs)), _read_blobs),
}
"""How the fields of messages are written and read, by the name of their type as it stands in the class."""

_TYPES: dict[str, type[Any]] = {each.__name__: each for each in get_args(Message)}

_CONVENED: dict[str, type[Any]] = {each.__name__: each for each in get_args(protocol.Message)}


def _fields_of(types: dict[str, type[Any]]) -> _Fields:
    return {
        name: [(each.name, _CODECS[str(each.type)], each.default is MISSING) for each in fields(kind)]
        for name, kind in types.items()
    }


_FIELDS: _Fields = _fields_of(_TYPES)
_CONVENED_FIELDS: _Fields = _fields_of(_CONVENED)
