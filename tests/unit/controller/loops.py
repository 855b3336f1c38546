"""A controller of rounds that only say what they were asked, and how to wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts
from heterotrain_operator.clusters.kube.observe.watched import Key
from heterotrain_operator.controller.rounds import InThread, JobRounds
from heterotrain_operator.controller.supervisor import Controller


@dataclass
class Rounds:
    """One job's rounds: each is an entry of `looks`, and does what is next in `script`: raises, waits, or returns."""

    script: list[Exception | threading.Event | asyncio.Event | float] = field(default_factory=list)
    looks: list[tuple[str, list[str], set[str]]] = field(default_factory=list)
    forgotten: int = 0
    closed: bool = False
    ended: int = 0

    async def once(
        self, body: Mapping[str, Any], pods: Sequence[PodFacts], versions: Collection[str], in_thread: InThread
    ) -> float:
        self.looks.append((body["metadata"]["uid"], [pod.name for pod in pods], set(versions)))
        event = self.script.pop(0) if self.script else 1000.0
        if isinstance(event, Exception):
            raise event
        if isinstance(event, asyncio.Event):
            await event.wait()
        if isinstance(event, threading.Event):
            await in_thread(event.wait, 10, many=body["metadata"]["name"].startswith("many"))
            assert not self.closed, "closed under way"
            self.ended += 1
            return 1000.0
        return event

    def forget(self) -> None:
        self.forgotten += 1

    def close(self, namespace: str, name: str) -> None:
        self.closed = True


class World:
    """A controller of such rounds; `made` are they in the order of their jobs."""

    def __init__(self) -> None:
        self.leading = True
        self.pods: dict[Key, list[PodFacts]] = {}
        self.versions: dict[Key, set[str]] = {}
        self.failures: list[str] = []
        self.over: list[tuple[Key, str]] = []
        self.scripts: list[list[Any]] = []
        self.made: list[Rounds] = []
        self.controller = Controller(
            self._make,
            leading=lambda: self.leading,
            pods_of=lambda key: self.pods.get(key, []),
            plan_versions_of=lambda key: self.versions.get(key, set()),
            failed=self.failures.append,
            over=lambda key, uid: self.over.append((key, uid)),
        )

    def _make(self) -> JobRounds:
        self.made.append(Rounds(self.scripts.pop(0) if self.scripts else []))
        return cast(JobRounds, self.made[-1])

    def saw(self, key: Key, uid: str = "1", *, deleted: bool = False, **metadata: Any) -> None:
        namespace, name = key
        body = {"metadata": {"namespace": namespace, "name": name, "uid": uid, **metadata}}
        self.controller.saw(body, deleted=deleted)


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.001)


async def settled() -> None:
    """Whatever was about to happen has happened."""
    for _ in range(20):
        await asyncio.sleep(0.001)
