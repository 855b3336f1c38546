"""An asynchronous job in virtual time: real gradients at the stale versions that simulated workers compute on.

The parameter server's own rules (`heterotrain.asynchronous`) say who gets what, who waits and what is applied. What a
worker's batch takes is a law's, times noise; getting parameters and giving gradients take `link_seconds` each, and the
server takes `apply_seconds` for an update, one after another. One process computes all gradients, so a run repeats to
the last bit.
"""

from __future__ import annotations

import copy
import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import kinds
import numpy as np
import torch

from heterotrain.asynchronous.ledger import Ledger
from heterotrain.asynchronous.service import Accepted, Bound, Grant, Service, Update
from heterotrain.data.bijection import keyed_order
from heterotrain.data.sampler import Rules, Share
from heterotrain.training.rate_scaling import RateScaling, rates
from heterotrain.workloads.registry import Workload

GRADIENTS, MODEL = "Gradients", "Model"


@dataclass(frozen=True, slots=True)
class Link:
    """What an update takes beside the computation, in seconds."""

    link_seconds: float
    apply_seconds: float


class OwnSeconds:
    """Own seconds of each worker's batches: by its law in the epoch, times noise. `laws[epoch][rank]` are those."""

    def __init__(self, laws: Sequence[Sequence[kinds.Affine]], noise: kinds.AR1, seed: int) -> None:
        self._laws = laws
        self._rows = [noise.rows(1, np.random.default_rng((seed, rank))) for rank in range(len(laws[0]))]

    def __call__(self, rank: int, batch: int, epoch: int) -> float:
        """Of this worker's next batch."""
        law = self._laws[min(epoch, len(self._laws) - 1)][rank]
        return law.seconds(batch) * float(self._rows[rank](1)[0, 0])


@dataclass(slots=True)
class Worker:
    """One of them, by rank: its own copy of the model, which it trains itself where models are pushed."""

    copy: Workload
    seconds: float = 0.0  # own, of the batch under way
    smoothed: float | None = None  # of its own seconds since batches were adjusted


@dataclass(slots=True)
class Seen:
    """What a job came to: virtual seconds and accuracy after each epoch, updates by rank, staleness of each update, and
    the batches of each epoch."""

    epochs: list[tuple[float, float]] = field(default_factory=list)
    updates: list[int] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    batches: list[tuple[int, ...]] = field(default_factory=list)
    discarded: int = 0


Adjust = Callable[[Sequence[float | None], Sequence[int], int], Sequence[int]]
"""Smoothed own seconds and batches by rank, and the epoch that begins: the batches from there on."""


