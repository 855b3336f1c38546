"""When a job is looked at again, and what of it is exported."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from heterotrain_operator.clusters.kube.api_server.gateway import Gateway, GatewayError, JobGoneError
from heterotrain_operator.clusters.kube.api_server.lease import NotLeadingError
from heterotrain_operator.clusters.kube.api_server.transport import PatientClient
from heterotrain_operator.clusters.kube.observe.nodes import Nodes
from heterotrain_operator.controller.judging import Documents
from heterotrain_operator.controller.rounds import TAKEN_SECONDS, UNREADABLE_SECONDS, Former, JobRounds
from heterotrain_operator.core.pacing import ANNOUNCED, FOLLOWING_SECONDS
from heterotrain_operator.core.prediction.learned import Learned
from heterotrain_operator.core.prediction.predictors import arx
from heterotrain_operator.metrics.own import OperatorMetrics
from kube_server.api_server import ApiServer
from unit.kube.worlds import NAMES, SCALED, World, refusing, stored

T = TypeVar("T")

LAST_WORDS = '{"finished": true, "step": 150, "message": "", "leader": %s}'


async def in_this_thread(blocking: Callable[..., T], /, *arguments: Any, many: bool = False) -> T:
    return blocking(*arguments)


class Steered:
    """A job's rounds over a world; `look` is one of them, some seconds later."""

    def __init__(self, api: ApiServer, client: PatientClient, **spec: Any) -> None:
        self.leading = True
        self.metrics = OperatorMetrics()
        gateway = Gateway(client, self._fence, lambda verb, kind: None)
        self.world = World(api, gateway, spec)
        self._gateway = gateway
        self.leapt = 0.0
        self.former: Former = {}
        self.restart_operator()

    def restart_operator(self) -> None:
        """All that was not written is forgotten."""
        self.rounds = JobRounds(
            self._gateway,
            Nodes(self._gateway),
            self.metrics,
            lambda job: self.world.workers,
            Documents(self._gateway),
            clock=self._seconds,
            monotonic=lambda: self.world.now - self.leapt,
            former=self.former,
        )

    def look(self, seconds: float = 1.0) -> float:
        self.world.now += seconds
        return self.once(self.world.versions)

    def once(self, versions: set[str]) -> float:
        """One round; `versions` are what a watch shows that is late."""
        metadata = {"metadata": self.world.body["metadata"]}
        return asyncio.run(self.rounds.once(metadata, self.world.pods, versions, in_this_thread))

    def leap(self, seconds: float) -> None:
        """Somebody sets the clock."""
        self.world.now += seconds
        self.leapt += seconds

    def train(self) -> float:
        """From nothing to a plan that has just been written."""
        self.look()
        self.world.run_pods()
        self.world.workers.wait(*NAMES)
        return self.look()

    def finish(self, leaders_code: int = 0) -> None:
        """All workers end after the last step, the leader with this exit code and the others well."""
        for rank, name in enumerate(NAMES):
            words, code = LAST_WORDS % json.dumps(rank == 0), 0 if rank else leaders_code
            ended = {"terminated": {"exitCode": code, "message": words, "reason": "Error" if code else "Completed"}}
            statuses = [{"name": "trainer", "state": ended}]
            phase = "Failed" if code else "Succeeded"
            self.world.api.change("pods", name, {"status": {"phase": phase, "containerStatuses": statuses}})

    def exported(self, series: str) -> bool:
        return any(sample.name == series for family in self.metrics.registry.collect() for sample in family.samples)

    def _seconds(self) -> float:
        return self.world.now

    def _fence(self) -> None:
        if not self.leading:
            raise NotLeadingError("not any more")


@pytest.fixture
def steer(api: ApiServer, client: PatientClient) -> Callable[..., Steered]:
    def make(**spec: Any) -> Steered:
        return Steered(api, client, **spec)

    return make


@pytest.fixture
def job(steer: Callable[..., Steered]) -> Steered:
    return steer()


def test_plan_is_looked_after_until_it_is_followed_and_its_first_steps_are_over(job: Steered) -> None:
    assert job.look() == ANNOUNCED.quiet_seconds
    job.world.run_pods()
    assert job.look() == ANNOUNCED.busy_seconds
    job.world.workers.wait(*NAMES)
    assert job.look() == ANNOUNCED.busy_seconds
    job.world.workers.follow(job.world.plan, steps=1, own_seconds=0.75)
    assert job.look() == pytest.approx(0.75)
    assert job.exported("heterotrain_operator_plan_follow_seconds_count")
    assert job.look(FOLLOWING_SECONDS) == ANNOUNCED.quiet_seconds


