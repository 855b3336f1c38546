"""The plan: who trains, and with how many samples each. It travels as one JSON document.

A plan may be written by anybody who can write the ConfigMap, or by another version of the operator, so it is read with
bounds and refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from heterotrain.foreign import MAX_WHOLE, is_text, parse_object, shown

PLAN_SCHEMA = 1
"""Schema of the plan document that this version writes, and the newest that it reads."""

PLAN_FILE = "plan.json"
"""Key in the plan's ConfigMap, hence the file's name in its volume."""


class PlanError(ValueError):
    """A plan document that a worker must not follow; the text says why."""


@dataclass(frozen=True, slots=True)
class Member:
    """One worker in a plan.

    `batch_size` is in samples per step and may be 0; `address` is `host:port`. With a `micro_batch_size` the worker
    does its part of a step in micro-batches of at most so many samples, whose gradients it adds up; 0: all at once.
    """

    name: str
    uid: str
    address: str
    group: str
    batch_size: int
    micro_batch_size: int = 0


@dataclass(frozen=True, slots=True)
class Server:
    """The parameter server of an asynchronous job; `address` is `host:port`."""

    name: str
    uid: str
    address: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Who trains, and with how many samples each.

    `version` grows with every change, `generation` with every change of membership. Ranks are positions in
    `members`; the first member is the leader. With `continues`, which is an earlier generation, those members that
    train already go on, and the others join them; without it (0) all begin at the newest checkpoint.

    `apply_at` is the boundary at which members follow other batch sizes. Members themselves change at the next step
    for which the new groups are made, whatever it says: who leaves has no time until an epoch's end, who joins would
    stand idle in groups that may break meanwhile, and the sum of the gradients is the same for any split.

    With `holds` the members go over to it and take no step until another plan takes its place: they are fewer than the
    job wants to train with. A worker that knows nothing of it trains on.

    `evicted` are UIDs of workers that the operator has seen end, and without which the members go on by its word where
    they find no quorum of their own (`groups/convening`). One that knows nothing of it waits, as it did before.

    An asynchronous job has a `server`, which is none of the members.
    """

    version: int
    generation: int
    apply_at: str  # "step" | "epoch"
    members: tuple[Member, ...]
    continues: int = 0
    holds: bool = False
    evicted: tuple[str, ...] = ()
    server: Server | None = None

    @property
    def leader(self) -> str:
        """Name of the member that announces newer plans, and with which the others meet first."""
        return self.members[0].name

    @property
    def global_batch_size(self) -> int:
        """Samples per full step: the sum of the members' batch sizes."""
        return sum(member.batch_size for member in self.members)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Samples per step, by rank."""
        return tuple(member.batch_size for member in self.members)

    def names(self, uid: str) -> bool:
        """Whether a worker of this UID is a member."""
        return any(member.uid == uid for member in self.members)

    def rank_of(self, name: str, uid: str) -> int | None:
        """The rank of a worker; None if the plan does not hold it under this very identity."""
        for rank, member in enumerate(self.members):
            if member.name == name and member.uid == uid:
                return rank
        return None

    def to_json(self) -> str:
        """The document as it is stored in the ConfigMap."""
        return json.dumps(
            {
                "schema": PLAN_SCHEMA,
                "version": self.version,
                "generation": self.generation,
                **({"continues": self.continues} if self.continues else {}),
                **({"holds": True} if self.holds else {}),
                **({"evicted": list(self.evicted)} if self.evicted else {}),
                **({"server": asdict(self.server)} if self.server else {}),
                "applyAt": self.apply_at,
                "leader": self.leader,
                "globalBatchSize": self.global_batch_size,
                "members": [
                    {
                        "name": m.name,
                        "uid": m.uid,
                        "address": m.address,
                        "group": m.group,
                        "batchSize": m.batch_size,
                    }
                    | ({"microBatchSize": m.micro_batch_size} if m.micro_batch_size else {})
                    for m in self.members
                ],
            }
        )


MAX_PLAN_BYTES = 2**20
"""The most that a ConfigMap holds, and so the longest plan that is read."""

MAX_NAME_LENGTH = 253
"""The longest name of a Kubernetes object; UIDs, groups and addresses are shorter."""

MAX_EVICTED = 256
"""The most workers that a plan names as evicted."""


def _whole(document: Mapping[str, Any], key: str, where: str = "") -> int:
    value = document.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise PlanError(f"{where}{key}: expected int, found {shown(value)}")
    if value < 0:
        raise PlanError(f"{where}{key}: {shown(value)} is negative")
    if value > MAX_WHOLE:
        raise PlanError(f"{where}{key}: {shown(value)} is above {MAX_WHOLE}")
    return value


def _text(document: Mapping[str, Any], key: str, where: str = "") -> str:
    return _printable(document.get(key), f"{where}{key}")


def _printable(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise PlanError(f"{where}: expected str, found {shown(value)}")
    if not (is_text(value, MAX_NAME_LENGTH) and value.isprintable()):
        raise PlanError(f"{where}: expected at most {MAX_NAME_LENGTH} printable characters, found {shown(value)}")
    return value


def _evicted(document: Mapping[str, Any]) -> tuple[str, ...]:
    uids = document.get("evicted", [])
    if not isinstance(uids, list):
        raise PlanError(f"evicted: expected list, found {shown(uids)}")
    if len(uids) > MAX_EVICTED:
        raise PlanError(f"evicted: {len(uids)} workers are more than {MAX_EVICTED}")
    return tuple(_printable(uid, f"evicted[{index}]") for index, uid in enumerate(uids))


def _server(document: Mapping[str, Any]) -> Server | None:
    entry = document.get("server")
    if entry is None:
        return None
    if not isinstance(entry, dict):
        raise PlanError(f"server: expected an object, found {shown(entry)}")
    return Server(*(_text(entry, key, "server.") for key in ("name", "uid", "address")))


def parse_plan(text: str | bytes) -> Plan:
    """Read a plan document; fields that are not known here are passed over.

    Raises PlanError if it is malformed, longer than `MAX_PLAN_BYTES`, of a newer schema, has a repeated or no member,
    a number above 2**53, a member that is evicted or the server, or if its batches do not add up.
    """
    try:
        document = parse_object(text, MAX_PLAN_BYTES)
    except ValueError as error:
        raise PlanError(str(error)) from error
    schema = _whole(document, "schema")
    if schema > PLAN_SCHEMA:
        raise PlanError(f"schema: {schema} is newer than {PLAN_SCHEMA}, the newest that is understood here")
    apply_at = _text(document, "applyAt")
    if apply_at not in ("step", "epoch"):
        raise PlanError(f"applyAt: expected 'step' or 'epoch', found {shown(apply_at)}")
    entries = document.get("members")
    if not isinstance(entries, list):
        raise PlanError(f"members: expected list, found {shown(entries)}")
    if not entries:
        raise PlanError("members: a plan needs at least one member")
    members = []
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise PlanError(f"members[{index}]: expected an object, found {shown(entry)}")
        where = f"members[{index}]."
        members.append(
            Member(
                name=_text(entry, "name", where),
                uid=_text(entry, "uid", where),
                address=_text(entry, "address", where),
                group=_text(entry, "group", where),
                batch_size=_whole(entry, "batchSize", where),
                micro_batch_size=_whole(entry, "microBatchSize", where) if "microBatchSize" in entry else 0,
            )
        )
    continues = _whole(document, "continues") if "continues" in document else 0
    holds = document.get("holds", False)
    if not isinstance(holds, bool):
        raise PlanError(f"holds: expected bool, found {shown(holds)}")
    plan = Plan(
        _whole(document, "version"),
        _whole(document, "generation"),
        apply_at,
        tuple(members),
        continues,
        holds,
        _evicted(document),
        _server(document),
    )
    if continues and continues >= plan.generation:
        raise PlanError(f"continues: {continues} is not before the generation, {plan.generation}")
    if len({member.name for member in members}) != len(members):
        raise PlanError("members: a name occurs twice")
    evicted = next((member for member in members if member.uid in plan.evicted), None)
    if evicted is not None:
        raise PlanError(f"evicted: {shown(evicted.uid)} is a member")
    if plan.server is not None and any(plan.server.uid == member.uid for member in members):
        raise PlanError(f"server: {shown(plan.server.name)} is a member")
    leader = _text(document, "leader")
    if leader != plan.leader:
        raise PlanError(f"leader: {shown(leader)} is not the first member, {shown(plan.leader)}")
    total = _whole(document, "globalBatchSize")
    if total != plan.global_batch_size:
        raise PlanError(f"globalBatchSize: {total}, but the members' batches add up to {plan.global_batch_size}")
    if total < 1:
        raise PlanError("globalBatchSize: must be at least 1")
    return plan
