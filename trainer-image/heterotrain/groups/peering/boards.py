"""A worker's boards: those that it keeps for others as the convener, and its own stores on the boards of others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from functools import partial

from heterotrain.groups.convening.roster import Number
from heterotrain.groups.peering.board import Answer, Board, BoardError, Question
from heterotrain.groups.peering.board_store import BoardStore
from heterotrain.groups.peering.channel import Channel
from heterotrain.groups.peering.messages import Abandon, Collect, Message, Put, Values
from heterotrain.groups.peering.server import PeerServer


class Boards:
    """Joins boards and stores to the peer server. Safe from any thread."""

    def __init__(self, server: PeerServer) -> None:
        """Before the server is started."""
        self._lock = threading.Lock()
        self._boards: dict[Number, Board] = {}
        self._stores: dict[BoardStore, Channel | None] = {}
        server.handle(Put, self._put)
        server.handle(Collect, self._collect)
        server.handle(Values, self._learn)
        server.handle(Abandon, self._abandon)
        server.on_ended(self._lose)

    def __len__(self) -> int:
        """How many boards and stores are open."""
        return len(self._boards) + len(self._stores)

    def open(self, number: Number, members: Collection[str]) -> Board:
        """As the convener, keep a board for the members with these UIDs; before any of them learns the number. Raises
        ValueError if there is one of this number."""
        board = Board(number, members)
        with self._lock:
            if number in self._boards:
                raise ValueError(f"there is a board of {number} already")
            self._boards[number] = board
        return board

    def drop(self, number: Number, why: str) -> None:
        """As the convener, keep the board no longer: all have made their groups, or these are abandoned. Whoever waits
        for a value learns that they are. Harmless if there is none."""
        with self._lock:
            board = self._boards.pop(number, None)
            own = [store for store, convener in self._stores.items() if convener is None and store.number == number]
        if board is None:
            return
        for asker in board.drop():
            if isinstance(asker, Channel):
                asker.send(Abandon(number, why))
        for store in own:
            self.close(store, why)

    def forget(self, number: Number) -> None:
        """All members have made the groups of this number: let go of the values. What is asked of them fails from now
        on, and the stores stay, for who made groups over them holds them. Harmless if there are none."""
        with self._lock:
            board = self._boards.pop(number, None)
            stores = [store for store in self._stores if store.number == number]
        if board is not None:
            board.drop()
        for store in stores:
            store.forget()

    def store(self, number: Number, world_size: int, convener: Channel | None, seconds: float) -> BoardStore:
        """What to make groups over: on the board of the convener at the other end of this channel, or, with None, on
        the one that this worker keeps. No wait is longer than `seconds`. `close` it when the groups are released, or to
        have their making fail. Raises ValueError if this worker keeps no such board."""
        if convener is None:
            board = self._boards.get(number)
            if board is None:
                raise ValueError(f"this worker keeps no board of {number}")
            put, ask = board.put, partial(self._ask_here, board)
        else:
            put, ask = partial(_put_there, convener, number), partial(_ask_there, convener, number)
        store = BoardStore(number, world_size, put=put, ask=lambda question: ask(store, question), seconds=seconds)
        with self._lock:
            self._stores[store] = convener
        return store

    def close(self, store: BoardStore, why: str) -> None:
        """Let all waits of a store fail at once, and hold it no longer."""
        with self._lock:
            self._stores.pop(store, None)
        store.close(why)

    # --- messages, in the server's thread -----------------------------------------------------------------------

    def _put(self, channel: Channel, message: Put) -> None:
        self._with_board(channel, message.number, lambda board: board.put(message.key, message.value))

    def _collect(self, channel: Channel, message: Collect) -> None:
        question = Question(message.prefix, message.count, message.now)

        def answer(found: Answer) -> None:
            for document in found.documents:
                channel.send_document(document)

        self._with_board(channel, message.number, lambda board: board.collect(question, channel, answer))

    def _with_board(self, channel: Channel, number: Number, act: Callable[[Board], None]) -> None:
        board = self._boards.get(number)
        try:
            if board is None:
                raise BoardError(f"there is no board of {number} here")
            if channel.peer.uid not in board.members:
                raise BoardError(f"{channel.name} is no member of {number}")
            act(board)
        except BoardError as error:
            channel.send(Abandon(number, str(error)))

    def _learn(self, channel: Channel, message: Values) -> None:
        for store in self._stores_at(channel, message.number):
            store.learn(Question(message.prefix, message.count, message.now), message.first, message.values)

    def _abandon(self, channel: Channel, message: Abandon) -> None:
        for store in self._stores_at(channel, message.number):
            self.close(store, f"{channel.name} has abandoned them: {message.why}")

    def _lose(self, channel: Channel) -> None:
        for store in self._stores_at(channel, None):
            self.close(store, channel.why)

    def _stores_at(self, channel: Channel, number: Number | None) -> list[BoardStore]:
        with self._lock:
            return [
                store
                for store, convener in self._stores.items()
                if convener is channel and number in (None, store.number)
            ]

    def _ask_here(self, board: Board, store: BoardStore, question: Question) -> None:
        board.collect(question, store, lambda answer: store.learn(question, 0, answer.values))


def _put_there(convener: Channel, number: Number, key: str, value: bytes) -> None:
    _send(convener, Put(number, key, value))


def _ask_there(convener: Channel, number: Number, _: BoardStore, question: Question) -> None:
    _send(convener, Collect(number, question.prefix, question.count, question.now))


def _send(convener: Channel, message: Message) -> None:
    if not convener.send(message):
        raise BoardError(convener.why or f"the connection with {convener.name} is being closed")
