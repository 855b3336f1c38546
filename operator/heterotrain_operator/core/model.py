"""Facts, memory and decisions: the frozen values that the pure core passes around.

Everything the decisions need is in them, so a decision can be replayed from a recorded trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from heterotrain.contract import Evaluated, Plan
from heterotrain_operator.core.stragglers.verdict import Verdict

if TYPE_CHECKING:
    from dataclasses import dataclass as cheap_frozen_dataclass
else:

    def cheap_frozen_dataclass(*, frozen, slots):
        """A dataclass of values that are made by the ten thousand in every round; the type checker alone sees to it
        that they are frozen.

        A frozen one of many fields takes ten times as long to be made as one that is not, since each field is set by a
        call; observations of ten thousand workers are made of nothing else. It is compared and hashed as a frozen one.
        """
        return dataclass(slots=slots, unsafe_hash=frozen)


JobPhase = Literal["Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]
FINAL_PHASES: tuple[JobPhase, ...] = ("Succeeded", "Failed")
"""Those of a job that is over, for good."""

PodPhase = Literal["Pending", "Running", "Succeeded", "Failed"]


SERVER_GROUP = "server"
"""The group of the parameter server's pod, which is none of the job's groups."""

SHORT_GRACE_SECONDS = 5
"""The grace of a worker that answers nobody or hangs: a process that is stopped cannot use a longer one, and holds what
its successor may need. One that only seemed to hang still has the time to say its last words.
"""


class WorkerState(StrEnum):
    """Where a worker is in its life, in this order; `facts.state_of` says which by what is seen of it."""

    WANTED = "wanted"  # the job wants it, and it has no pod
    CREATED = "created"  # its pod is there, but the worker in it does not answer yet
    PREPARING = "preparing"  # it answers, but its script still loads and builds what it needs
    WARM = "warm"  # it can become a member at once
    MEMBER = "member"  # the active plan names it
    LEAVING = "leaving"  # it still runs, but its pod is being deleted, or the active plan names it no more
    GONE = "gone"  # its process is over, or the pod of a member is not there any more


@dataclass(frozen=True, slots=True)
class Group:
    """One worker group of a job. Batch bounds in samples per step, `cpu_limit` in cores, `flops` per second."""

    name: str
    replicas: int
    device: str = "cpu"
    batch_min: int = 1
    batch_max: int | None = None  # None: no bound but the global batch
    multiple_of: int = 1  # batches are multiples of it
    cpu_limit: float | None = None
    flops: float | None = None
    min_replicas: int | None = None  # with fewer members training holds; None: it goes on with whoever is left
    max_replicas: int | None = None  # workers that scaling may give it; None: no more than replicas
    price_per_hour: float | None = None  # of one worker


@dataclass(frozen=True, slots=True)
class Stragglers:
    """What is done about workers that are slow by fault, and how they are told.

    A worker counts as one below `threshold` of the speed expected of it; `smoothing` is the weight of the newest
    interval in the moving average of that. At most `max_replacements` are begun over the whole job, `cooldown_seconds`
    after one another. `action` is a key of `core.stragglers.verdict.ACTIONS`, `rule` one of
    `core.stragglers.watch.RULES`.
    """

    action: str = "Replace"
    threshold: float = 0.8
    smoothing: float = 0.1
    max_replacements: int = 3
    cooldown_seconds: float = 60.0
    rule: str = "ExpectedTime"


@dataclass(frozen=True, slots=True)
class Scaling:
    """When workers are added since they pay: `condition` is a key of `core.scaling.conditions.CONDITIONS`.

    Between two decisions are at least `every_batches` measured steps; then `step` workers are added or removed.
    `threshold` is of Throughput; of Utility `form` and `corners` say what it is worth to end so many seconds after the
    job's start.
    """

    condition: str = "None"
    every_batches: int = 10
    step: int = 4
    threshold: float = 0.1
    form: str = "Linear"  # Linear | Concave | Step
    corners: tuple[tuple[float, float], ...] = ()  # seconds, value


@dataclass(frozen=True, slots=True)
class Growth:
    """A global batch that grows with the workers (`batching/growth.py`), up to `most_batch` samples (None: without
    end). The job's own one is meant for the workers of `base`, by group; empty: nobody has trained yet.
    """

    own_batch: int
    most_batch: int | None = None
    base: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """What the user wants, resolved: defaults filled in, the global batch a number.

    `uid` distinguishes it from another one of its name, on a backend that knows it. An asynchronous one has a parameter
    `server`, the group of its one pod.
    """

    name: str
    groups: tuple[Group, ...]
    global_batch: int
    policy: str = "Optimal"
    initial: str = "Static"  # the first plan: Static, by CPU limits or flops where all are known, or Uniform
    interval: int = 10  # measured steps of the active plan before a decision
    apply_at: str = "step"
    fixed_global_batch: bool = True
    dead_band: float = 0.05
    smoothing: float = 0.2
    prediction: str = "EMA"  # how own times are predicted, a key of `PREDICTORS`
    dry_run: bool = False
    balance: str = "Compute"  # or Cycle: what batches even out includes what workers wait for in an update
    server: Group | None = None
    stragglers: Stragglers = Stragglers()
    scaling: Scaling = Scaling()
    growth: Growth | None = None  # of the global batch, which then is that of the present workers
    suspend: bool = False
    failure_policy: str = "RestartAll"  # how incidents are answered, a key of `FAILURE_POLICIES`
    backoff_limit: int = 3
    resumable: bool = False  # workers that start again go on from a checkpoint
    startup_deadline_seconds: float = 600.0
    active_deadline_seconds: float | None = None
    finish_deadline_seconds: float = 3600.0  # from the last step on, for what the script does after it
    heartbeat_timeout_seconds: float = 5.0
    progress_timeout_seconds: float = 60.0
    clean_pod_policy: str = "Running"  # All | Running | None: which pods go when the job ends
    ttl_seconds: float | None = None  # a finished job is removed after so long
    uid: str = ""

    @property
    def seed(self) -> str:
        """Of what is left to chance."""
        return self.uid or self.name


@cheap_frozen_dataclass(frozen=True, slots=True)
class PeerMetrics:
    """What a parameter server says of one worker, since the server began: how many of its updates were applied and how
    many `discarded`, how long it waited for slower ones, and how many updates of others an applied one was behind, in
    the mean (None: not known).
    """

    worker: str
    updates: float = 0.0
    discarded: float = 0.0
    waited_seconds: float = 0.0
    staleness: float | None = None


@cheap_frozen_dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """What one worker exports (names in `heterotrain.contract`); counters since `plan_version` began.

    Resource use is counted over `observed_seconds` of wall time, which begins with the first measured step of the
    version and includes waiting for others. In seconds: `cpu_seconds` is CPU time that the worker's processes used,
    `cpu_throttled_seconds` for how long its CPU limit held it back, summed over CPUs, `cpu_wait_seconds` for how long
    those of its threads that compute waited for a CPU that others used (in the mean, so never longer than observed),
    and `cpu_pressure_seconds` for how long at least one task waited so, of its container or else of the machine.
    `computing_threads` is how many threads compute side by side. None where the kernel has no figure, and all of them
    of a worker whose version exports none.
    """

    plan_version: int
    generation: int = 0
    batch_size: int = 0
    step: int = 0
    total_steps: int = 0
    epoch: int = 0
    phase: str = ""
    in_collective: bool = False
    steps: float = 0.0
    samples: float = 0.0
    own_seconds: float = 0.0
    own_seconds_squared: float = 0.0
    wait_seconds: float = 0.0
    own_seconds_ewma: float | None = None
    loss: float | None = None
    memory_bytes: float | None = None
    cpu_limit: float | None = None
    memory_peak_bytes: float | None = None  # of measured steps since the version began, at `memory_batch_size` samples
    memory_limit_bytes: float | None = None
    memory_batch_size: int = 0
    least_batch_size: int = 1  # with fewer samples its model trains badly
    protocol: int = 1  # 3: its group's members can change while they train
    rank: int | None = None  # in the plan that it follows
    members: int = 0  # workers with which it trains, itself among them; 0 if it does not say
    smaller_steps: tuple[tuple[int, float], ...] = ()  # samples and own seconds of steps that epochs' ends did not fill
    warm_up: tuple[tuple[int, float], ...] = ()  # batches and own seconds of its steps before it was a member
    resumed_step: int | None = None  # of an earlier job's checkpoint, which training went on from
    resumed_from: str = ""  # that job's UID, if it is known
    evaluated: Evaluated | None = None  # of the leader: what was measured last
    observed_seconds: float | None = None
    cpu_seconds: float | None = None
    cpu_throttled_seconds: float | None = None
    cpu_wait_seconds: float | None = None
    cpu_pressure_seconds: float | None = None
    computing_threads: float | None = None
    peers: tuple[PeerMetrics, ...] = ()  # of a parameter server: its workers


@cheap_frozen_dataclass(frozen=True, slots=True)
class WorkerSeen:
    """One pod (or process) as it is now.

    `metrics` is None if it could not be read this time. `cpu_limit` is its current limit in cores. `exit_code` is set
    once it ended; `finished`, `step` and `message` are its last words, and so are `script_error` (the script itself
    raised, after `step` committed steps), `fatal` (no other try may be made), `asked_to_stop` (it left in order,
    since it or another was sent SIGTERM), `left` (it left in order, since the job goes on without it) and `leader` (it
    led the job as it `finished`; None if that is not known). `disrupted`: somebody else shows that its end is not its
    fault (preemption, eviction, a lost node), so it does not count as a restart; its own words show nothing.
    `deleting_since`: it is being deleted, and its grace ends at that moment, in Unix seconds. `node` is where it runs,
    if that is known; `node_lost`: that node does not answer, so nothing the worker last said can be relied on. `gated`:
    it may not be placed yet, by somebody's decision. `lingering`: the worker has ended, but its pod has not, for a
    container beside it goes on. `evaluated`: last words, too. Its pod was `created_at` and the worker `ended_at`, in
    Unix seconds, where that is known.
    """

    name: str
    uid: str
    group: str
    index: int
    phase: PodPhase
    address: str = ""
    cpu_limit: float | None = None
    exit_code: int | None = None
    finished: bool = False
    step: int = 0
    message: str = ""
    disrupted: bool = False
    out_of_memory: bool = False
    script_error: bool = False
    fatal: bool = False
    asked_to_stop: bool = False
    left: bool = False
    leader: bool | None = None
    deleting_since: float | None = None
    node: str = ""
    node_lost: bool = False
    gated: bool = False
    lingering: bool = False
    metrics: WorkerMetrics | None = None
    evaluated: Evaluated | None = None
    created_at: float | None = None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """One observation of a job: its pods in any order, and the active plan (None before the first).

    `metrics_problem` says why nobody's metrics could be read, if that is the source's fault and not the workers';
    `metrics_note` whom a source that answers does not know.
    `refused` names pods that the backend would not create when last asked, and why. `departed` are members of the
    active plan that are not there any more, as they were seen last, where that is known.
    """

    workers: tuple[WorkerSeen, ...] = ()
    plan: Plan | None = None
    metrics_problem: str = ""
    metrics_note: str = ""
    refused: tuple[tuple[str, str], ...] = ()
    departed: tuple[WorkerSeen, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerKey:
    """A worker to create; its name derives from its identity."""

    group: str
    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth telling the user, with its reason in words and numbers."""

    kind: Literal["Normal", "Warning"]
    reason: str  # CamelCase, e.g. BatchRebalanced
    message: str


