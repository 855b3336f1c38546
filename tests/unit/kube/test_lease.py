"""Of several replicas one acts, and only while it is sure to; time is an argument here."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from heterotrain_operator.clusters.kube.api_server.lease import (
    LEASE_SECONDS,
    RENEW_DEADLINE_SECONDS,
    Leadership,
    NotLeadingError,
)
from heterotrain_operator.clusters.kube.api_server.transport import REQUEST_SECONDS, PatientClient
from kube_server.api_server import ApiServer
from unit.kube.worlds import refusing


@dataclass
class Replica:
    """A replica whose clock is in hand; `reported` is what it reported of leading."""

    client: PatientClient
    name: str
    seconds: float = 1000.0
    reported: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.leadership = Leadership(
            self.client,
            name="heterotrain",
            namespace="ops",
            identity=self.name,
            on_change=self.reported.append,
            clock=lambda: self.seconds,
        )

    def ask(self, later: float = 0.0) -> bool:
        """Asks so many seconds later. Returns whether it leads."""
        self.seconds += later
        self.leadership.ask()
        return self.leadership.leading

    def leave(self) -> None:
        """Ends in order."""
        self.leadership.stop()
        self.leadership.run()


@pytest.fixture
def first(client: PatientClient) -> Replica:
    return Replica(client, "first")


@pytest.fixture
def second(client: PatientClient) -> Replica:
    return Replica(client, "second")


def holder(api: ApiServer) -> str | None:
    name: str | None = api.the("leases", "heterotrain", "ops")["spec"].get("holderIdentity")
    return name


def run_out(replica: Replica) -> None:
    """The replica has watched the Lease for longer than it lasts, and nobody renewed it."""
    election = replica.leadership._election  # the library has no clock of its own to set
    election.observed_time_milliseconds -= (LEASE_SECONDS + 1) * 1000


def test_one_of_two_replicas_leads_and_the_other_is_fenced(first: Replica, second: Replica, api: ApiServer) -> None:
    assert [first.ask(), second.ask(), first.ask(2), second.ask(2)] == [True, False, True, False]
    assert holder(api) == "first"
    assert (first.reported, second.reported) == ([True], [])
    first.leadership.check()
    with pytest.raises(NotLeadingError, match="second does not hold the Lease"):
        second.leadership.check()
    second.leave()
    assert first.leadership.leading


def test_other_replica_takes_over_once_the_lease_has_run_out(first: Replica, second: Replica, api: ApiServer) -> None:
    first.ask()
    second.ask()
    run_out(second)
    assert second.ask()
    assert first.leadership.leading, "as far as it knows"
    first.leave()
    assert holder(api) == "second"
    assert not first.ask(16)
    assert first.reported == [True, False]


def test_replica_that_reads_another_holder_stops_at_once_and_takes_a_lease_without_one(
    first: Replica, api: ApiServer
) -> None:
    first.ask()
    spec = api.the("leases", "heterotrain", "ops")["spec"]
    api.change("leases", "heterotrain", {"spec": {**spec, "holderIdentity": "thief"}}, "ops")
    assert not first.ask(2)
    with pytest.raises(NotLeadingError):
        first.leadership.check()
    api.change("leases", "heterotrain", {"spec": {**spec, "holderIdentity": None}}, "ops")
    assert first.ask(2)
    assert first.reported == [True, False, True]


def test_other_replica_takes_over_a_lease_that_is_given_back(first: Replica, second: Replica, api: ApiServer) -> None:
    first.ask()
    assert not second.ask()
    first.leave()
    assert holder(api) is None
    assert not first.leadership.leading
    assert first.reported == [True, False]
    assert second.ask()


def test_replica_that_was_paused_fails_at_the_fence_before_the_lease_is_another_ones(first: Replica) -> None:
    first.ask()
    first.seconds += RENEW_DEADLINE_SECONDS
    with pytest.raises(NotLeadingError):
        first.leadership.check()
    assert RENEW_DEADLINE_SECONDS + REQUEST_SECONDS <= LEASE_SECONDS
    assert first.ask(1)
    assert first.reported == [True, False, True]


def test_replica_paused_while_it_asked_does_not_lead(first: Replica, api: ApiServer) -> None:
    def pause(verb: str, plural: str, name: str) -> None:
        first.seconds += 7

    api.refuse = pause
    assert not first.ask()
    assert first.reported == []


def test_api_server_that_fails_for_a_moment_costs_no_leadership(first: Replica, api: ApiServer) -> None:
    first.ask()
    api.refuse = refusing("*", "leases")
    assert [first.ask(4), first.ask(4), first.ask(4)] == [True, True, False]
    api.refuse = lambda *_: None
    assert first.ask(2)
    assert first.reported == [True, False, True]
    api.refuse = refusing("*", "leases")
    first.leave()
    assert not first.leadership.leading
    assert holder(api) == "first"


def test_running_replica_asks_at_once_and_ends_when_asked(first: Replica) -> None:
    thread = threading.Thread(target=first.leadership.run)
    thread.start()
    while not first.reported:
        assert thread.is_alive()
    first.leadership.stop()
    thread.join()
    assert first.reported == [True, False]
