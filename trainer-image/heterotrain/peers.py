"""The messages in JSON that workers send one another, read with the mistrust that anything from a network deserves.

Gloo takes whatever reaches its ports, and other workers may run another version of this
library. Fields that are not known here are passed over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeGuard

from heterotrain.contract import MAX_PLAN_BYTES, Plan, parse_plan
from heterotrain.foreign import as_text, is_number, is_text, is_whole, parse_json, parse_object, shown

MAX_BYTES = 2 * MAX_PLAN_BYTES + 2**22
"""The longest message: two plans, and the losses and figures beside them."""

LONGEST_NAME = 1024
LONGEST_WORD = 1000
_MOST_PORTS = 64
EPOCH_FIGURES = 3  # the sum of losses, what it is divided by, and the mean of the epoch before


class PeerError(ValueError):
    """A message of another worker cannot be understood; the text says why."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the worker that has committed most knows: plans, recent losses with their weights, those of the epoch, the
    newest evaluation."""

    plan: Plan
    pending: Plan | None
    losses: tuple[tuple[float, float], ...]
    target_reached: bool
    evaluation: dict[str, Any]
    saved_step: int
    epoch_loss: tuple[float, ...]


def parse_facts(document: bytes) -> Facts:
    """Raises PeerError."""
    try:
        facts = parse_object(document, MAX_BYTES)
        losses, evaluation = facts.get("losses"), facts.get("evaluation")
        if not (_are_pairs(losses) and isinstance(evaluation, dict)):
            raise ValueError("losses, evaluation: expected pairs of numbers, and an object")
        step, values = evaluation.get("step"), evaluation.get("values")
        if not (is_whole(step, low=-1) and _are_figures(values)):
            raise ValueError("evaluation: expected a step and figures")
        if not is_whole(facts.get("saved_step")):
            raise ValueError(f"saved_step: expected a whole number, found {shown(facts.get('saved_step'))}")
        epoch_loss = facts.get("epoch_loss", [0.0, 0.0, math.nan])
        if not (isinstance(epoch_loss, list) and len(epoch_loss) == EPOCH_FIGURES and all(map(_is_figure, epoch_loss))):
            raise ValueError(f"epoch_loss: expected {EPOCH_FIGURES} figures, found {shown(epoch_loss)}")
        plan, pending = facts.get("plan"), facts.get("pending")
        if not (isinstance(plan, str) and isinstance(pending, str)):
            raise ValueError("plan, pending: expected text")
        return Facts(
            plan=parse_plan(plan),
            pending=parse_plan(pending) if pending else None,
            losses=tuple((loss, weight) for loss, weight in losses),
            target_reached=facts.get("target_reached") is True,
            evaluation={"step": step, "values": values, "target_reached": evaluation.get("target_reached") is True},
            saved_step=facts["saved_step"],
            epoch_loss=tuple(epoch_loss),
        )
    except ValueError as error:
        raise PeerError(f"the message of the worker that has committed most cannot be understood: {error}") from error


@dataclass(frozen=True, slots=True)
class News:
    """What a parameter server knows of the training: the newest losses, of an update and of an epoch, and the newest
    evaluation."""

    loss: float
    epoch_loss: float
    evaluation: dict[str, Any]


def parse_news(document: bytes) -> News:
    """Raises PeerError."""
    try:
        found = parse_object(document, MAX_BYTES)
        evaluation = found.get("evaluation")
        if not (isinstance(evaluation, dict) and is_whole(evaluation.get("step"), low=-1)):
            raise ValueError("evaluation: expected a step and figures")
        values = evaluation.get("values")
        loss, epoch_loss = found.get("loss"), found.get("epoch_loss")
        if not (isinstance(values, dict) and _are_figures(values) and _is_figure(loss) and _is_figure(epoch_loss)):
            raise ValueError("loss, epoch_loss, evaluation: expected figures")
        return News(float(loss), float(epoch_loss), {"step": evaluation["step"], "values": values})
    except ValueError as error:
        raise PeerError(f"what the parameter server knows of the training cannot be understood: {error}") from error


def parse_sums(document: bytes) -> tuple[int, dict[str, tuple[float, float]]]:
    """One worker's part of an evaluation: its samples, and sum and divisor of each metric. Raises PeerError."""
    try:
        part = parse_object(document, MAX_BYTES)
    except ValueError as error:
        raise PeerError(f"a worker's part of the evaluation cannot be understood: {error}") from error
    samples, sums = part.get("samples"), part.get("sums")
    if not (is_whole(samples) and isinstance(sums, dict) and _are_names(sums) and _are_pairs(list(sums.values()))):
        raise PeerError("a worker's part of the evaluation cannot be understood: expected samples and sums")
    return samples, {name: (total, divisor) for name, (total, divisor) in sums.items()}


def parse_traits(document: bytes) -> dict[str, str]:
    """What a worker's script has made, as text by trait. Raises PeerError."""
    try:
        found = parse_object(document, MAX_BYTES)
    except ValueError as error:
        raise PeerError(f"what a worker's script has made cannot be understood: {error}") from error
    return {
        name: as_text(value, LONGEST_WORD) if isinstance(value, str) else shown(value) for name, value in found.items()
    }


def parse_ports(data: bytes) -> list[int]:
    """At which ports a worker's groups listen; those of its first groups if there are more than any worker has. Raises
    PeerError."""
    try:
        found = parse_json(data, MAX_BYTES)
    except ValueError as error:
        raise PeerError(f"a worker's ports cannot be understood: {error}") from error
    if not (isinstance(found, list) and all(is_whole(each, low=1) for each in found)):
        raise PeerError(f"a worker's ports cannot be understood: {shown(found)}")
    return found[:_MOST_PORTS]


def parse_text(data: bytes, longest: int) -> str:
    """A short text. Raises PeerError."""
    try:
        return data[: longest + 1].decode("ascii")[:longest]
    except UnicodeDecodeError as error:
        raise PeerError(f"a worker's text cannot be understood: {error}") from error


def _is_figure(value: Any) -> TypeGuard[float]:
    """Whether it is a number, or any float: losses of a training that diverges exceed all bounds before they are
    NaN."""
    return isinstance(value, float) or is_number(value)


def _are_pairs(value: Any) -> TypeGuard[list[list[float]]]:
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(map(_is_figure, pair)) for pair in value
    )


def _are_figures(value: Any) -> TypeGuard[dict[str, float]]:
    return isinstance(value, dict) and _are_names(value) and all(map(_is_figure, value.values()))


def _are_names(value: dict[str, Any]) -> bool:
    return all(is_text(name, LONGEST_NAME) for name in value)
