"""Workers that count what their steps spend of the CPU, and neighbours beside them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from unit.core.traces import World, hetero_job

NAME = "job-g1-0"


@dataclass(frozen=True)
class Disturbance:
    """By what factor one worker is slowed, and as what its seconds beyond the usual are counted."""

    factor: float = 1.0
    kind: str = ""


class MeteredWorld(World):
    """Workers count what their steps spend: one CPU, held back for a fifth of the time by a limit that binds."""

    def __init__(self, policy: str = "Uniform", *, noise: float = 0.0, seed: int = 0, **changes: object) -> None:
        job = hetero_job(policy, (1, 1, 1), **changes)
        super().__init__(job, fixed=0.02, per_sample=0.002, noise=noise, seed=seed)
        self.disturbances: dict[str, Disturbance] = {}
        self.exports = True
        self.start()

    def disturb(self, factor: float, kind: str = "", name: str = NAME) -> None:
        self.workers[name].scale = factor
        self.disturbances[name] = Disturbance(factor, kind)

    def train(self, steps: int) -> None:
        assert self.plan is not None
        before = {name: worker.metrics for name, worker in self.workers.items()}
        super().train(steps)
        for member in self.plan.members if self.exports else ():
            worker, old = self.workers[member.name], before[member.name]
            same = old.plan_version == self.plan.version
            own = worker.metrics.own_seconds - (old.own_seconds if same else 0.0)
            disturbance = self.disturbances.get(member.name, Disturbance())
            usual = own / disturbance.factor
            spent = {"cpu_seconds": 0.8 * usual, "cpu_throttled_seconds": 0.2 * usual, "cpu_wait_seconds": 0.01 * usual}
            if disturbance.kind:
                spent[disturbance.kind] += own - usual
            totals = {
                name: (getattr(old, name) or 0.0) * same + seconds
                for name, seconds in {**spent, "observed_seconds": 1.2 * own}.items()
            }
            totals["computing_threads"] = 1.0
            worker.metrics = replace(worker.metrics, **totals)  # type: ignore[arg-type]  # all are floats

    @property
    def cause(self) -> int:
        """What slowed the one that is disturbed, unless another one is named."""
        return self.memory.workers[1].resource_use.cause
