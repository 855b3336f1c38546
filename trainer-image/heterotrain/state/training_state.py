"""Everything that a job's training consists of, packed for checkpoints and for ranks that lag behind."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from heterotrain.contract import TrainingConfig
from heterotrain.data.order import PERMUTATION, Order
from heterotrain.data.sampler import Position
from heterotrain.origin import Origin
from heterotrain.state import checkpoint
from heterotrain.state.checkpoint import CheckpointError, MisfitError
from heterotrain.state.epoch_loss import EpochLoss, are_facts
from heterotrain.state.owner import Ownership
from heterotrain.state.snapshot import Snapshots, Target
from heterotrain.state.state_copy import tensors_in
from heterotrain.state.structure import Structure, restore


class KeptLedger(Protocol):
    """What of an asynchronous job's samples is applied, which the position alone does not say."""

    def document(self) -> dict[str, Any]:
        """For a checkpoint."""
        ...

    def load(self, document: object, position: Position) -> None:
        """Take over a checkpoint's document, None if it has none. Raises CheckpointError."""
        ...


log = logging.getLogger(__name__)

_NAMED = 5


class TrainingState:
    """Position, model, optimizer and whatever else the user registered; nothing of a rank."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset_length: int,
        config: TrainingConfig,
        job_uid: str = "",
        *,
        snapshots: Snapshots | None = None,
        order: Order | None = None,
    ) -> None:
        """Without a `job_uid` it is not known which job wrote a checkpoint, and other jobs are not kept out of the
        folder here. `order` is that of the samples, which goes on as a checkpoint says."""
        self.snapshots = Snapshots() if snapshots is None else snapshots
        self.position = Position()
        self.epoch_loss = EpochLoss()
        self.structure: Structure | None = None  # if it is another than when the script's loop began
        self.registered: dict[str, Any] = {}
        self.ledger: KeptLedger | None = None
        self.saved_steps: list[int] = []  # of checkpoints that this process knows to have been written
        self._model = model
        self._optimizer = optimizer
        self._parameters = {(name,) for name, _ in model.named_parameters()}
        self._names: set[str] | None = None  # in the model's state, once the training has begun
        self._dataset_length = dataset_length
        self._config = config
        self._job_uid = job_uid
        self._order = Order(dataset_length, config.seed) if order is None else order
        folder = config.checkpoint_path
        self._ownership = Ownership(Path(folder), job_uid) if folder and job_uid else None
        self.taken_over: Origin | None = None  # what another job has trained, and this one goes on from
        self.saved_step = 0  # the newest step that needs no checkpoint; equal on all ranks at a boundary

    @property
    def registered_modules(self) -> dict[str, nn.Module]:
        """What is registered and has parameters, such as a moving average of the model's; in the same order on all
        ranks."""
        modules = {name: each for name, each in sorted(self.registered.items()) if isinstance(each, nn.Module)}
        return {name: each for name, each in modules.items() if any(True for _ in each.parameters())}

    def checked(self) -> dict[str, Any]:
        """The states of the model, the optimizer and all that is registered. Raises CheckpointError if a checkpoint of
        it could not be read again, naming what is in the way.
        """
        model, optimizer = self._model.state_dict(), self._optimizer.state_dict()
        registered = {name: each.state_dict() for name, each in self.registered.items()}
        checkpoint.check_readable("the model", model)
        checkpoint.check_readable("the optimizer", optimizer)
        for name, state in registered.items():
            checkpoint.check_readable(f"registered object {name!r}", state)
        return {"model": model, "optimizer": optimizer, "registered": registered}

    def check_loads(self) -> None:
        """The training begins. Raises CheckpointError, naming what is in the way, if a checkpoint of it could not be
        read again, or not be loaded."""
        states = self.checked()
        checkpoint.check_loads("the model", self._model, states["model"])
        if type(self._optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict:
            checkpoint.check_loads("the optimizer", self._optimizer, states["optimizer"])
        for name, each in self.registered.items():
            checkpoint.check_loads(f"registered object {name!r}", each, states["registered"][name])
        self._names = _names_in(states["model"])

    def check_names(self) -> None:
        """Raises MisfitError if modules of the model have come to hold other tensors than when the training began, so
        that these could not be loaded where it begins again."""
        names = _names_in(self._model.state_dict())
        if self._names is None or names == self._names or not _loads_as_torch(self._model):
            return
        changed = [name for name in sorted(names ^ self._names) if self._owner_loads_as_torch(name)]
        if changed:
            raise MisfitError(
                f"the model: {', '.join(changed[:_NAMED])} came or went since the loop began, so no checkpoint could "
                "be resumed; make all parameters and buffers before session.prepare(), by a first forward for example, "
                "or register buffers with persistent=False"
            )

    def _owner_loads_as_torch(self, name: str) -> bool:
        try:
            owner = self._model.get_submodule(name.rpartition(".")[0])
        except AttributeError:
            return False
        hooked = owner._load_state_dict_pre_hooks
        return type(owner)._load_from_state_dict is nn.Module._load_from_state_dict and not hooked

    def whole(self) -> dict[str, Any]:
        """The whole state; its tensors are the very ones that are trained. Raises CheckpointError as `checked`."""
        return {
            **self._described_order(),
            "step": self.position.step,
            "epoch": self.position.epoch,
            "cursor": self.position.cursor,
            "reached_in": self.position.reached_in,
            "seed": self._config.seed,
            "dataset_length": self._dataset_length,
            "job_uid": self._job_uid,
            "epoch_loss": self.epoch_loss.facts(),
            **({} if self.structure is None else {"structure": self.structure}),
            **self.checked(),
        }

    def _described_order(self) -> dict[str, Any]:
        if self.ledger is not None:
            own = {"schema": checkpoint.SCHEMA_WITH_LEDGER, "ledger": self.ledger.document()}
            return own | ({} if self._order.kind == PERMUTATION else {"order": self._order.kind})
        if self._order.kind == PERMUTATION:
            return {"schema": checkpoint.SCHEMA}
        return {"schema": checkpoint.SCHEMA_WITH_ORDER, "order": self._order.kind}

    def is_shared(self, path: tuple[Any, ...]) -> bool:
        """Whether what a path in the whole state leads to is the same on all ranks after the same step: parameters, and
        what the optimizer knows of them. Buffers are each rank's own until they are merged, and nobody knows about what
        users register."""
        if path[0] == "model":
            return path[1:] in self._parameters
        return path[:2] == ("optimizer", "state")

    def load(self, state: dict[str, Any]) -> str:
        """Take over the state of another rank, or of an earlier run. Returns the UID of its job, empty if it has none.

        Raises CheckpointError if it does not fit this job, model or optimizer.
        """
        position = checkpoint.check_fits(state, seed=self._config.seed, dataset_length=self._dataset_length)
        kind, ledger = checkpoint.order_of(state), state.get("ledger")
        if self.ledger is None:
            checkpoint.check_nothing_is_open(ledger, position)
        else:
            self.ledger.load(ledger, position)
        self.snapshots.before_change()
        try:
            if "structure" in state:
                restore(state["structure"], self._model, self._optimizer)
                self.structure = state["structure"]
            self._model.load_state_dict(_of_one_model(state["model"], self._names))
            self._optimizer.load_state_dict(state["optimizer"])
            for name, each in self.registered.items():
                each.load_state_dict(state["registered"][name])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"the checkpoint of step {position.step} does not fit: {error}") from error
        self.position = position
        if kind != self._order.kind:
            log.info("the order of samples goes on as %s, as the checkpoint has it", kind)
            self._order.kind = kind
        if are_facts(state.get("epoch_loss")):
            self.epoch_loss.take_over(state["epoch_loss"])
        wrote = state.get("job_uid")
        return wrote if isinstance(wrote, str) else ""

    @property
    def checkpoint_is_due(self) -> bool:
        """Whether this boundary is one for a checkpoint; the same on all ranks."""
        step = self.position.step
        due = step % self._config.checkpoint_every_steps == 0 and step != self.saved_step
        return self._config.checkpoint_path is not None and due

    @property
    def is_saved(self) -> bool:
        """Whether this boundary needs no checkpoint any more; the same on all ranks."""
        return self._config.checkpoint_path is None or self.position.step == self.saved_step

    def save(self, *, writes: bool, beside: bool = False) -> None:
        """Write a checkpoint of what is committed, unless there is one already, and wait until it is on the disk; or,
        if `beside`, only until the state is copied that may change before `snapshots.before_change`.

        `writes` is true on the leader alone; the others only note that it is done. Raises CheckpointError, also for a
        checkpoint before this one.
        """
        folder, step = self._config.checkpoint_path, self.position.step
        if folder is None:
            return
        if writes and not beside:
            self.snapshots.wait()
        if step == self.saved_step and not (writes and step == self.snapshots.lost_step):
            return
        if writes:
            self.check_names()
            if self._ownership is not None:
                self._ownership.confirm()
            target = Target(Path(folder), step, self._config.checkpoint_keep)
            if beside:
                self._begin(target)
            else:
                self.snapshots.write(target, self.whole())
        self.saved_step = step
        self.saved_steps = [*self.saved_steps, step][-self._config.checkpoint_keep :]

    def _begin(self, target: Target) -> None:
        state = self.whole()
        optimizer = state["optimizer"]
        later = [*self._model.parameters(), *tensors_in(optimizer["state"])]
        at_once = [*self._model.buffers(), *tensors_in([optimizer["param_groups"], state["registered"]])]
        self.snapshots.begin(target, state, later, at_once)

    def lead(self, leads: bool) -> None:
        """This worker is, or is not, the one that writes the job's checkpoints from now on."""
        if self._ownership is not None:
            self._ownership.lead(leads)

    def release(self) -> None:
        """The job's last checkpoint is written: the folder is free for another job."""
        if self._ownership is not None:
            self._ownership.release()

    def resume(self) -> None:
        """Start from the newest checkpoint, or from the beginning if there is none: the leader alone does so. Raises
        CheckpointError, also if another job writes into the folder."""
        folder = self._config.checkpoint_path
        if self._ownership is not None:
            self._ownership.claim()
        if folder:
            checkpoint.remove_partial(Path(folder))
        state = checkpoint.read_newest(Path(folder)) if folder else None
        if state is None:
            return
        try:
            wrote = self.load(state)
        except CheckpointError as error:
            raise MisfitError(
                f"{error}; it is the newest in {self._config.checkpoint_path} (spec.checkpoint.path): to begin again, "
                "set spec.checkpoint.resume: Never or move it away"
            ) from error
        self.saved_step = self.position.step
        self.saved_steps = [self.saved_step]
        log.info("resumed at step %d, epoch %d", self.position.step, self.position.epoch)
        if self._job_uid and wrote != self._job_uid:
            self.taken_over = Origin(self.position.step, wrote)
            log.warning("that checkpoint is an earlier job's, of the UID %s", wrote or "that it does not say")


def _of_one_model(state: Any, own: set[str] | None) -> Any:
    """The state of a model. Earlier versions kept one that came by way of accelerate as a list of one."""
    if own and _names_in(state) == {f"0.{name}" for name in own}:
        return {name.removeprefix("0."): each for name, each in state.items()}
    return state


def _loads_as_torch(module: nn.Module) -> bool:
    return type(module).load_state_dict is nn.Module.load_state_dict


def _names_in(state: Any) -> set[str]:
    return set(map(str, state)) if isinstance(state, dict) else set()