def test_job_that_is_over_and_forgotten_is_not_run_again(steer: Callable[..., Steered], api: ApiServer) -> None:
    job = steer(runPolicy={"cleanPodPolicy": "All"})
    job.train()
    job.finish()
    job.look()
    before = job.world.status
    api.remove("configmaps", "digits-plan")
    job.restart_operator()
    for _ in range(3):
        job.look(20.0)
    assert api.names("pods") == []
    assert api.names("configmaps") == ["digits-plan"]
    for name in ("phase", "completionTime", "reason"):
        assert job.world.status[name] == before[name]


def test_job_whose_leader_is_killed_while_it_saves_its_result_fails_and_creates_nobody(
    steer: Callable[..., Steered], api: ApiServer
) -> None:
    job = steer(runPolicy={"cleanPodPolicy": "None"})
    job.train()
    uids = {api.get("pods", name)["metadata"]["uid"] for name in NAMES}
    job.finish(leaders_code=137)
    job.look()
    job.look(20.0)
    assert (job.world.status["phase"], job.world.status["reason"]) == (
        "Failed",
        f"training finished at step 150, but the script failed afterwards on {NAMES[0]}: it was killed by SIGKILL: "
        "perhaps for want of memory (its limit is 256Mi)",
    )
    assert {api.get("pods", name)["metadata"]["uid"] for name in NAMES} == uids


def test_job_that_is_over_is_left_alone_until_its_time_has_come(steer: Callable[..., Steered], api: ApiServer) -> None:
    job = steer(runPolicy={"ttlSecondsAfterFinished": 40})
    job.train()
    job.finish()
    assert job.look() == ANNOUNCED.still_seconds
    assert job.world.status["phase"] == "Succeeded"
    api.writes.clear()
    assert job.look(ANNOUNCED.still_seconds) == 10.0
    assert (api.writes, len(api.names("pods"))) == ([], 3)
    job.look(10.0)
    assert api.names("heterotrainingjobs") == []


