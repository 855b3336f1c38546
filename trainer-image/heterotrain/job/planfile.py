"""Watch the plan's volume; a plan that must not be followed is reported and otherwise changes nothing.

The kubelet (and the local backend) replaces the whole folder atomically, so looking at one path is enough; a changed
file identity is the only sign that is needed, and costs one stat per look. Whether a document may be followed depends
on the plan that is active, so what was read is judged again at each look.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from heterotrain.contract import MAX_PLAN_BYTES, PLAN_FILE, Plan, PlanError, parse_plan

log = logging.getLogger(__name__)


class PlanFile:
    """The newest acceptable plan in a folder."""

    def __init__(self, folder: Path, on_reject: Callable[[], None] = lambda: None) -> None:
        """`on_reject` is called once for each document that is refused."""
        self._path = folder / PLAN_FILE
        self._on_reject = on_reject
        self._seen: tuple[int, int, int] | None = None  # the file that was read last
        self._unreadable = False
        self._document: bytes | None = None
        self._plan: Plan | None = None  # what that document says, if it is a plan
        self._accepted: Plan | None = None  # the newest that could be followed when it was judged
        self._is_refused = False  # the document was counted

    def newest(self, than: Plan | None = None) -> Plan | None:
        """The newest plan that may be followed after `than`, or None.

        Malformed documents, older versions, and plans that cannot come after `than` (see `check_successor`) are
        refused: the log says why, once per document. They take no plan away that was acceptable before. One that
        cannot come after `than` may come after another plan.
        """
        self._read_if_new()
        plan = self._plan
        if plan is not None and plan != self._accepted:
            try:
                self._accept(plan, than)
            except PlanError as error:
                self._refuse(str(error))
        accepted = self._accepted
        if accepted is None or than is None:
            return accepted
        return accepted if accepted.version > than.version and _may_follow(than, accepted) else None

    def _accept(self, plan: Plan, than: Plan | None) -> None:
        if than is not None:
            check_successor(than, plan)
            if self._accepted is not None and plan.version < self._accepted.version:
                return  # a volume that went back
        self._accepted = plan

    def refuse(self, version: int) -> None:
        """The plan of this version turned out to be impossible, whatever the document says. The caller logs why."""
        self._on_reject()
        if self._accepted is not None and self._accepted.version == version:
            self._accepted = None
        if self._plan is not None and self._plan.version == version:
            self._plan = None

    def _read_if_new(self) -> None:
        try:
            if _identity(self._path.stat()) == self._seen:
                return
        except OSError:
            return  # not mounted yet, or deleted: the active plan stays
        try:
            with self._path.open("rb") as file:
                identity, document = _identity(os.fstat(file.fileno())), file.read(MAX_PLAN_BYTES + 1)
        except OSError as error:
            if not self._unreadable:
                log.warning("the plan cannot be read now, the active one stays: %s", error)
            self._unreadable = True
            return  # and is tried again at the next look
        self._seen, self._unreadable = identity, False
        if document == self._document:
            return  # another key of the ConfigMap has changed
        self._document, self._plan, self._is_refused = document, None, False
        try:
            self._plan = parse_plan(document)
        except PlanError as error:
            self._refuse(str(error))

    def _refuse(self, why: str) -> None:
        if self._is_refused:
            return
        self._is_refused = True
        log.warning("plan refused, the active one stays: %s", why)
        self._on_reject()


def _identity(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns


def _may_follow(current: Plan, plan: Plan) -> bool:
    try:
        check_successor(current, plan)
    except PlanError:
        return False
    return True


def check_successor(current: Plan, plan: Plan) -> None:
    """Raises PlanError if `plan` must not replace `current`; equal versions pass.

    A plan of the same generation has the same members. One of a newer generation must continue the training of the
    present members, or of those before them, and be led by one of the present members.
    """
    if plan.version < current.version:
        raise PlanError(f"version: {plan.version} is older than {current.version}, the active one")
    if plan.version == current.version and plan != current:
        raise PlanError(f"version: {plan.version} is active already with other batch sizes")
    if plan.generation > current.generation and 0 < plan.continues <= current.generation:
        first = plan.members[0]
        if (first.name, first.uid, first.address) not in {(m.name, m.uid, m.address) for m in current.members}:
            raise PlanError(f"members[0]: {first.name} cannot lead, for it does not train yet")
        return
    identities = [(m.name, m.uid) for m in plan.members]
    if plan.generation != current.generation or identities != [(m.name, m.uid) for m in current.members]:
        raise PlanError(
            f"generation: {plan.generation} has other members than generation {current.generation}, and does not "
            "continue it; such a change takes new workers"
        )
