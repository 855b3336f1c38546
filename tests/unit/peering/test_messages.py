"""Messages between workers are read as they were written, or refused in words; newer peers may say more."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given

from heterotrain.groups.convening import protocol
from heterotrain.groups.convening.protocol import Beat, Call, Fenced, Form, GiveUp, Meet
from heterotrain.groups.convening.roster import Number, Roster, Standing
from heterotrain.groups.peering.message_documents import MAX_VALUE_BYTES, encode_message, parse_message
from heterotrain.groups.peering.messages import (
    Abandon,
    Begins,
    Collect,
    EndJob,
    Enter,
    Frame,
    Grant,
    Hello,
    Joins,
    Left,
    Message,
    Over,
    Prepare,
    Put,
    TurnedAway,
    Update,
    Values,
    Vouches,
)
from heterotrain.peers import PeerError
from hostile import spoilt_text

NUMBER = Number(3, 1)
ROSTER = Roster(NUMBER, ("u0", "u1"))
PLANNED = Roster(Number(4, 0), ("u0", "u2"), "u0")
STANDING = Standing(ROSTER, (PLANNED,))
CONVENED: list[protocol.Message] = [
    Beat(NUMBER),
    protocol.Alive(None),
    Meet(NUMBER, STANDING, 17, True, True, frozenset({"u7"}), frozenset(), (("u1", 0.5),), True, frozenset({NUMBER})),
    Call(NUMBER, None, False),
    Form(ROSTER, 17, '{"schema": 1}', STANDING, frozenset({"u7"})),
    GiveUp(NUMBER, "u1"),
    Fenced(NUMBER, ("u0",)),
]
MESSAGES: list[Message] = [
    Hello("j", "w-0", "u0", "00ff"),
    *[Frame(7.5, None if index else 6.25, each) for index, each in enumerate(CONVENED)],
    Joins(3),
    Prepare(3, NUMBER, "u0"),
    Begins(3),
    Left("u1", "its script ended"),
    Over(),
    Vouches(),
    Abandon(NUMBER, "w-1 died"),
    Put(NUMBER, "3.1/control/0/1", b"\x00\xff"),
    Collect(NUMBER, "3.1/control/0/", 2),
    Values(NUMBER, "3.1/control/0/", 2, True, 0, (b"\x00", None)),
    Enter('{"model": "2 tensors"}'),
    Update("00ff", 7, 3, 32, 0.25, 0.5, 32.0, True),
    EndJob(),
    Grant("00ff", 8, (0, 32, 64), (), (4, 0, 32), True, False, "", "{}"),
    TurnedAway("lease 7 was never given", True),
]
DOCUMENTS = [json.loads(encode_message(each)) for each in MESSAGES]


def named(document: dict[str, Any]) -> str:
    inner = document.get("message")
    return str(document["type"] if inner is None else inner["type"])


def document_of(kind: str) -> dict[str, Any]:
    (found,) = [each for each in DOCUMENTS if named(each) == kind]
    return dict(found)


def test_an_example_of_each_kind_is_here() -> None:
    assert {type(each) for each in MESSAGES} == set(get_args(Message))
    assert {type(each) for each in CONVENED} == set(get_args(protocol.Message))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_a_message_is_read_as_it_was_written(message: Message) -> None:
    assert parse_message(encode_message(message)) == message


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_fields_of_a_newer_peer_are_passed_over(document: dict[str, Any]) -> None:
    newer = document | {"colour": ["red"], "_": {"deep": [1]}}
    assert parse_message(json.dumps(newer).encode()) == parse_message(json.dumps(document).encode())


@pytest.mark.parametrize("missing", [[], [["gpu", 2]], None], ids=str)
def test_what_an_older_convener_says_that_groups_lack_is_passed_over(missing: object) -> None:
    document = document_of("Form")
    inner = document["message"] | {"missing": missing}
    assert parse_message(json.dumps(document | {"message": inner}).encode()) == parse_message(
        json.dumps(document).encode()
    )


def test_a_message_of_a_kind_that_only_a_newer_peer_knows_is_passed_over() -> None:
    assert parse_message(b'{"type": "Praise", "number": "none"}') is None
    assert parse_message(b'{"type": "Frame", "sent": 1, "echo": null, "message": {"type": "Praise"}}') is None


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if len(each) > 1], ids=named)
def test_a_field_that_is_missing_is_named(document: dict[str, Any]) -> None:
    kind, field, *_ = document
    rest = {name: value for name, value in document.items() if name != field}
    with pytest.raises(PeerError, match=rf"{document[kind]}\.{field}: is missing"):
        parse_message(json.dumps(rest).encode())


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("Joins", "generation", -1),
        ("Joins", "generation", 2**60),
        ("Joins", "generation", True),
        ("Joins", "generation", 1.0),
        ("Collect", "now", 1),
        ("Hello", "name", "\ud800"),
        ("Hello", "uid", "x" * 254),
        ("Abandon", "number", [1]),
        ("Abandon", "number", [1, -1]),
        ("Abandon", "number", "1.1"),
        ("Beat", "sent", float("nan")),
        ("Beat", "echo", "now"),
        ("Beat", "message", []),
        ("Put", "key", "k" * 1025),
        ("Put", "value", "é"),
        ("Put", "value", "AAA"),
        ("Put", "value", "A" * (2 * MAX_VALUE_BYTES)),
        ("Values", "values", [3]),
        ("Left", "why", 3),
    ],
)
def test_a_field_that_is_none_or_beyond_bounds_is_refused_by_its_name(kind: str, field: str, value: object) -> None:
    document = document_of(kind)
    with pytest.raises(PeerError, match=rf"{document['type']}\.{field}: "):
        parse_message(json.dumps(document | {field: value}).encode())


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("Beat", "formed", 3),
        ("Fenced", "members", "u0"),
        ("Fenced", "members", ["u"] * 10_000),
        ("GiveUp", "uid", "x" * 254),
        ("Meet", "step", -1),
        ("Meet", "standing", [None]),
        ("Meet", "standing", [None, [[NUMBER.generation]]]),
        ("Meet", "standing", [None, [[[1, 1], ["u0"], None]] * 65]),
        ("Meet", "owes", [["u0", float("inf")]]),
        ("Meet", "has_state", 1),
        ("Form", "roster", [[1, 1], "u0", None]),
        ("Form", "plan", "x" * (2**20 + 1)),
    ],
)
def test_a_field_of_a_framed_message_is_refused_by_its_name(kind: str, field: str, value: object) -> None:
    document = document_of(kind)
    inner = document["message"] | {field: value}
    with pytest.raises(PeerError, match=rf"Frame\.message: {kind}\.{field}: "):
        parse_message(json.dumps(document | {"message": inner}).encode())


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"[" + b"[]," * 2**17 + b"0]", "more than 131072 values"),
        (b'{"type": "Abandon", "number": ' + b"[" * 5000, "nested too deeply|not JSON"),
        (b" " * 2**23, "bytes, of which at most"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "expected an object"),
        (b"{}", "type: expected a kind"),
        (b'{"type": {}}', "type: expected a kind"),
        (b"", "not JSON"),
    ],
)
def test_a_document_that_is_none_or_beyond_bounds_is_refused(document: bytes, why: str) -> None:
    with pytest.raises(PeerError, match=why):
        parse_message(document)


@given(spoilt_text(*DOCUMENTS))
def test_any_document_is_read_or_refused_as_a_peers(text: str) -> None:
    try:
        found = parse_message(text.encode(errors="surrogatepass"))
        if found is not None:
            assert parse_message(encode_message(found)) == found
    except PeerError as error:
        assert len(str(error).encode(errors="replace")) < 1500


def test_a_field_that_an_older_peer_does_not_write_has_its_default() -> None:
    document = document_of("Hello")
    del document["protocol"]
    assert parse_message(json.dumps(document).encode()) == Hello("j", "w-0", "u0", "00ff", 1)
