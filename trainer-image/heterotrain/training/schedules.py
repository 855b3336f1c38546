"""Learning-rate schedules that the script registers: stepped by the session, on every worker alike.

A worker whose part of a step is empty does not run the script's loop, so a schedule that is stepped there would fall
behind on it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.optim import lr_scheduler

Every = Literal["step", "epoch"]

ABOUT = 0.25
"""Part by which a schedule may differ from a length that is only known about."""


@dataclass(frozen=True, slots=True)
class _Schedule:
    name: str
    schedule: Any
    every: Every


class Schedules:
    """The schedules of one job, in the order in which they were registered."""

    def __init__(self) -> None:
        self._all: list[_Schedule] = []

    def add(self, name: str, candidate: Any, every: Every) -> None:
        """Take an object that is a schedule, that is, has a `step()`.

        Raises TypeError for what has a `step()` that the session cannot call: a ReduceLROnPlateau, an optimizer.
        ValueError for a schedule of timm's that counts otherwise than `every` says, and so would never move.
        """
        if not callable(getattr(candidate, "step", None)):
            return
        inner = getattr(candidate, "lr_scheduler", None)  # timm's is made of torch's
        if isinstance(candidate, lr_scheduler.ReduceLROnPlateau) or isinstance(inner, lr_scheduler.ReduceLROnPlateau):
            raise TypeError(
                f"{name}: ReduceLROnPlateau needs a metric, so a session cannot step it; set the learning rate by hand "
                "from session.metrics instead"
            )
        if isinstance(candidate, torch.optim.Optimizer):
            raise TypeError(
                f"{name}: an optimizer that is registered would never be stepped; a session trains with the one given "
                "to prepare(), which may have several parameter groups"
            )
        if not hasattr(candidate, "step_update") and _needs_arguments(candidate.step):
            raise TypeError(
                f"{name}: its step() asks for arguments, so a session cannot step it; wrap it in an object whose "
                "step() takes none"
            )
        in_epochs = getattr(candidate, "t_in_epochs", None) if hasattr(candidate, "step_update") else None
        if in_epochs is not None and (every == "epoch") != bool(in_epochs):
            wanted = "epoch" if in_epochs else "step"
            raise ValueError(
                f"{name}: this schedule counts {wanted}s (t_in_epochs={in_epochs}), so it would never move; register "
                f"it with every={wanted!r}"
            )
        self._all.append(_Schedule(name, candidate, every))

    @property
    def every(self) -> dict[str, Every]:
        """How often each of them is stepped, by name."""
        return {each.name: each.every for each in self._all}

    def step(self, step: int, epoch: int, *, epochs: int) -> None:
        """A step is committed, the `step`th; it ended `epochs` epochs, and number `epoch` is next."""
        for each in self._all:
            if hasattr(each.schedule, "step_update"):  # timm's: one method for each of both
                if each.every == "step":
                    each.schedule.step_update(step)
                elif epochs:
                    each.schedule.step(epoch)
            else:
                for _ in range(1 if each.every == "step" else epochs):
                    _step(each.schedule)

    def remarks(self, steps: int, epochs: int | None, *, of_updates: bool = False) -> Iterator[str]:
        """Schedules of another length than the job's, in words; `steps` is 0 if that is not known yet. Steps that are
        updates `of_updates` of workers are known about, unless the job has no epochs.

        Raises ValueError for one that would end before the job and then raise in the middle of it, or leave the rest
        with its last rates.
        """
        about = of_updates and epochs is not None
        for each in self._all:
            length = epochs if each.every == "epoch" else steps
            found = _length(each.schedule)
            guessed = about and each.every == "step"
            if not length or found is None or abs(found - length) <= (ABOUT * length if guessed else 0):
                continue
            text = (
                f"registered schedule {each.name!r} ({type(each.schedule).__name__}) is made for {found} calls, the "
                f"job has {'about ' if guessed else ''}{length} {each.every}s"
            )
            if of_updates and each.every == "step":
                text += ", for each worker's batch is an update; make it for those, and set training.steps"
            else:
                text += "; session.total_steps is the number of steps"
            if isinstance(each.schedule, lr_scheduler.OneCycleLR) and found < length:
                raise ValueError(text)
            yield text


@contextlib.contextmanager
def watching_plateaus(optimizer: torch.optim.Optimizer, in_loop: Callable[[], bool]) -> Iterator[None]:
    """Inside, a ReduceLROnPlateau of this optimizer raises RuntimeError when the script steps it in the loop over the
    batches.

    Each worker sees losses of its own, and would lower its rate at another step, which may be long after the start.
    Such a schedule holds its optimizer, but no optimizer knows its schedules: so it is noticed where it is stepped.
    """
    plain = lr_scheduler.ReduceLROnPlateau.step

    @functools.wraps(plain)
    def step(self: lr_scheduler.ReduceLROnPlateau, *given: Any, **named: Any) -> None:
        held = getattr(self.optimizer, "_inner", self.optimizer)
        if held is optimizer and in_loop():
            raise RuntimeError(
                "ReduceLROnPlateau was stepped in the loop over the batches, which each worker goes through with "
                "losses of its own, and not at all where it has no samples; set the learning rate by hand from "
                "session.metrics instead, which are the same on all workers"
            )
        plain(self, *given, **named)

    lr_scheduler.ReduceLROnPlateau.step = step  # type: ignore[method-assign]
    try:
        yield
    finally:
        lr_scheduler.ReduceLROnPlateau.step = plain  # type: ignore[method-assign]


def _step(schedule: Any) -> None:
    # It raises beyond its end, which only a job without one comes to.
    if not (isinstance(schedule, lr_scheduler.OneCycleLR) and schedule.last_epoch >= schedule.total_steps):
        optimizer = getattr(schedule, "optimizer", None)
        if optimizer is not None:
            # A step is committed also where the script has called no `optimizer.step()` yet, which torch would warn of.
            optimizer._opt_called = True
        schedule.step()


def _length(schedule: Any) -> int | None:
    """For how many calls a schedule is made; None if that is not known, or without meaning."""
    if isinstance(schedule, lr_scheduler.OneCycleLR):
        return int(schedule.total_steps)
    if isinstance(schedule, lr_scheduler.CosineAnnealingLR):
        return int(schedule.T_max)
    if isinstance(schedule, lr_scheduler.PolynomialLR):
        return int(schedule.total_iters)
    if isinstance(schedule, lr_scheduler.SequentialLR):
        last = _length(schedule._schedulers[-1])
        return None if last is None else int(schedule._milestones[-1]) + last
    if isinstance(schedule, lr_scheduler.LambdaLR):  # transformers' are of partial functions
        given = getattr(schedule.lr_lambdas[0], "keywords", {})
        return _whole(given.get("num_training_steps"))
    if not hasattr(schedule, "step_update"):
        return None
    if not getattr(schedule, "cycle_limit", 1):
        return None  # timm's has cycle after cycle
    cycles = getattr(schedule, "get_cycle_length", None)
    return _whole(cycles() if callable(cycles) else getattr(schedule, "t_initial", None))


def _whole(number: Any) -> int | None:
    return number if isinstance(number, int) else None


def _needs_arguments(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(each.default is each.empty and each.kind in (*positional, each.KEYWORD_ONLY) for each in parameters)
