"""What `bsp.py` runs: the papers' workloads on four workers at their levels of heterogeneity, scaled to a machine.

OmniLearn, table I, gives four containers 48 cores together and shares them ever more unequally; here they get as many
as the machine can spare, in the same proportions, so what is lost by equal batches is the same fraction.

Beside the levels there are two settings that change while a job trains: `dynamic`, in which the levels follow each
other, and `interference`, in which limits stay equal and busy neighbours come and go beside one worker and another.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "train_workload.py"
EMULATED_SCRIPT = ROOT / "hack" / "bench" / "emulated_worker.py"

PAPER_CORES: Mapping[int, tuple[int, ...]] = {
    1: (12, 12, 12, 12),
    2: (12, 12, 8, 16),
    4: (9, 9, 6, 24),
    8: (6, 6, 4, 32),
}
"""Cores of the four workers by heterogeneity level. Source: OmniLearn, table I, rows BSP."""

DYNAMIC = "dynamic"
DYNAMIC_LEVELS = (1, 2, 4, 8, 1)
"""OmniLearn, section IV-F, goes "from HL1 through HL8, and back to HL1": probably 1, 2, 4, 8, 8, 4, 2, 1."""

INTERFERENCE = "interference"
INTERFERENCE_LEVEL = 1
"""Of the limits, which stay as they are."""

INTERFERENCE_SEED = 7
"""Draws the workers that get neighbours; the schedule that results is recorded with the figures."""

GREATEST_WORKER_CORES = 1.0
"""A worker computes in one thread, and more than one core would not make it faster."""

SPARED_SHARE = 0.25
"""Of the machine's cores, for the command itself and all else that runs."""

WORKERS = ("w1", "w2", "w3", "w4")
GLOBAL_BATCH = 128
"""Four times 32, as in OmniLearn, section IV-A."""

OWN_POLICY = "Optimal"
POLICIES = ("Uniform", "Static", "Proportional")
"""Compared with it. The oracle is no trial: its time is calculated from profiles."""

WARM_UP_STEPS = 20

TRIAL_FIGURES = (
    "policy",
    "round",
    "steps",
    "iteration_seconds",
    "adjustments",
    "restarts",
    "final_loss",
    "ceiling_seconds",
    "ceiling_fraction",
    "ceiling_fraction_all",
)
"""As `heterotrain run --json` has them."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A bundled model of a size that makes steps of some hundred milliseconds; batch bounds in samples."""

    model: str
    width: int | None
    least_batch: int
    greatest_batch: int
    samples: int = 16 * GLOBAL_BATCH
    emulated: bool = False


WORKLOADS: Mapping[str, Workload] = {
    each.model: each
    for each in (
        # Bounds of OmniLearn, section IV-F; those of its GPT-2 for what it does not have.
        Workload("resnet18", 8, 4, 96),
        Workload("resnet50", 4, 4, 96),
        Workload("alexnet", 48, 4, 96),
        Workload("vgg11", 16, 4, 96),
        Workload("gpt", 64, 1, 124),
        Workload("cnn", 96, 1, 124, 11 * GLOBAL_BATCH),
        Workload("linear", None, 1, 124),
        Workload("svm", None, 1, 124),
        Workload("emulated", None, 1, 124, emulated=True),
    )
}


@dataclass(frozen=True, slots=True)
class Phase:
    """What the workers have for a while: the limits of a level, and busy neighbours beside the workers named."""

    label: str
    level: int
    neighbours: tuple[str, ...] = ()


CHANGING: Mapping[str, int] = {DYNAMIC: len(DYNAMIC_LEVELS), INTERFERENCE: 5}
"""The settings in which something changes, with the number of their phases."""


def interference(seed: int) -> tuple[Phase, ...]:
    """A neighbour beside one worker, then beside another, then nobody, and beside the first one again."""
    first, second = random.Random(seed).sample(WORKERS, 2)
    quiet = Phase("quiet", INTERFERENCE_LEVEL)
    one, other = (Phase(f"busy beside {name}", INTERFERENCE_LEVEL, (name,)) for name in (first, second))
    return (quiet, one, other, quiet, one)


