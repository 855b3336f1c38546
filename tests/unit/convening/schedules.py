"""Random schedules of faults on a simulated job, and what has to be true once they have ended."""

from __future__ import annotations

from heterotrain.groups.convening.worker_state import Phase
from unit.convening.job import Job
from unit.convening.network import Machine

RECOVERY_SECONDS = 90.0


def faulty_job(
    seed: int, *, trace: bool = False, held: bool = False, skips: bool = False, retries: bool = False
) -> Job:
    """A job that has had a schedule of faults and then time to recover. Raises AssertionError if it did not.

    With `held` interpreters are held, too; without, the schedules are what they were before there was such a fault.
    With `skips` plans skip generations, and with `retries` changes that came to nothing are prepared again, and there
    are more of them.
    """
    job = Job(seed, 0)
    choose = job.random
    size, length = choose.choice((1, 2, 2, 3, 3, 4, 5, 6)), choose.choice((4.0, 12.0, 25.0))
    last = choose.choice((None, None, None, 10, 20))
    job = Job(seed, size, last=last, skips=skips, retries=retries)
    job.trace = [] if trace else None
    choose = job.random
    job.after(1.0, job.operate)
    faults = (*_FAULTS, _hold) if held else _FAULTS
    kinds = choose.sample(faults, choose.randint(1, len(faults)))
    kinds += [_change] * len(kinds) * retries
    for _ in range(choose.randint(1, 10)):
        kind = choose.choice(kinds)
        at = choose.uniform(0.0, length)
        job.after(at, lambda kind=kind: kind(job))
        if choose.random() < 0.4:  # another one beside it
            beside = choose.choice(kinds)
            job.after(at + choose.uniform(0.0, 0.5), lambda beside=beside: beside(job))
    job.run(length)
    _end_faults(job)
    until = job.now + RECOVERY_SECONDS
    mark = {"commits": job.commits}
    recovered = job.run(until, lambda: _is_settled(job, mark))
    assert recovered, describe(job)
    return job


def _is_settled(job: Job, mark: dict[str, int]) -> bool:
    """All who live and have trained are in one attempt, and train in it; or nobody is left who has the state."""
    running = [machine for machine in job.machines.values() if machine.runs]
    members = [machine for machine in running if job.trainers[machine.uid].has_state]
    if not members or job.is_over:
        return True
    rosters = {job.trainers[machine.uid].roster for machine in members}
    if len(rosters) != 1 or None in rosters or any(machine.state.phase is not Phase.TRAINING for machine in members):
        mark["commits"] = job.commits
        return False
    roster = next(iter(rosters))
    assert roster is not None
    if not set(roster.members) <= {machine.uid for machine in members}:
        mark["commits"] = job.commits
        return False
    return job.commits - mark["commits"] >= 3 * len(members)


def describe(job: Job) -> str:
    lines = [f"no progress at {job.now:.1f}, highest step {job.highest}, {job.interventions} plans"]
    for machine in job.machines.values():
        state, trainer = machine.state, job.trainers[machine.uid]
        lines.append(
            f"  {machine.uid} {'runs' if machine.runs else 'ended'} {machine.exited} {state.phase.value} "
            f"promised {state.promised} to {state.convener} standing {state.standing} step {trainer.step} "
            f"roster {trainer.roster} state {trainer.has_state} away {state.away} met {sorted(state.met)} "
            f"links {sorted(state.links)} dialled {sorted(state.dialled)} proven {sorted(state.leases.proven)} "
            f"refused {sorted(state.leases.refused)}"
        )
    return "\n".join(lines)


def _end_faults(job: Job) -> None:
    job.log("faults end")
    job.faulty = False
    job.operator_blocked.clear()
    job.open_ways()
    for machine in list(job.machines.values()):
        job.go_on(machine)


def _someone(job: Job) -> Machine | None:
    running = [machine for machine in job.machines.values() if machine.runs]
    return job.random.choice(running) if running else None


def _kill(job: Job) -> None:
    machine = _someone(job)
    if machine is not None:
        job.end(machine.uid)


def _kill_first(job: Job) -> None:
    running = [machine for machine in job.machines.values() if machine.runs]
    if len(running) > 1:
        job.end(running[0].uid)


def _pause(job: Job) -> None:
    machine = _someone(job)
    if machine is not None:
        job.stop(machine)
        job.after(job.random.choice((0.5, 2.0, 4.5, 5.5, 8.0, 20.0)), lambda: job.go_on(machine))


def _hold(job: Job) -> None:
    machine = _someone(job)
    if machine is not None:
        job.hold(machine, job.random.choice((2.0, 5.5, 8.0, 20.0)))


def _partition(job: Job) -> None:
    uids = list(job.machines)
    side = {uid for uid in uids if job.random.random() < 0.5}
    one_way = job.random.random() < 0.2
    for a in uids:
        for b in uids:
            if a in side and b not in side:
                job.block(a, b)
                if not one_way:
                    job.block(b, a)
    if job.random.random() < 0.7:
        job.operator_blocked = set(side)
    job.after(job.random.choice((0.5, 3.0, 5.5, 7.0, 12.0)), lambda: _heal(job))


def _block_a_pair(job: Job) -> None:
    uids = list(job.machines)
    if len(uids) < 2:
        return
    a, b = job.random.sample(uids, 2)
    job.block(a, b)
    if job.random.random() < 0.7:
        job.block(b, a)
    job.after(job.random.choice((0.5, 3.0, 6.0, 12.0)), lambda: _heal(job))


def _heal(job: Job) -> None:
    job.operator_blocked = set()
    job.open_ways()


def _lose_links(job: Job) -> None:
    job.lose_links(job.random.choice((0.2, 1.0)))


def _change(job: Job) -> None:
    job.begin_change(job.random.choice((0, 1, 1, 2, 4)), job.random.choice((0, 0, 1, 2)))


def _leave(job: Job) -> None:
    machine = _someone(job)
    if machine is None:
        return
    uid = machine.uid
    job.ask_to_leave(uid, job.random.choice((None, 3.0, 10.0, 30.0)))
    if job.random.random() < 0.5:
        joiners = job.random.choice((0, 1))
        job.after(job.random.uniform(0, 2), lambda: job.begin_change(joiners, 0, leaving=uid))


_FAULTS = (_kill, _kill_first, _pause, _partition, _block_a_pair, _lose_links, _change, _leave)
