"""Finds out whether a script changes a registered module in its loop, such as a moving average of the weights.

The loop runs on workers that have samples in a step, and once for each pass that a worker needs. So what is changed
there becomes another on each worker, which stops the job at its next checkpoint (`replica_watch.py`). This warns at
once, also where all workers have samples, or where there is only one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from torch import nn

log = logging.getLogger(__name__)


class LoopChanges:
    """Looks at a few parameters of each module, which stand for all."""

    def __init__(self, modules: Callable[[], Mapping[str, nn.Module]]) -> None:
        """`modules` are known once the loop begins."""
        self._modules = modules
        self._looked_at: list[tuple[str, nn.Parameter]] | None = None
        self._before: list[tuple[int, int]] | None = None  # None while the library runs

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
