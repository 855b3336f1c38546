"""A worker follows the newest plan in its volume that it may follow; what it may not changes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from heterotrain.contract import MAX_PLAN_BYTES, PLAN_FILE, Member, Plan
from heterotrain.job.planfile import PlanFile
from heterotrain.job.plans import Plans
from heterotrain.job.resplit import resplit


def plan(version: int, generation: int = 1, continues: int = 0, workers: int = 2) -> Plan:
    members = tuple(Member(f"w-{each}", f"u-{each}", f"10.0.0.{each}:1", "cpu", 4) for each in range(workers))
    return Plan(version, generation, "step", members, continues)


class Volume:
    """The folder of plans, and what its reader counts as refused."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refused = 0
        self.file = PlanFile(folder, self._refuse)

    def _refuse(self) -> None:
        self.refused += 1

    def holds(self, document: Plan | str) -> None:
        partial = self.folder / "partial"
        partial.write_text(document if isinstance(document, str) else document.to_json())
        partial.replace(self.folder / PLAN_FILE)


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    return Volume(tmp_path)


@pytest.mark.parametrize("bad", ["{", plan(9).to_json(), plan(12, generation=3).to_json()])
def test_a_refused_document_takes_no_acceptable_plan_away(volume: Volume, bad: str) -> None:
    volume.holds(plan(11))
    assert volume.file.newest(plan(10)) == plan(11)
    volume.holds(bad)
    assert [volume.file.newest(plan(10)) for _ in range(3)] == [plan(11)] * 3
    assert volume.refused == 1
    assert volume.file.newest(plan(11)) is None  # it is followed by now


def test_a_plan_that_may_be_followed_later_is_followed_then(volume: Volume) -> None:
    successor = plan(12, generation=3, continues=2, workers=3)
    volume.holds(successor)
    assert volume.file.newest(plan(11)) is None  # generation 2 is not entered yet
    assert volume.file.newest(plan(11)) is None
    assert volume.refused == 1
    assert volume.file.newest(plan(11, generation=2, continues=1)) == successor
    assert volume.refused == 1


def test_an_acceptable_plan_that_is_overtaken_is_not_refused(volume: Volume) -> None:
    volume.holds(plan(11))
    assert volume.file.newest(plan(10)) == plan(11)
    assert volume.file.newest(plan(14)) is None  # another worker's volume was faster
    assert volume.refused == 0


def test_a_document_that_could_not_be_read_is_read_again(volume: Volume, monkeypatch: pytest.MonkeyPatch) -> None:
    volume.holds(plan(11))
    with monkeypatch.context() as broken:
        broken.setattr(Path, "open", unreadable)
        assert volume.file.newest(plan(10)) is None
        assert volume.file.newest(plan(10)) is None
    assert volume.file.newest(plan(10)) == plan(11)
    assert volume.refused == 0


def unreadable(*_: object) -> None:
    raise OSError("stale file handle")


def test_the_same_document_in_a_new_file_is_refused_once(volume: Volume) -> None:
    for _ in range(3):  # as the kubelet does where another key of the ConfigMap changes
        volume.holds("{")
        assert volume.file.newest(plan(10)) is None
    assert volume.refused == 1
    volume.holds("[")
    assert volume.file.newest(plan(10)) is None
    assert volume.refused == 2


def test_a_document_without_end_is_refused(volume: Volume) -> None:
    volume.holds(" " * (2 * MAX_PLAN_BYTES))
    assert volume.file.newest(plan(10)) is None
    assert volume.refused == 1


def test_a_change_of_members_that_is_impossible_counts_as_refused(volume: Volume) -> None:
    plans = Plans(plan(10), volume.file)
    impossible = plan(11, generation=2, continues=1, workers=3)
    volume.holds(impossible)
    assert plans.look()[0] == 11
    plans.receive(plans.document())
    plans.refuse_successor()
    assert volume.refused == 1
    assert plans.look() == (0, 0)
    volume.holds(replace(impossible, version=12))
    assert plans.look()[0] == 12


def test_those_that_are_left_do_not_hand_on_who_has_ended() -> None:
    """It counts as the operator's word alone, in the plan that says so."""
    whole = replace(plan(11, generation=2, continues=1, workers=3), evicted=("u-9",))
    assert resplit(whole, whole.members).evicted == ("u-9",)
    assert resplit(whole, whole.members[1:]).evicted == ()


def test_a_plan_of_the_generation_that_is_followed_is_no_news(volume: Volume) -> None:
    """Also to whoever has it from a peer: a worker that was away must not take it for a newer one."""
    plans = Plans(plan(11, generation=2, continues=1), volume.file)
    volume.holds(plan(12, generation=2))  # as it is made again once it was lost
    assert plans.in_volume() is not None
    assert plans.news is None
    volume.holds(plan(13, generation=3, continues=2))
    assert plans.news == plan(13, generation=3, continues=2)