@dataclass(frozen=True, slots=True)
class Condition:
    """A Kubernetes-style condition; the backend adds the transition time. `status` None: it is not known."""

    type: str  # Created | Running | Suspended | Succeeded | Failed | Balanced | Degraded | StragglersDetected
    status: bool | None
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class SizePoint:
    """What was measured at one size: `workers` by group, samples per second, and seconds of a step."""

    workers: tuple[tuple[str, int], ...]
    throughput: float
    step_seconds: float

    @property
    def words(self) -> str:
        """The workers by group, in words."""
        return ", ".join(f"{group} {count}" for group, count in self.workers)


@dataclass(frozen=True, slots=True)
class ScalingSeen:
    """What is known of a job whose size is to be found: the `points` that were measured, whether the search is over,
    its last decision in words (`said`), and what hinders it (`blocked`, empty if nothing does).
    """

    points: tuple[SizePoint, ...] = ()
    at_rest: bool = False
    said: str = ""
    blocked: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now. Acting on it never decides anything.

    `plan` is the plan to publish (None: leave the active one). `delete` names pods to delete, `short_grace` those of
    them that get a grace of `SHORT_GRACE_SECONDS` at most, `force_delete` those that go without an answer of their
    node. `remove_job`: the finished job itself is to be deleted. `reason` says in words and numbers why the batches
    change, or why they do not. `slowed_by` names, by worker, what slowed it when its own time last jumped, as long as
    that goes on (`NAMES` of `core/prediction/resource_use.py`). `batch_limits` are, by worker, the greatest batches
    that memory is thought to hold, where that is known. `imbalance` is by what part of the mean the slowest own time
    exceeds it, under the plan that was active; None: not measured. `worker_states` are those that the decision rests
    on: of the workers that are there, of members that are gone, and of workers that are wanted. `stragglers` are the
    verdicts that stand, and `replacing` are stragglers, each with the newcomer that is to take its place; `resized` is
    by how many workers groups are to be larger (below zero: smaller) than the spec has them, since stragglers were
    removed or scaling has found that size. `beside_training`: the workers to create join others that train, and warm
    up before. `scaling` is what is known of the sizes; None where the number of workers is not to be found.
    """

    phase: JobPhase
    reason: str
    plan: Plan | None = None
    create: tuple[WorkerKey, ...] = ()
    delete: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    events: tuple[Event, ...] = field(default=())
    short_grace: tuple[str, ...] = ()
    force_delete: tuple[str, ...] = ()
    remove_job: bool = False
    batch_limits: tuple[tuple[str, int], ...] = ()
    slowed_by: tuple[tuple[str, str], ...] = ()
    imbalance: float | None = None
    worker_states: tuple[tuple[str, WorkerState], ...] = ()
    stragglers: tuple[Verdict, ...] = ()
    beside_training: bool = False
    replacing: tuple[tuple[str, str], ...] = ()
    resized: tuple[tuple[str, int], ...] = ()
    scaling: ScalingSeen | None = None