@dataclass(frozen=True, slots=True)
class Setting:
    """One benchmark: a workload at one level (or a changing setting), for `steps` steps under a total of `cores`."""

    workload: Workload
    level: str
    cores: float
    steps: int
    rounds: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.workload.model}-{self.level if self.is_changing else f'hl{self.level}'}"

    @property
    def is_changing(self) -> bool:
        """Whether limits or neighbours change during the run."""
        return self.level in CHANGING

    @property
    def compared(self) -> tuple[str, ...]:
        """The policies beside the own one; where something changes, `Static` would be Uniform: the first limits are
        equal.
        """
        return tuple(policy for policy in POLICIES if not (self.is_changing and policy == "Static"))

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What workers have, in order."""
        if self.level == INTERFERENCE:
            return interference(INTERFERENCE_SEED)
        levels = DYNAMIC_LEVELS if self.level == DYNAMIC else (int(self.level),)
        return tuple(Phase(f"HL{level}", level) for level in levels)


def spare_cores(machine_cores: int) -> float:
    """Cores that the four workers may have together, such that none has more than it can use at any level."""
    greatest_share = max(cores[-1] / sum(cores) for cores in PAPER_CORES.values())
    return min((1 - SPARED_SHARE) * machine_cores, GREATEST_WORKER_CORES / greatest_share)


def limits(level: int, cores: float) -> tuple[float, ...]:
    """Cores of each worker at a level when all have `cores` together."""
    shares = PAPER_CORES[level]
    return tuple(round(cores * share / sum(shares), 4) for share in shares)


def quantity(cores: float) -> str:
    """As a manifest has it, in thousandths of a core."""
    return f"{round(1000 * cores)}m"


def group(
    name: str, command: Sequence[str], bounds: tuple[int, int], threads: int = 1, cpu: str | None = None, **more: object
) -> dict[str, Any]:
    """A worker group whose script computes in so many threads; `bounds` of a batch, in samples."""
    variables = [{"name": "OMP_NUM_THREADS", "value": str(threads)}]
    container = {"name": "trainer", "image": "none", "command": list(command), "env": variables}
    if cpu is not None:
        container["resources"] = {"limits": {"cpu": cpu}}
    template = {"spec": {"containers": [container]}}
    return {"name": name, "batchSize": dict(zip(("min", "max"), bounds, strict=True)), "template": template, **more}


def job(name: str, groups: Sequence[dict[str, Any]], policy: str, global_batch: int, steps: int) -> dict[str, Any]:
    """The job of these groups; one that fails is not tried again."""
    return {
        "apiVersion": "heterotrain.dev/v1alpha1",
        "kind": "HeteroTrainingJob",
        "metadata": {"name": name},
        "spec": {
            "workerGroups": list(groups),
            "training": {"globalBatchSize": global_batch, "steps": steps, "seed": 7},
            "batching": {"policy": policy, "initial": "Uniform"},
            "stragglers": {"action": "Report"},
            "runPolicy": {"backoffLimit": 0},
        },
    }


def script(model: str, width: int | None, samples: int) -> list[str]:
    """The command that trains a bundled workload."""
    words = ["python", str(SCRIPT), "--model", model, "--samples", str(samples)]
    return words + ([] if width is None else ["--width", str(width)])


def manifest(setting: Setting) -> dict[str, Any]:
    """The job of a setting."""
    load = setting.workload
    # Every step is full: an epoch's smaller last step would be in no figure but take time.
    command = script(load.model, load.width, load.samples)
    if load.emulated:
        command = ["python", str(EMULATED_SCRIPT), "--samples", str(load.samples)]
    bounds = (load.least_batch, load.greatest_batch)
    cores = limits(setting.phases[0].level, setting.cores)
    groups = [
        group(name, command, bounds, 1, quantity(own), replicas=1) for name, own in zip(WORKERS, cores, strict=True)
    ]
    return job(setting.name, groups, OWN_POLICY, GLOBAL_BATCH, setting.steps)


def schedule(setting: Setting) -> dict[str, Any] | None:
    """The phases as changes at equal distances; None where nothing changes."""
    if not setting.is_changing:
        return None
    distance = setting.steps // len(setting.phases)
    changes = [
        {
            "atStep": index * distance,
            "label": phase.label,
            "cpuLimits": dict(zip(WORKERS, map(quantity, limits(phase.level, setting.cores)), strict=True)),
            "neighbours": {name: phase.neighbours.count(name) for name in WORKERS},
        }
        for index, phase in enumerate(setting.phases)
    ]
    return {"changes": changes}