class AsynchronousJob:
    """`adjust` is asked for other batches whenever an epoch ends; `measure` gives the accuracy of a model."""

    def __init__(
        self,
        workload: Workload,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        *,
        seed: int,
        epochs: int,
        batches: Sequence[int],
        seconds: OwnSeconds,
        link: Link,
        adjust: Adjust,
        measure: Callable[[torch.nn.Module], float],
        bound: Bound,
        push: str,
        scaling: RateScaling,
    ) -> None:
        self._server = workload
        self._inputs, self._targets = inputs, targets
        self._seed = seed
        self._rules = Rules(len(inputs), epochs=epochs)
        self._service = Service(Ledger(self._rules), bound, "virtual")
        self._batches = list(batches)
        self._seconds, self._link, self._adjust, self._measure = seconds, link, adjust, measure
        self._push, self._scaling = push, scaling
        self._workers = [Worker(copy.deepcopy(workload)) for _ in batches]
        self._granted: dict[int, Grant] = {}
        self._events: list[tuple[float, int, int]] = []
        self._order = itertools.count()

    def run(self) -> Seen:
        """Train until all samples are applied."""
        service, seen = self._service, Seen(updates=[0] * len(self._workers), batches=[tuple(self._batches)])
        self._follow()
        for rank in range(len(self._workers)):
            service.enter(str(rank), 0.0)
        self._grant(0.0)
        busy_until, applied = 0.0, 0
        while self._events:
            arrived, _, rank = heapq.heappop(self._events)
            now = busy_until = max(arrived, busy_until) + self._link.apply_seconds
            grant = self._granted.pop(rank)
            assert grant.lease is not None
            verdict = service.judge(Update(str(rank), "virtual", grant.lease.number, grant.version), now)
            if isinstance(verdict, Accepted):
                self._apply(rank, grant.lease.share)
                service.applied(verdict, now)
                seen.updates[rank] += 1
                seen.staleness.append(verdict.staleness)
                applied += verdict.lease.samples
                if applied // self._rules.length > len(seen.epochs):
                    seen.epochs.append((now, self._measure(self._server.model)))
                    self._end_epoch(seen)
            else:
                seen.discarded += 1
            self._grant(now)
        return seen

    def _end_epoch(self, seen: Seen) -> None:
        smoothed = [worker.smoothed for worker in self._workers]
        batches = list(self._adjust(smoothed, self._batches, len(seen.epochs)))
        seen.batches.append(tuple(batches))
        if batches != self._batches:
            self._batches = batches
            self._follow()
            for worker in self._workers:
                worker.smoothed = None

    def _follow(self) -> None:
        self._service.follow({str(rank): batch for rank, batch in enumerate(self._batches)})

    def _grant(self, now: float) -> None:
        for grant in self._service.grants(now):
            if grant.lease is None:
                continue
            rank = int(grant.worker)
            worker = self._workers[rank]
            worker.copy.model.load_state_dict(self._server.model.state_dict())
            share = grant.lease.share
            worker.seconds = self._seconds(rank, grant.lease.samples, share.epoch)
            known = worker.smoothed
            worker.smoothed = worker.seconds if known is None else 0.8 * known + 0.2 * worker.seconds
            self._granted[rank] = grant
            done = now + worker.seconds + 2 * self._link.link_seconds
            heapq.heappush(self._events, (done, next(self._order), rank))

    def _apply(self, rank: int, share: Share) -> None:
        """Compute the gradient on what the worker got, and apply it to what the server has by now."""
        own, server = self._workers[rank].copy, self._server
        places = keyed_order(self._rules.length, self._seed, share.epoch, share.start, share.stop)
        own.optimizer.zero_grad()
        own.criterion(own.model(self._inputs[places]), self._targets[places]).backward()
        factor = self._scaling.factor(len(places))
        if self._push == MODEL:
            with rates(own.optimizer, factor):
                own.optimizer.step()
            server.model.load_state_dict(own.model.state_dict())
            return
        for ours, theirs in zip(server.model.parameters(), own.model.parameters(), strict=True):
            ours.grad = theirs.grad
        with rates(server.optimizer, factor):
            server.optimizer.step()
        part = len(places) / sum(self._batches)
        for ours, theirs in zip(server.model.buffers(), own.model.buffers(), strict=True):
            if ours.is_floating_point():
                ours.lerp_(theirs, part)


def synchronous(
    workload: Workload,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    *,
    seed: int,
    epochs: int,
    batches: Sequence[int],
    seconds: OwnSeconds,
    link: Link,
    measure: Callable[[torch.nn.Module], float],
) -> Seen:
    """The same job in steps that all take together, each as long as the slowest worker's."""
    whole, now, seen = sum(batches), 0.0, Seen(updates=[0] * len(batches), batches=[tuple(batches)])
    for epoch in range(epochs):
        for places in _steps(len(inputs), seed, epoch, whole):
            workload.optimizer.zero_grad()
            workload.criterion(workload.model(inputs[places]), targets[places]).backward()
            workload.optimizer.step()
            now += max(seconds(rank, batch, epoch) for rank, batch in enumerate(batches)) + 2 * link.link_seconds
            seen.updates = [each + 1 for each in seen.updates]
            seen.staleness.append(0)
        seen.epochs.append((now, measure(workload.model)))
    return seen


def _steps(length: int, seed: int, epoch: int, batch: int) -> Iterator[torch.Tensor]:
    for start in range(0, length, batch):
        yield keyed_order(length, seed, epoch, start, min(start + batch, length))
