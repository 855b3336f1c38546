"""A board tells all who ask for the same values as soon as the last one is written, within bounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from heterotrain.groups.convening.roster import Number
from heterotrain.groups.peering import board as board_module
from heterotrain.groups.peering.board import Answer, Board, BoardError, Question
from heterotrain.groups.peering.message_documents import MAX_VALUE_BYTES, parse_message
from heterotrain.groups.peering.messages import Values

NUMBER = Number(3, 1)
ALL = Question("k/", 3)


@pytest.fixture
def board() -> Board:
    return Board(NUMBER, ["u0", "u1", "u2"])


class Answered:
    """What was answered to those who asked, by asker."""

    def __init__(self) -> None:
        self.values: dict[str, list[tuple[bytes | None, ...]]] = {}

    def __call__(self, asker: str) -> Callable[[Answer], None]:
        return lambda answer: self.values.setdefault(asker, []).append(answer.values)


@pytest.fixture
def answered() -> Answered:
    return Answered()


def test_all_who_asked_are_answered_once_the_last_value_is_there(board: Board, answered: Answered) -> None:
    board.put("k/1", b"one")
    for asker in "abb":
        board.collect(ALL, asker, answered(asker))
    board.put("k/0", b"zero")
    assert answered.values == {}
    board.put("k/2", b"")
    assert answered.values == {asker: [(b"zero", b"one", b"")] for asker in "ab"}
    board.collect(ALL, "c", answered("c"))
    assert answered.values["c"] == [(b"zero", b"one", b"")]


def test_one_key_is_asked_for_alone(board: Board, answered: Answered) -> None:
    board.collect(Question("port", 0), "a", answered("a"))
    board.put("port", b"29500")
    assert answered.values == {"a": [(b"29500",)]}


def test_what_is_there_now_is_answered_at_once(board: Board, answered: Answered) -> None:
    board.put("k/1", b"one")
    board.collect(Question("k/", 3, now=True), "a", answered("a"))
    assert answered.values == {"a": [(None, b"one", None)]}
    board.put("k/0", b"")
    board.put("k/2", b"")
    board.collect(Question("k/", 3, now=True), "a", answered("a"))
    assert answered.values["a"][1] == (b"", b"one", b"")


def test_a_value_is_written_once_and_does_not_change(board: Board) -> None:
    board.put("k/0", b"zero")
    board.put("k/0", b"zero")
    with pytest.raises(BoardError, match="k/0 has another value already"):
        board.put("k/0", b"other")


def test_nothing_is_left_of_a_board_that_is_dropped(board: Board, answered: Answered) -> None:
    board.put("k/0", b"zero")
    board.collect(Question("k/0", 0), "b", answered("b"))
    board.collect(ALL, "a", answered("a"))
    assert len(board) == 3
    assert board.drop() == {"a"}
    assert len(board) == 0
    for act in (lambda: board.put("k/1", b""), lambda: board.collect(ALL, "a", answered("a"))):
        with pytest.raises(BoardError, match=r"the board of 3\.1 is dropped"):
            act()


def test_what_is_kept_is_bounded(board: Board, answered: Answered, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BoardError, match="no room for the 1048577 bytes of k"):
        board.put("k", bytes(MAX_VALUE_BYTES + 1))
    with pytest.raises(BoardError, match="asked for 4 values, and there are 3 members"):
        board.collect(Question("k/", 4), "a", answered("a"))
    for each in range(3 * 64):
        board.put(f"key {each}", b"")
    with pytest.raises(BoardError, match="no room"):
        board.put("one more", b"")
    for each in range(128):
        board.collect(Question(f"never {each}", 0), "a", answered("a"))
    with pytest.raises(BoardError, match="too many questions"):
        board.collect(Question("never", 0), "a", answered("a"))
    for each in range(192):
        board.collect(Question(f"key {each}", 0), "a", answered("a"))
    assert len(board) <= 192 + 128 + 64
    monkeypatch.setattr(board_module, "MAX_BOARD_BYTES", 10)
    other = Board(NUMBER, ["u0"])
    other.put("a", bytes(10))
    with pytest.raises(BoardError, match="no room"):
        other.put("b", b"1")


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2**20, 2**20, 2**20), (2**19, 2**19, 2**19), (0, 2**20, 0)])
def test_long_answers_come_in_several_messages(board: Board, sizes: tuple[int, ...]) -> None:
    answers: list[Answer] = []
    board.collect(ALL, "a", answers.append)
    for rank, size in enumerate(sizes):
        board.put(f"k/{rank}", bytes([rank]) * size)
    documents = answers[0].documents
    messages = [parse_message(document) for document in documents]
    values = [value for message in messages if isinstance(message, Values) for value in message.values]
    assert values == [bytes([rank]) * size for rank, size in enumerate(sizes)]
    assert len(documents) == max(1, -(-sum(sizes) // 2**20))
    assert max(map(len, documents)) < 2**21
