"""Training on the simulated network: groups and collectives of each worker.

A step commits on a worker once the contributions of its whole roster are there, as a sum of gradients does. A worker's
model is stood for by a hash of what it was made of, so two workers that train together from different states are found.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.roster import Roster
from heterotrain.groups.convening.worker_state import IN_ATTEMPT, Phase, may_commit
from unit.convening.invariants import Record
from unit.convening.network import Machine, Network

MAKING_SECONDS = 2.0


@dataclass(frozen=True)
class Data:
    """What one worker contributes to the step after `index`, or to agreeing on the state (-1)."""

    roster: Roster
    index: int
    step: int
    has_state: bool
    model: int
    began: float
    switch: Roster | None


@dataclass
class Trainer:
    """A worker's training thread."""

    roster: Roster | None = None  # in whose groups it is
    making: p.Form | None = None
    base: int | None = None  # what the convener has said
    index: int = -1
    step: int = 0
    has_state: bool = False
    model: int = 0
    began: float = 0.0
    data: dict[tuple[Roster, int], dict[str, Data]] = field(default_factory=dict)
    turn: int = 0  # changes with every collective and every failure, so that what is out of date does nothing
    is_committing: bool = False
    pace: float = 1.0


class Training(Network):
    """The training threads of one job."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.trainers: dict[str, Trainer] = {}
        self.record = Record()
        self.commits = 0
        self.attempts = 0
        self.last_commit = 0.0
        self.lost = False
        self.last: int | None = None  # the job's last step
        self.announced: set[Roster] = set()

    @property
    def highest(self) -> int:
        """The last step that any worker has committed."""
        return self.record.highest

    @property
    def is_over(self) -> bool:
        """Whether a worker has committed the job's last step, and ended."""
        return self.last is not None and self.highest >= self.last

    def switch_of(self, machine: Machine, trainer: Trainer) -> Roster | None:
        """The attempt to which this worker announces the switch with what it contributes next."""
        raise NotImplementedError

    # --- what the machines ask for ------------------------------------------------------------------------------

    def training(self, machine: Machine, action: p.Action) -> None:
        trainer = self.trainers[machine.uid]
        match action:
            case p.MakeGroups(form):
                self._make(machine, trainer, form)
            case p.Cut():
                self._fail(machine, trainer)
            case p.Exit(why):
                machine.exited = why
                self.kill(machine)
                self.cut_sockets(machine)
            case p.AllLost():
                self.lost = True
                newest = self.record.newest_members()  # others are out of date: their state may be behind
                others = [self.machines[uid] for uid in newest if self.trainers[uid].has_state]
                others = [each for each in others if each.runs]
                assert not others, f"{machine.uid} gave all up, but {[each.uid for each in others]} have the state"

    # --- groups -------------------------------------------------------------------------------------------------

    def _make(self, machine: Machine, trainer: Trainer, form: p.Form) -> None:
        trainer.roster, trainer.making, trainer.turn = None, form, trainer.turn + 1
        turn = trainer.turn
        fails_at = MAKING_SECONDS if not self.faulty or self.random.random() < 0.95 else self.random.uniform(0, 0.5)

        def fail() -> None:
            if trainer.making is form and trainer.turn == turn:
                self._fail_making(machine, trainer)

        self.after(fails_at, lambda: self.on(machine, fail))
        members = [self.machines[uid] for uid in form.roster.members]
        are_here = all(each.runs and not each.stopped and self._is_making(each.uid, form.roster) for each in members)
        if are_here and not any((a.uid, b.uid) in self.blocked for a in members for b in members):
            for each in members:
                made = self.trainers[each.uid].making
                assert made is not None
                self._finish_making(each, self.trainers[each.uid], made)

    def _is_making(self, uid: str, roster: Roster) -> bool:
        making = self.trainers[uid].making
        return making is not None and making.roster == roster

    def _finish_making(self, machine: Machine, trainer: Trainer, form: p.Form) -> None:
        def finish() -> None:
            if trainer.making is not form:
                return
            roster = form.roster
            self.note_formed(roster)
            trainer.making, trainer.base = None, form.base
            self.give(machine, p.Made(roster.number))
            self._enter(machine, trainer, roster)

        self.after(self.delay() * self.random.choice((1, 10)), lambda: self.on(machine, finish))

    def note_formed(self, roster: Roster) -> None:
        self.record.form(roster, self.now, {uid for uid, machine in self.machines.items() if machine.runs})

    def _fail_making(self, machine: Machine, trainer: Trainer) -> None:
        form, trainer.making, trainer.turn = trainer.making, None, trainer.turn + 1
        assert form is not None
        self._break_others(machine, form.roster)
        self.give(machine, p.MakingFailed(form.roster.number))

    def _fail(self, machine: Machine, trainer: Trainer) -> None:
        """Its sockets are cut; the training thread notices when it next waits."""
        if trainer.making is not None:
            form = trainer.making

            def fail() -> None:
                if trainer.making is form:
                    self._fail_making(machine, trainer)

            self.after(self.delay(), lambda: self.on(machine, fail))
            return
        roster, turn = trainer.roster, trainer.turn
        if roster is None:
            self.after(0.0, lambda: self.give(machine, p.Broken(trainer.step)))
            return
        self._break_others(machine, roster)
        trainer.data = {}
        seconds = self.delay() + (trainer.pace * self.random.random() if self.random.random() < 0.3 else 0)
        self.after(seconds, lambda: self.on(machine, lambda: self._broken(machine, trainer, roster, turn)))

    def _broken(self, machine: Machine, trainer: Trainer, roster: Roster, turn: int) -> None:
        if trainer.roster != roster or trainer.making is not None:
            return
        if trainer.is_committing:
            self.after(0.05, lambda: self.on(machine, lambda: self._broken(machine, trainer, roster, turn)))
            return
        trainer.roster, trainer.turn, trainer.data = None, trainer.turn + 1, {}
        self._break_others(machine, roster)
        self.give(machine, p.Broken(trainer.step))

    def cut_sockets(self, machine: Machine) -> None:
        trainer = self.trainers[machine.uid]
        if trainer.roster is not None:
            self._break_others(machine, trainer.roster)
        if trainer.making is not None:
            self._break_others(machine, trainer.making.roster)

    def _break_others(self, machine: Machine, roster: Roster) -> None:
        """Peers find their connections to this worker closed."""
        for uid in roster.members:
            other, trainer = self.machines[uid], self.trainers[uid]

            def notice(other: Machine = other, trainer: Trainer = trainer) -> None:
                if trainer.roster == roster:
                    self._broken(other, trainer, roster, trainer.turn)
                elif trainer.making is not None and trainer.making.roster == roster:
                    self._fail_making(other, trainer)

            if other is not machine:
                self.travel(
                    machine.uid, uid, lambda other=other, notice=notice: self.on(other, notice), self.delay() * 2
                )

    # --- collectives --------------------------------------------------------------------------------------------

    def _enter(self, machine: Machine, trainer: Trainer, roster: Roster) -> None:
        self.attempts += 1
        trainer.roster, trainer.index, trainer.turn = roster, -1, trainer.turn + 1
        trainer.data = {key: value for key, value in trainer.data.items() if key[0] == roster}
        self._contribute(machine, trainer)

    def _contribute(self, machine: Machine, trainer: Trainer) -> None:
        roster = trainer.roster
        assert roster is not None
        trainer.began = machine.local()
        switch = self.switch_of(machine, trainer)
        data = Data(roster, trainer.index, trainer.step, trainer.has_state, trainer.model, self.now, switch)
        for uid in roster.members:
            other = self.machines[uid]

            def arrive(other: Machine = other) -> None:
                theirs = self.trainers[other.uid]
                if roster in self.announced and other.state.phase is Phase.WAITING and theirs.roster is None:
                    self._switch(other, theirs, roster)  # a joiner learns of the switch by the first data
                theirs.data.setdefault((roster, data.index), {})[machine.uid] = data
                self._look(other, theirs)

            seconds = 0.0 if uid == machine.uid else self.delay()
            self.travel(machine.uid, uid, lambda other=other, arrive=arrive: self.on(other, arrive), seconds)

    def _look(self, machine: Machine, trainer: Trainer) -> None:
        roster = trainer.roster
        if roster is None or trainer.is_committing:
            return
        data = trainer.data.get((roster, trainer.index), {})
        if set(data) != set(roster.members):
            return
        turn = trainer.turn
        if trainer.index >= 0 and not may_commit(machine.state, machine.local()):
            if machine.state.phase is Phase.TRAINING:  # it was away, and will know more soon
                self.after(0.05, lambda: self.on(machine, lambda: self._look(machine, trainer)))
            return
        trainer.is_committing = True

        def end() -> None:
            trainer.is_committing = False
            if trainer.turn != turn or trainer.roster != roster:
                self._look(machine, trainer)
            elif trainer.index == -1:
                self._agree(machine, trainer, roster, data)
            else:
                self._commit(machine, trainer, roster, data)

        self.after(self.delay() * self.random.choice((1, 5)), lambda: self.on(machine, end))

    def _agree(self, machine: Machine, trainer: Trainer, roster: Roster, data: dict[str, Data]) -> None:
        able = [each for each in data.values() if each.has_state]
        assert able, f"nobody in {roster} has the state"
        base = max(each.step for each in able)
        models = {each.model for each in able if each.step == base}
        assert len(models) == 1, f"different models at step {base} of {roster}"
        if trainer.base is not None:
            assert base == trainer.base, f"{roster} begins at {base}, but its convener has said {trainer.base}"
        self.record.agree(roster, base)
        trainer.step, trainer.model, trainer.has_state = base, models.pop(), True
        self.give(machine, p.Agreed(base))
        if machine.state.phase is Phase.TRAINING:
            self._next(machine, trainer)

    def _next(self, machine: Machine, trainer: Trainer) -> None:
        roster = trainer.roster
        trainer.index, trainer.turn = trainer.step, trainer.turn + 1
        turn = trainer.turn

        def begin() -> None:
            if trainer.turn == turn and trainer.roster == roster:
                self._contribute(machine, trainer)
                self._look(machine, trainer)

        long = self.random.uniform(4, 9) if self.faulty and self.random.random() < 0.01 else 0.0
        self.after(trainer.pace * self.random.uniform(0.5, 1) + long, lambda: self.on(machine, begin))

    def _commit(self, machine: Machine, trainer: Trainer, roster: Roster, data: dict[str, Data]) -> None:
        number = roster.number
        assert not machine.exited
        assert machine.state.phase in (Phase.TRAINING, Phase.BREAKING), f"{machine.uid} commits {machine.state.phase}"
        models = {each.model for each in data.values()}
        assert len(models) == 1, f"{roster} trains different models"
        trainer.step += 1
        trainer.model = hash((trainer.model, trainer.step, number))
        self.record.commit(roster, trainer.step, max(each.began for each in data.values()))
        self.commits += 1
        self.last_commit = self.now
        self.log(f"{machine.uid} commits {trainer.step} under {number}")
        self.give(machine, p.Committed(trainer.step, trainer.began))
        if self.last is not None and trainer.step >= self.last:
            self.kill(machine)
            self.cut_sockets(machine)
            return
        switch = next((each.switch for each in data.values() if each.switch is not None), None)
        if switch is not None and machine.state.phase in (*IN_ATTEMPT, Phase.BREAKING):
            self._switch(machine, trainer, switch)
        elif machine.state.phase is Phase.TRAINING:
            self._next(machine, trainer)

    def _switch(self, machine: Machine, trainer: Trainer, roster: Roster) -> None:
        self.give(machine, p.Switched(roster.number))
        formed = machine.state.standing.formed
        is_other = formed is not None and formed.number == roster.number and formed != roster
        assert not is_other, f"{machine.uid} goes over to {formed}, and others to {roster}"
        if machine.state.standing.formed == roster:
            self.note_formed(roster)
        if machine.state.phase is Phase.AGREEING and machine.state.standing.formed == roster:
            trainer.base = None
            self._enter(machine, trainer, roster)
