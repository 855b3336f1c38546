"""How far the members have followed the plan that names others than before (`lifecycle/following.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from heterotrain_operator.core.fields import MEASURED


@dataclass(frozen=True, slots=True)
class Following:
    """`changing`: nobody was seen yet who follows the members of the active plan, of which the last so many (`joining`)
    have not trained; `changed_at` is since when that is due, or was seen. `entering` are the keys of members that were
    to join, and have not said yet that they train, one after the other. `leaving` are the keys of workers that an
    earlier plan named and that still live, one after the other. Since `unfit_at` members that are not wanted any more
    stay, for the others cannot do without them. `ending`: the first member that was left has finished, so that the job
    is over once the others have ended.
    """

    changing: bool = False
    joining: int = 0
    entering: str = ""
    leaving: str = ""
    changed_at: Annotated[float | None, MEASURED] = None
    unfit_at: float | None = None
    ending: bool = False
