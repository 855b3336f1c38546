"""One table says what is done about an incident; another policy is another column of it."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from heterotrain_operator.api.spec.stragglers import Stragglers
from heterotrain_operator.core.lifecycle.responses import (
    FAILURE_POLICIES,
    LASTING,
    RESTART_ALL,
    FailurePolicy,
    Incident,
    Response,
    Rule,
    check_policy,
)
from heterotrain_operator.core.model import Decision
from heterotrain_operator.core.stragglers.verdict import ACTIONS
from unit.core.jobs import reasons
from unit.core.traces import World, hetero_world


def answered(monkeypatch: pytest.MonkeyPatch, world: World, **rules: Rule) -> World:
    """The world, whose job has a policy of its own that answers these incidents so, and all others by restarts."""
    policy: FailurePolicy = {**RESTART_ALL, **{Incident[name]: rule for name, rule in rules.items()}}
    check_policy(policy)
    monkeypatch.setitem(FAILURE_POLICIES, "Own", policy)
    world.job = replace(world.job, failure_policy="Own")
    return world


@pytest.mark.parametrize("name", FAILURE_POLICIES)
def test_every_policy_answers_every_incident_as_it_can_be_answered(name: str) -> None:
    check_policy(FAILURE_POLICIES[name])


def test_every_action_about_stragglers_of_a_manifest_says_what_it_entails() -> None:
    assert ACTIONS.keys() == set(get_args(Stragglers.model_fields["action"].annotation))


@pytest.mark.parametrize("incident", Incident)
def test_policy_without_an_answer_is_refused_by_the_incident(incident: Incident) -> None:
    policy = {other: rule for other, rule in RESTART_ALL.items() if other is not incident}
    with pytest.raises(ValueError, match=f"{incident.value} is answered with None"):
        check_policy(policy)


@pytest.mark.parametrize("incident", sorted(LASTING))
@pytest.mark.parametrize("response", [Response.IGNORE, Response.WAIT])
def test_what_lasts_can_be_neither_ignored_nor_waited_for(incident: Incident, response: Response) -> None:
    with pytest.raises(ValueError, match=f"{incident.value} is answered with {response.value}"):
        check_policy({**RESTART_ALL, incident: Rule(response)})


def hanging(world: World) -> Decision:
    """A job of which no step is committed for as long as no patience lasts."""
    world.run(2)
    for _ in range(30):
        decision = world.tick(60)
    return decision


def test_hung_worker_restarts_all_unless_the_policy_ignores_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ignoring = answered(monkeypatch, hetero_world(), WORKER_HUNG=Rule(Response.IGNORE))
    assert hanging(ignoring).phase == "Running"
    assert "WorkerHung" not in [reason for decision in ignoring.decisions for reason in reasons(decision)]
    restarting = hetero_world()
    hanging(restarting)
    assert "WorkerHung" in [reason for decision in restarting.decisions for reason in reasons(decision)]


def test_policy_may_fail_the_job_where_another_restarts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    world = answered(monkeypatch, hetero_world(), WORKER_VANISHED=Rule(Response.FAIL_JOB))
    world.run(2)
    del world.workers["job-g1-0"]
    decision = world.tick()
    assert (decision.phase, reasons(decision)) == ("Failed", ["WorkerVanished"])


def test_policy_may_wait_before_it_goes_on_with_what_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Rule(Response.WAIT, patience_seconds=20, code="WorkerHung")
    world = answered(monkeypatch, hetero_world(progress_timeout_seconds=5), WORKER_HUNG=waiting)
    world.run(2)
    decisions = [world.tick(6) for _ in range(10)]
    assert {decision.phase for decision in decisions} == {"Running"}
    assert any("no step was committed" in decision.reason for decision in decisions[:3])
    assert "no step was committed" not in decisions[-1].reason
