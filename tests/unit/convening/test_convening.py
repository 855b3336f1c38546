"""How the workers of an attempt that broke form the next one, under any schedule of faults."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.machine import step
from heterotrain.groups.convening.roster import Number, Roster, Standing
from heterotrain.groups.convening.worker_state import Phase, Rules, State, beginning, may_commit
from unit.convening.job import Job
from unit.convening.schedules import faulty_job

RULES = Rules(split=lambda members: "a plan")


@pytest.mark.parametrize("more", [{}, {"held": True}, {"skips": True}, {"retries": True}], ids=str)
@settings(max_examples=min(100, 4 * settings().max_examples))
@given(st.integers(0, 2**32))
def test_no_schedule_of_faults_splits_a_job_or_stops_it_for_good(more: dict[str, bool], seed: int):
    """Nor where interpreters are held, plans skip generations, or changes are prepared again."""
    faulty_job(seed, **more)  # the invariants are checked while it runs


@pytest.mark.parametrize(
    ("seed", "retries"),
    [
        pytest.param(163, False, id="a worker answers nobody without whom it has accepted an attempt"),
        pytest.param(918, False, id="what was promised to one convener is promised to no other"),
        pytest.param(1016, True, id="a number is not given to two tries of a change"),
    ],
)
def test_schedules_that_find_a_fault_without_a_rule(seed: int, retries: bool):
    faulty_job(seed, retries=retries)


def training_job(size: int) -> Job:
    """A job without faults that has committed some steps."""
    job = Job(3, size)
    job.faulty = False
    job.run(30)
    assert {machine.state.phase for machine in job.machines.values()} == {Phase.TRAINING}
    assert job.highest > 3
    return job


def alone(*, away: bool = False) -> State:
    """The first of two workers that has found the other one silent."""
    roster = Roster(Number(1, 1), ("a", "b"))
    state = replace(beginning("a", RULES, 0.0), standing=Standing(roster), begun=True, has_state=True)
    state = replace(state, phase=Phase.TRAINING, away=away)
    return step(state, p.Broken(4), 0.5)[0]


def after_ticks(state: State, until: float) -> tuple[State, list[p.Action]]:
    """After quiet time, with all that was done in it."""
    done: list[p.Action] = []
    now = state.pulse
    while now < until:
        now += 0.5
        state, actions = step(state, p.Tick(), now)
        done += actions
    return state, done


def test_survivors_form_without_a_member_that_died_and_lose_no_step():
    job = training_job(3)
    before = job.highest
    job.end("w1")
    assert job.run(job.now + 1.0, lambda: job.machines["w0"].state.phase is Phase.AGREEING), "well before any silence"
    assert job.run(job.now + 20.0, lambda: job.highest >= before + 3)
    assert job.trainers["w2"].roster == job.trainers["w0"].roster == Roster(Number(1, 2), ("w0", "w2"))


def test_last_survivor_goes_on_if_the_others_died_in_the_midst_of_training_with_it():
    job = training_job(3)
    before = job.highest
    for uid in ("w0", "w1"):
        job.end(uid)
    assert job.run(job.now + 20.0, lambda: job.highest >= before + 3)


def test_worker_that_wakes_after_the_job_has_ended_commits_nothing():
    job = training_job(3)
    job.stop(job.machines["w0"])
    job.run(job.now + 40.0)
    ended = job.highest
    for uid in ("w1", "w2"):
        assert job.trainers[uid].step > job.trainers["w0"].step + 1
        job.kill(job.machines[uid])
    job.go_on(job.machines["w0"])
    commits = job.commits
    job.run(job.now + 60.0)
    assert (job.highest, job.commits) == (ended, commits)
    assert job.machines["w0"].state.phase in (Phase.MEETING, Phase.OUT)


def test_first_of_two_that_was_away_does_not_take_itself_for_the_only_survivor():
    assert not any(isinstance(action, p.MakeGroups) for action in after_ticks(alone(away=True), 30.0)[1])
    assert any(isinstance(action, p.MakeGroups) for action in after_ticks(alone(), 30.0)[1]), "the tie is its own"


def test_worker_that_was_stopped_may_not_commit_even_before_it_has_noticed():
    state = replace(alone(), phase=Phase.TRAINING)
    assert may_commit(state, state.pulse + 4.9)
    assert not may_commit(state, state.pulse + 5.1)


def test_minority_of_a_partition_holds_and_is_fenced_when_it_heals():
    job = training_job(3)
    for other in ("w1", "w2"):
        job.block("w0", other)
        job.block(other, "w0")
    job.run(job.now + 12.0)
    assert job.machines["w0"].state.phase is Phase.MEETING
    before = job.highest
    assert job.run(job.now + 20.0, lambda: job.highest >= before + 3), "two of three go on"
    job.open_ways()
    job.run(job.now + 10.0)
    assert job.machines["w0"].state.phase is Phase.OUT


@pytest.mark.parametrize("cut_off", ["w0", "w2"])
@pytest.mark.parametrize("delay", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_others_go_on_as_soon_as_a_member_has_been_silent_for_long_enough(cut_off: str, delay: float):
    """Neither a beat later, nor once channels to it end, when it might reach them again for a moment."""
    job = training_job(3)
    job.run(job.now + delay)
    others = [uid for uid in ("w0", "w1", "w2") if uid != cut_off]
    for other in others:
        job.block(cut_off, other)
        job.block(other, cut_off)
    blocked, makes = job.now, {Phase.MAKING, Phase.AGREEING}
    assert job.run(blocked + 15.0, lambda: all(job.machines[uid].state.phase in makes for uid in others))
    heard = max(blocked, job.last_commit)  # it may have contributed to a step that the others committed later
    assert job.now <= heard + RULES.silence_seconds + 0.25


def test_joiner_that_was_called_before_it_saw_the_plan_begins_with_its_own_state():
    """Were it to follow the call, it would be a member without the state, and all would be lost without the others."""
    call = p.Received("a", p.Call(Number(1, 1), Number(1, 0), begun=False), 0.0, None)
    assert step(beginning("b", RULES, 0.0), call, 0.1)[0].phase is Phase.WAITING


@pytest.mark.parametrize("proof", [0.0, 5.0, 6.0])
def test_proof_of_death_must_end_before_silence_does(proof: float):
    with pytest.raises(ValueError, match="proof_seconds"):
        Rules(split=RULES.split, proof_seconds=proof)
