"""The messages that workers send one another about who trains together: what each holds, and what it means.

How they are written and read is said in `message_documents.py`, by the names of their fields' types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from heterotrain.groups.convening.protocol import Message as Convened
from heterotrain.groups.convening.roster import Number

Name: TypeAlias = str  # of a worker, or a UID
Word: TypeAlias = str  # for people; longer ones are cut off
Key: TypeAlias = str  # on a board
Whole: TypeAlias = int  # 0 or more
Seconds: TypeAlias = float  # on a clock of one of the two
MaybeSeconds: TypeAlias = float | None
Document: TypeAlias = str  # of JSON
Figure: TypeAlias = float  # also one that is not finite
Wholes: TypeAlias = tuple[int, ...]  # each 0 or more
Blob: TypeAlias = bytes
Blobs: TypeAlias = tuple[bytes | None, ...]


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message on a connection, from both sides: who speaks, for which job, and a nonce as hexadecimal digits.

    `protocol` grows when a message changes its meaning.
    """

    job: Name
    name: Name
    uid: Name
    nonce: Name
    protocol: Whole = 1


@dataclass(frozen=True, slots=True)
class Frame:
    """A message of `convening`, with its two times; `convening/protocol.py` says what they are."""

    sent: Seconds
    echo: MaybeSeconds
    message: Convened


@dataclass(frozen=True, slots=True)
class Joins:
    """The sender is a member of the plan of this generation, trains in no groups, and waits for `Prepare`."""

    generation: Whole


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make groups of the plan of this generation, under this number, beside the training of those that train.

    `announcer` is the UID of the one who announces when to go over to them.
    """

    generation: Whole
    number: Number
    announcer: Name


@dataclass(frozen=True, slots=True)
class Begins:
    """The answer to `Joins` of a first member that does not train either: nobody does, and the plan of this generation
    begins the job."""

    generation: Whole


@dataclass(frozen=True, slots=True)
class Left:
    """The worker with this UID, which may be the sender, leaves the job before its end, and why."""

    uid: Name
    why: Word


@dataclass(frozen=True, slots=True)
class Over:
    """The job is done, so the receiver, which waits to join, is not needed."""


@dataclass(frozen=True, slots=True)
class Vouches:
    """The sender's worker runs, although it cannot say so itself; see `vouching.py`."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """Nobody is to use the groups of this number."""

    number: Number
    why: Word


@dataclass(frozen=True, slots=True)
class Put:
    """Write a value on the board of this number."""

    number: Number
    key: Key
    value: Blob


@dataclass(frozen=True, slots=True)
class Collect:
    """Send the values of `prefix` followed by 0 to `count` - 1, or of `prefix` alone with a count of 0: once all of
    them are there, or `now`."""

    number: Number
    prefix: Key
    count: Whole = 0
    now: bool = False


@dataclass(frozen=True, slots=True)
class Values:
    """A part of the answer to the `Collect` with the same fields: the values from the place `first` on; None for one
    that is not there yet."""

    number: Number
    prefix: Key
    count: Whole
    now: bool
    first: Whole
    values: Blobs


@dataclass(frozen=True, slots=True)
class Enter:
    """A worker of an asynchronous job asks its parameter server for its first `Grant`, or for parameters again.
    `traits` is what its script has made, which must be as at the server, as a JSON object."""

    traits: Document


@dataclass(frozen=True, slots=True)
class Update:
    """A worker's gradient, or with `training.push` Model its model, in the bytes that follow: of the `lease` given in
    this `incarnation` of the server, computed on the parameters of a `version` within `seconds` of its own. `loss` is
    the mean over `weight` samples, or counts. `ends`: its script ends the job."""

    incarnation: Name
    lease: Whole
    version: Whole
    samples: Whole
    seconds: Seconds
    loss: Figure
    weight: Seconds
    ends: bool = False


@dataclass(frozen=True, slots=True)
class EndJob:
    """A worker's script has ended the job, and sends no `Update` any more; it waits for the last `Grant`."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a worker of an asynchronous job is to compute next, on the parameters in the bytes that follow; `whole`:
    also those that are not trained.

    `share` is epoch, start and stop of the samples; without any the job is over. `ahead` are those that probably come
    after them. `position` is the job's: updates, epoch, samples of it. `applied`: so was the worker's last update.
    `plan` is the newest plan where the worker has another one, `news` what the server knows of the training.
    """

    incarnation: Name
    lease: Whole
    share: Wholes
    ahead: Wholes
    position: Wholes
    whole: bool
    applied: bool
    plan: Document
    news: Document


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """The answer to a worker that gets no `Grant`, and why: it is to `Enter` again, or not."""

    why: Word
    again: bool


Message: TypeAlias = (
    Hello
    | Frame
    | Joins
    | Prepare
    | Begins
    | Left
    | Over
    | Vouches
    | Abandon
    | Put
    | Collect
    | Values
    | Enter
    | Update
    | EndJob
    | Grant
    | TurnedAway
)
