"""Compares the workers' replicas with every exchange; a difference stops the job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from torch import nn

from heterotrain.contract import Member
from heterotrain.groups.control import Checksums
from heterotrain.state.hyperparameters import Hyperparameters
from heterotrain.state.replica_check import Difference, ReplicaChecksum, ReplicaError, difference
from heterotrain.state.training_state import TrainingState

log = logging.getLogger(__name__)


MOST_STEPS = 16
"""The most steps from one exchange to the next, where steps are fast."""

STEPS_BETWEEN = 64
"""Steps from one checksum of the replica to the next, where steps are fast."""

FIRST_WINDOWS = 4
"""Windows in each checksum until all numbers were compared once since the members met, so that it is known soon whether
a newcomer has taken over the right ones."""

_NAMED = 5

_HYPERPARAMETERS = "hyperparameters"
_REPLICA = "parameters or optimizer state"
_REGISTERED = "parameters of registered modules"

_HINTS = {
    _HYPERPARAMETERS: "what the script sets by hand must depend on session.step alone, schedules are registered with "
    "session.register() and not stepped by the script, and samplers must not depend on what a worker has seen",
    _REPLICA: "a script that changes parameters or their gradients by itself, in its loop or with random numbers, does "
    "so on workers with samples only: session.after_step() runs on all",
    _REGISTERED: "a script that updates a moving average, or another module that follows the model, in its loop does "
    "so on workers with samples only, and once for each pass: session.after_step() runs on all, once a step",
}


class ReplicaWatch:
    """One worker's side of the comparison; all workers draw the same conclusion at the same step."""

    def __init__(self, hyperparameters: Hyperparameters, checksum: ReplicaChecksum, state: TrainingState) -> None:
        self.exact = True  # all workers are machines of one kind
        self._hyperparameters = hyperparameters
        self._checksum = checksum
        self._state = state
        self._number = 0
        self._looked_at = 0  # the step at whose beginning the exchange under way began
        self._equal_at: int | None = None
        self._looks_at_registered = False  # in the comparison under way
        self._registered_equal_at: int | None = None

    def checksums(self, steps_between: int) -> Checksums:
        """The checksums of this worker at the beginning of a step; exchanges are `steps_between` steps apart. Where
        exchanges follow one another fast, most carry no checksum of the replica, which would cost too much."""
        step = self._state.position.step
        self._looks_at_registered = False
        due = self._number == 0 or steps_between < MOST_STEPS or step - self._looked_at >= STEPS_BETWEEN
        if not due:
            return Checksums(self._hyperparameters.checksum, 0.0)
        first = self._number
        count = max(1, min(FIRST_WINDOWS, self._checksum.windows - first))
        self._number += count
        self._looked_at = step
        return Checksums(self._hyperparameters.checksum, self._checksum.over(first, count, exact=self.exact))

    def whole(self) -> Checksums:
        """The checksums of this worker over all numbers, also of modules that are registered, for where the job ends
        and for what a checkpoint holds."""
        self._looked_at = self._state.position.step
        self._looks_at_registered = True
        modules = self._state.registered_modules.values()
        registered = self._checksum.of(modules).whole(exact=self.exact) if modules else 0.0
        return Checksums(self._hyperparameters.checksum, self._checksum.whole(exact=self.exact), registered)

    def compare(self, everybodys: Sequence[Checksums], members: Sequence[Member]) -> None:
        """Raises ReplicaError, naming who differs from the others."""
        found = (
            difference(_HYPERPARAMETERS, [each.hyperparameters for each in everybodys], exact=True)
            or difference(_REPLICA, [each.replica for each in everybodys], exact=self.exact)
            or difference(_REGISTERED, [each.registered for each in everybodys], exact=self.exact)
        )
        if found is not None:
            raise ReplicaError(self._explained(found, members))
        self._equal_at = self._looked_at
        if self._looks_at_registered:
            self._registered_equal_at = self._looked_at

    def restart(self) -> None:
        """All workers begin together, at the start and after a failure."""
        self._number = 0
        self._hyperparameters.restart()

    def _explained(self, found: Difference, members: Sequence[Member]) -> str:
        who = _enumerated([members[rank].name for rank in found.ranks])
        what, equal_at = found.what, self._equal_at
        if what == _REGISTERED:
            what, equal_at = f"{what} ({_enumerated(list(self._state.registered_modules))})", self._registered_equal_at
        since = "they have never been seen equal" if equal_at is None else f"they were equal at step {equal_at} still"
        saved = [step for step in self._state.saved_steps if equal_at is not None and step <= equal_at]
        where = f"checkpoint of step {max(saved)}" if saved else "none: start from the beginning"
        return (
            f"the workers' models have become different: {what} of {who} differ from the others' at step "
            f"{self._looked_at}; {since}; last checkpoint known to be equal: {where}; {_HINTS[found.what]}"
        )


def _enumerated(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


class LoopChanges:
    """Looks at a few parameters of each module, which stand for all."""

    def __init__(self, modules: Callable[[], Mapping[str, nn.Module]]) -> None:
        """`modules` are known once the loop begins."""
        self._modules = modules
        self._looked_at: list[tuple[str, nn.Parameter]] | None = None
        self._before: list[tuple[int, int]] | None = None  # None while the library runs

    @property
    def in_loop(self) -> bool:
        """Whether the script's loop runs."""
        return self._before is not None

    def begin(self) -> None:
        """From here on the script's loop runs."""
        if self._looked_at is None:
            self._looked_at = [(name, each) for name, module in self._modules().items() for each in _few_of(module)]
        self._before = [_version(each) for _, each in self._looked_at]

    def end(self) -> bool:
        """From here on the library runs, which calls the functions of `after_step`; whether the loop ran until here."""
        before, self._before = self._before, None
        if before is None or self._looked_at is None:
            return False
        for (name, parameter), version in zip(self._looked_at, before, strict=True):
            if _version(parameter) != version:
                self._looked_at = []
                log.warning(
                    "registered %r is changed in the loop over the batches. A worker without samples in a step does "
                    "not run the loop, one with several passes runs it several times, and a step that fails comes "
                    "again: so it becomes another on each worker, and then the job stops before its next checkpoint. "
                    "Change it in a function that is given to session.after_step()",
                    name,
                )
                break
        return True


def _few_of(module: nn.Module) -> list[nn.Parameter]:
    parameters = list(module.parameters())
    return list(dict.fromkeys(parameters[place] for place in (0, len(parameters) // 2, -1)))


def _version(parameter: nn.Parameter) -> tuple[int, int]:
    """Another one after each change, in place or by other numbers in its place."""
    return parameter._version, parameter.data_ptr()
