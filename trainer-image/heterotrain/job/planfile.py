"""Watch the plan's volume; a plan that must not be followed is reported and otherwise changes nothing.

The kubelet (and the local backend) replaces the whole folder atomically, so looking at one path is enough; a changed
file identity is the only sign that is needed, and costs one stat per step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from heterotrain.contract import PLAN_FILE, Plan, PlanError, parse_plan

log = logging.getLogger(__name__)


class PlanFile:
    """The newest acceptable plan in a folder."""

    def __init__(self, folder: Path, on_reject: Callable[[], None] = lambda: None) -> None:
        """`on_reject` is called once for each document that is refused."""
        self._path = folder / PLAN_FILE
        self._on_reject = on_reject
        self._seen: tuple[int, int, int] | None = None
        self._newest: Plan | None = None

    def newest(self, than: Plan | None = None) -> Plan | None:
        """The newest plan that may be followed after `than`, or None.

        Malformed documents, older versions, and plans of another generation than that of `than` are refused: the log
        says why, once per document.
        """
        try:
            stat = self._path.stat()
        except OSError:
            return None  # not mounted yet, or deleted: the active plan stays
        identity = (stat.st_dev, stat.st_ino, stat.st_mtime_ns)
        if identity != self._seen:
            self._seen = identity
            self._newest = self._read(than)
        if self._newest is None or (than is not None and self._newest.version <= than.version):
            return None
        return self._newest

    def _read(self, than: Plan | None) -> Plan | None:
        try:
            plan = parse_plan(self._path.read_bytes())
            if than is not None:
                check_successor(than, plan)
        except (OSError, PlanError) as error:
            log.warning("plan refused, the active one stays: %s", error)
            self._on_reject()
            return None
        return plan


def check_successor(current: Plan, plan: Plan) -> None:
    """Raises PlanError if `plan` must not replace `current` among the same members; equal versions pass."""
    if plan.version < current.version:
        raise PlanError(f"version: {plan.version} is older than {current.version}, the active one")
    if plan.version == current.version and plan != current:
        raise PlanError(f"version: {plan.version} is active already with other batch sizes")
    identities = [(m.name, m.uid) for m in plan.members]
    if plan.generation != current.generation or identities != [(m.name, m.uid) for m in current.members]:
        raise PlanError(
            f"generation: {plan.generation} has other members than generation {current.generation}; a change of "
            "members takes new workers"
        )