def test_job_and_status_of_a_newer_operator_are_gone_on_from(
    job: Steered, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    api.change("heterotrainingjobs", "digits", {"spec": {"powerCap": {"watts": 300}}})
    job.look()
    assert sorted(pod.name for pod in job.world.pods) == sorted(NAMES)
    assert job.world.status["phase"] == "Created"
    assert "knows nothing of spec.powerCap" in caplog.text
    api.change("heterotrainingjobs", "digits", {"status": {"phase": "Queued", "placement": ["a"], "step": 7}})
    job.restart_operator()
    job.look()
    assert job.world.status["phase"] == "Created"
    api.change("heterotrainingjobs", "digits", {"spec": {"batching": {"policy": "Greedy"}}})
    job.look()
    assert "Greedy" in job.world.status["reason"]


@pytest.mark.parametrize("seconds", [700, -700, 1e6])
@pytest.mark.parametrize("failing", ["", "configmaps", "events", "heterotrainingjobs"])
def test_clock_that_leaps_is_no_worker_that_hangs(job: Steered, api: ApiServer, failing: str, seconds: float) -> None:
    job.train()
    job.world.workers.follow(job.world.plan)
    job.look()
    job.leap(seconds)
    job.world.workers.train(slow={NAMES[0]: 3.0})  # the status has news
    api.refuse = refusing("write", failing, 500, "try again")
    for _ in range(3):
        with contextlib.suppress(GatewayError):
            job.look()
    api.refuse = lambda verb, kind, name: None
    job.look(30)
    assert job.world.status["phase"] == "Running"
    job.look(70)
    assert job.world.status["phase"] == "Restarting", "who hangs all the same is noticed in time"
    assert "no step was committed for" in job.world.status["reason"]


def test_job_whose_name_is_taken_says_so_and_looks_now_and_then(job: Steered, api: ApiServer) -> None:
    api.put("services", {"metadata": {"name": "digits"}})
    assert job.look() == TAKEN_SECONDS
    assert "metadata.name: Service team-a/digits exists already" in job.world.status["reason"]
    api.remove("services", "digits")
    job.look()
    assert job.world.status["phase"] == "Created"


@pytest.mark.parametrize("kind", ["configmaps", "services"])
def test_refusal_of_what_a_job_needs_is_in_its_status(job: Steered, api: ApiServer, kind: str) -> None:
    api.refuse = refusing("write", kind, 403, "exceeded quota: team")
    with contextlib.suppress(GatewayError):
        job.look()
    for seconds in (2.0, 20.0, 2.0):
        with contextlib.suppress(GatewayError):
            job.look(seconds)
        assert "exceeded quota: team" in job.world.status["reason"]
    assert api.names("pods") == []
    api.refuse = lambda verb, kind, name: None
    job.look(20.0)
    job.look(20.0)
    assert len(api.names("pods")) == 3


@pytest.mark.parametrize(
    ("verb", "plural", "group"), [("patch", "configmaps", ""), ("create", "pods", ""), ("patch", "services", "x.io")]
)
def test_right_that_is_taken_away_is_named_and_noticed_when_it_is_back(
    job: Steered, api: ApiServer, verb: str, plural: str, group: str
) -> None:
    job.train()
    job.world.workers.follow(job.world.plan)
    job.look()
    who = f'User "operator" cannot {verb} resource "{plural}" in API group "{group}" in the namespace "team-a"'
    api.refuse = refusing(verb, plural, 403, f"{plural} is forbidden: {who}")
    for name in NAMES:
        api.change("pods", name, {"status": {"phase": "Failed"}})
    for _ in range(4):
        with contextlib.suppress(GatewayError):
            job.look(20)
        job.world.end_pods()
    right = f"the operator lacks the right to {verb} {'.'.join(filter(None, (plural, group)))} in namespace team-a"
    assert right in job.world.status["reason"]
    conditions = {each["type"]: each for each in job.world.status["conditions"]}
    assert "Invalid" not in conditions
    assert plural != "configmaps" or conditions["Degraded"]["reason"] == "RightMissing"
    api.refuse = lambda verb, kind, name: None
    job.look(20)
    job.look(20)
    assert "lacks the right" not in str(job.world.status)
    assert len(api.names("pods")) == 3


def test_job_that_may_not_be_read_any_more_has_an_event_that_says_so_now_and_then(job: Steered, api: ApiServer) -> None:
    job.train()
    before = job.world.status
    api.change("heterotrainingjobs", "digits", {"spec": {"batching": {"dryRun": True}}})
    right = 'cannot get resource "heterotrainingjobs" in API group "heterotrain.dev" in the namespace "team-a"'
    api.refuse = refusing("get", "heterotrainingjobs", 403, f'heterotrainingjobs is forbidden: User "operator" {right}')
    for seconds in (2, 2, UNREADABLE_SECONDS):
        with pytest.raises(GatewayError):
            job.look(seconds)
    events = [body for _verb, plural, _name, body in api.writes if plural == "events"]
    said = [each["message"] for each in events if each["reason"] == "RightMissing"]
    assert len(said) == 2
    assert "lacks the right to get heterotrainingjobs.heterotrain.dev in namespace team-a; trying again" in said[0]
    assert job.world.status == before


def test_job_begins_with_what_a_former_one_of_its_name_has_learned(
    steer: Callable[..., Steered], api: ApiServer
) -> None:
    job = steer(batching={"prediction": "ARX"})
    place = (str(job.world.body["metadata"]["namespace"]), "digits")
    job.former[place] = (Learned("g1", 40, 0.1, 0.2, arx.BEGINNING),)
    job.look()
    memory = json.loads(stored(api, "memory.json"))
    assert memory["learned"] == [["g1", 40, 0, 0, *arx.BEGINNING]]
    job.former.clear()
    job.rounds.close(*place)
    assert [each.group for each in job.former[place]] == ["g1"]


def test_plan_that_somebody_else_wrote_meanwhile_is_looked_at_soon(job: Steered, api: ApiServer) -> None:
    job.train()
    lagging = job.world.versions
    api.change("configmaps", "digits-plan", {"data": {"theirs": "1"}})
    job.world.workers.follow(job.world.plan)
    job.world.workers.reported.pop(NAMES[0])
    api.change("pods", NAMES[0], {"status": {"phase": "Failed"}})
    assert job.once(lagging) == ANNOUNCED.busy_seconds
    assert job.world.status["phase"] == "Running"
    job.look()
    assert job.world.status["phase"] == "Restarting"


def test_job_of_another_leader_is_not_exported(job: Steered) -> None:
    job.train()
    job.world.workers.follow(job.world.plan)
    job.look()
    assert job.exported("heterotrain_job_info")
    job.metrics.leading(False)
    job.leading = False
    with pytest.raises(NotLeadingError):
        job.look()
    assert not job.exported("heterotrain_job_info")


def test_earlier_job_of_the_same_name_is_waited_for_without_a_word(job: Steered, api: ApiServer) -> None:
    job.train()
    job.world.apply_job(leaving="configmaps")
    job.rounds.forget()
    assert job.look() == ANNOUNCED.quiet_seconds
    assert api.writes == []


def test_many_pods_are_created_and_deleted_in_goes_between_which_the_thread_is_others(
    steer: Callable[..., Steered], api: ApiServer
) -> None:
    job = steer(**{**SCALED, "replicas": 40})

    def goes() -> list[int]:
        """By how many pods there are more after each go of a round."""
        found: list[int] = []

        async def counting(blocking: Callable[..., T], /, *arguments: Any, many: bool = False) -> T:
            before = len(api.names("pods"))
            done = blocking(*arguments)
            more = len(api.names("pods")) - before
            assert many or not more
            found.append(more)
            return done

        metadata = {"metadata": job.world.body["metadata"]}
        asyncio.run(job.rounds.once(metadata, job.world.pods, job.world.versions, counting))
        return [more for more in found if more]

    assert goes() == [1, 2, 4, 8, 16, 9]
    assert job.world.events == ["SuccessfulCreatePod"]
    api.change("heterotrainingjobs", "digits", {"spec": {"runPolicy": {"suspend": True}}})
    assert goes() == [-16, -16, -8]
    assert job.world.status["phase"] == "Suspended"


def test_pods_of_a_job_that_is_deleted_meanwhile_are_not_created_any_more_whatever_the_watch_shows(
    steer: Callable[..., Steered], api: ApiServer
) -> None:
    job = steer(**{**SCALED, "replicas": 40})

    def create(kind: str, plural: str, name: str) -> None:
        if (kind, plural) == ("create", "pods") and len(api.names("pods")) >= 8:
            api.refuse = lambda *_: None
            api.remove("heterotrainingjobs", "digits", watched=False)

    api.refuse = create
    with pytest.raises(JobGoneError):
        job.look()
    assert len([write for write in api.writes if write[:2] == ("create", "pods")]) < 16


def test_decision_that_met_a_conflict_leaves_nothing_to_be_done_but_deliveries(job: Steered, api: ApiServer) -> None:
    job.train()
    api.writes.clear()
    api.refuse = refusing("patch", "configmaps", 409)
    api.change("pods", NAMES[1], {"status": {"phase": "Failed"}})
    for _ in range(3):
        assert job.look(6) == ANNOUNCED.busy_seconds
    assert {write[:2] for write in api.writes} == {("patch", "pods")}


@pytest.mark.parametrize("dies_at", [1, 2, 4])
def test_operator_that_dies_while_it_creates_and_before_the_status_is_gone_on_from(
    steer: Callable[..., Steered], api: ApiServer, dies_at: int
) -> None:
    job = steer()

    class Killed(BaseException):
        pass

    async def dying(blocking: Callable[..., T], /, *arguments: Any, many: bool = False) -> T:
        nonlocal dies_at
        dies_at -= many
        if not dies_at:
            raise Killed
        return blocking(*arguments)

    metadata = {"metadata": job.world.body["metadata"]}
    with contextlib.suppress(Killed):
        asyncio.run(job.rounds.once(metadata, job.world.pods, job.world.versions, dying))
    for _ in range(2):
        job.restart_operator()
        job.look(10)
    created = [write[2] for write in api.writes if write[:2] == ("create", "pods")]
    assert sorted(created) == sorted(NAMES)
    job.world.run_pods()
    job.world.workers.wait(*NAMES)
    api.refuse = refusing("write", "heterotrainingjobs", 500)
    with contextlib.suppress(GatewayError):
        job.look()
    api.refuse = lambda *_: None
    plan = job.world.plan
    job.restart_operator()
    job.look()
    assert (job.world.plan, job.world.status["planVersion"]) == (plan, plan.version)


def test_pods_whose_finalizers_stay_end_the_job_in_time_and_are_named(job: Steered, api: ApiServer) -> None:
    job.train()
    job.world.workers.follow(job.world.plan)
    job.look()
    kept = {"deletionTimestamp": "2026-01-31T12:00:00Z", "finalizers": ["example.com/keeps"]}
    for name in NAMES:
        api.change("pods", name, {"status": {"phase": "Failed"}, "metadata": kept})
    for _ in range(3):
        job.look(20)
    assert "waiting for digits-small-0, digits-small-1, digits-large-0 to go away" in job.world.status["reason"]
    assert len(api.names("pods")) == 3
    job.look(600)
    assert job.world.status["phase"] == "Failed"
    assert "did not go away within 600 s" in job.world.status["reason"]
