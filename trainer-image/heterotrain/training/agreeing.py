"""How the members of new groups come to the same state.

The worker that committed most is right. At the start that is the leader, which alone reads the checkpoint; after a
failure it may be any worker, and it is ahead by at most one step. Where members change while they train, those that
stay are all at the same step, and those that join take everything from the first of them.
"""

from __future__ import annotations

import json

import torch

from heterotrain.data.evaluation import Evaluation
from heterotrain.gradients.losses import Losses
from heterotrain.groups.control import broadcast_document, broadcast_tensors, sum_over_ranks
from heterotrain.groups.generation import Generation
from heterotrain.job.plans import Plans
from heterotrain.peers import parse_facts
from heterotrain.state.buffers import SharedBuffers
from heterotrain.state.state_transfer import hand_over
from heterotrain.state.training_state import TrainingState
from heterotrain.training.exchange import Exchange
from heterotrain.training.gathering import Gathering
from heterotrain.training.subject import Subject


class Agreement:
    """One worker's side of it: what it tells the others when they meet, and what it takes over from them."""

    def __init__(
        self,
        *,
        subject: Subject,
        state: TrainingState,
        plans: Plans,
        losses: Losses,
        exchange: Exchange,
        evaluation: Evaluation,
        buffers: SharedBuffers,
    ) -> None:
        self._subject = subject
        self._state = state
        self._plans = plans
        self._losses = losses
        self._exchange = exchange
        self._evaluation = evaluation
        self._buffers = buffers
        self._has_resumed = False  # it has looked for a checkpoint

    def resume(self) -> None:
        """Begin with the newest checkpoint, if there is one. Raises CheckpointError."""
        self._has_resumed = True
        self._state.resume()

    def reach(self, generation: Generation, gathering: Gathering, *, again: bool) -> None:
        """Take over the plan and the losses of the worker that committed most, the first of them by rank, and its state
        on workers that lag behind; `again`: after a failure. Raises RuntimeError if the groups break, CheckpointError
        if the state does not fit.

        Parameters and buffers, and parameters of registered modules, are taken over when a worker meets the others for
        the first time. From then on buffers stay each worker's own, until they are merged.
        """
        rank, exchange = self._plans.rank, self._exchange
        steps, new, done, resumed = self._report(generation, is_new=not gathering.has_met)
        if not gathering.has_met:
            gathering.assembly.switched(generation.number)  # the first that those contribute who have gone over
        if new.all() and not resumed.any() and not steps.any():
            # Whoever has looked for a checkpoint has ended before anybody else had it.
            if rank == 0:
                self.resume()
            steps, new, done, resumed = self._report(generation, is_new=not gathering.has_met)
        newest, source = int(steps.max()), int(steps.argmax())
        facts = parse_facts(broadcast_document(self._facts(again) if rank == source else None, source, generation))
        self._plans.take_over(facts)
        self._losses.take_over(facts.losses, facts.target_reached)
        self._losses.epoch.take_over(facts.epoch_loss)
        self._evaluation.take_over(facts.evaluation)
        self._state.saved_step = facts.saved_step
        exchange.restart()
        exchange.done_agreed = exchange.done_agreed or bool(done.any())
        lag = bool((steps[new.bool()] < newest).all())
        if new.any() and lag:
            self._share_apart(source, generation, takes=bool(new[rank]))
        if int(steps.min()) < newest:
            # Where all that lag are new the others have trained, and what these hold themselves is of no use.
            self._hand_over(source, newest, generation, in_place=lag and not gathering.has_met)
        if new.any() and not lag:
            self._state.snapshots.before_change()
            with self._buffers.kept():  # after a failure they were not merged, and each holds what it has seen alone
                registered = [each for it in self._state.registered_modules.values() for each in it.parameters()]
                broadcast_tensors([*self._subject.tensors(), *registered], source, generation)

    def _report(self, generation: Generation, *, is_new: bool) -> torch.Tensor:
        """By rank: committed steps, and whether it is new, its script has ended the job, and it has looked for a
        checkpoint."""
        ended = self._exchange.done or self._exchange.done_agreed  # whoever said so may have ended since
        own = [self._state.position.step, is_new, ended, self._has_resumed]
        reported = torch.zeros(len(own), generation.world_size, dtype=torch.int64)
        reported[:, generation.rank] = torch.tensor(own)
        sum_over_ranks(reported, generation)
        return reported

    def _facts(self, again: bool) -> bytes:
        losses = {"losses": self._losses.known(), "target_reached": self._losses.target_reached}
        losses |= {"epoch_loss": self._losses.epoch.facts()}
        # Whoever wrote the newest checkpoint may have ended before it was whole, and then nobody else would write it.
        saved_step = 0 if again else self._state.saved_step
        other = {"evaluation": self._evaluation.facts(), "saved_step": saved_step}
        return json.dumps(self._plans.facts() | losses | other).encode()

    def _share_apart(self, source: int, generation: Generation, *, takes: bool) -> None:
        """Give what a whole state lacks to the new workers. They take it before that state: whoever has that one counts
        as having committed as much as the others, and may be the source of the next attempt."""
        apart = self._subject.tensors_apart()
        if not takes and generation.rank != source:
            apart = [torch.empty_like(each) for each in apart]
        broadcast_tensors(apart, source, generation)

    def _hand_over(self, source: int, newest: int, generation: Generation, *, in_place: bool) -> None:
        state = self._state
        received = hand_over(
            state.whole(),
            source,
            generation,
            takes=state.position.step < newest,
            shared=state.is_shared,
            in_place=in_place,
        )
        if received is not None:
            with self._buffers.kept():
                state.load(received)
