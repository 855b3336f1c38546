"""The port between deciding and a backend: a Kubernetes cluster, the processes of this machine, a simulation.

The contract that every backend meets is the docstring of `Cluster`. `tests/unit/clusters/` holds the suite that checks
it; a new backend is one more harness there.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from heterotrain_operator.core.model import Decision, Seen
from heterotrain_operator.core.state import Remembered

News_contra = TypeVar("News_contra", contravariant=True)


class PlanConflictError(Exception):
    """Somebody else wrote the plan or its memory after it was observed; observe again and decide again."""


class Cluster(Protocol[News_contra]):
    """One job on one backend. Observing and acting never decide anything.

    `News` is what the caller has to hand over for an observation, in a type of the backend's own: on Kubernetes what
    the watches show and what the workers export. A backend that finds out everything by itself takes None.

    1. The two methods are called in turn and never at the same time: `act` follows the observation it answers.
    2. A worker is known by its name and a UID. A worker that is created again under the same name has another UID, and
       a UID never comes back. One that runs has the address, host and port, at which its peers reach it, which stays
       the same until it ends; without one it never becomes a member.
    3. What was carried out is not carried out twice: to create a worker that exists, or to delete one that is gone or
       already being deleted, changes nothing. No two workers of one name exist at the same time: while a former one
       still goes away, a new one is left to a later decision.
    4. Plan and memory are one record. `act` replaces both under the precondition that nobody wrote either since
       `observe`. It does so before it creates or deletes anything, so a refused decision leaves no trace.
    5. The operator may end between any two calls. What another instance then observes is the record as it was written;
       a backend may leave out a write if the memory differs from the stored one in measurements alone
       (`Remembered.same_but_measurements`), which can be taken again.
    6. Foreign faults become part of what is seen (a worker that cannot be read has no metrics, one that was refused is
       in `refused`, a damaged plan counts as none). Faults of the backend itself are raised in errors of its own.
    """

    def observe(self, news: News_contra, /) -> tuple[Seen, Remembered | None]:
        """The job's workers, plan and metrics as they are now, and the memory stored beside the plan.

        A worker that ended stays in sight, with its exit code and last words, until it is deleted. The memory is None
        if nothing is stored that can be understood; `loop.py` then begins with `Remembered.initial()`. A backend that
        still holds the memory it wrote itself may return that instead.
        """
        ...

    def act(self, decision: Decision, memory: Remembered) -> None:
        """Store the memory, and the decision's plan if it has one, then carry out the rest of the decision.

        Without a plan the stored one stays. Whoever is to follow a new plan gets to see it, without `act` waiting for
        that. Raises PlanConflictError if plan or memory changed since they were observed; nothing was done then.
        """
        ...
