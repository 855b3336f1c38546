"""When checkpoints of the job are written, and which worker writes them."""

from __future__ import annotations

from heterotrain import contract
from heterotrain.state.training_state import TrainingState
from heterotrain.training.accounts import Accounts
from heterotrain.training.context import Context
from heterotrain.training.group import Group


class Saving:
    """The checkpoints of a job, as one of its workers sees them. All workers call it at the same boundary."""

    def __init__(self, context: Context, state: TrainingState, group: Group, accounts: Accounts) -> None:
        self._context = context
        self._metrics = context.metrics
        self._state = state
        self._group = group
        self._accounts = accounts

    @property
    def is_elastic(self) -> bool:
        """Whether this worker is one of a job whose members may change, as its operator says."""
        return self._context.worker is not None and self._context.worker.elastic

    @property
    def others_go_on(self) -> bool:
        """Whether the other members go on without this one, if it leaves or falls silent."""
        return self.is_elastic and self._group.protocol >= contract.MEMBERS_MAY_END

    @property
    def may_write(self) -> bool:
        """Whether this worker writes the job's checkpoints. Others may lead a job that goes on without it, and what is
        committed may be no whole step."""
        leads = self._context.worker is not None and self._context.plans.leads
        return leads and not self._group.may_lack_sums and (not self.others_go_on or self._group.may_write)

    @property
    def may_write_alone(self) -> bool:
        """Whether this worker writes the job's last checkpoint if the others do not answer: they have not gone on."""
        return self._context.worker is not None and not self._group.is_out and not self._group.may_lack_sums

    def if_due(self) -> None:
        """Begin a checkpoint if one is due; training goes on while it is written. Raises CheckpointError."""
        snapshots = self._state.snapshots
        snapshots.check()
        if self._state.checkpoint_is_due:
            self._accounts.settle()  # the epoch's loss is in the checkpoint
        if self._state.checkpoint_is_due and self._group.unite():
            self.save(writes=self.may_write, beside=True)
            # Everybody's next step holds what the leader waits for, as own time there and as waiting elsewhere.
            self._accounts.mark("checkpoint")
        elif snapshots.disturbs():
            self._accounts.mark("checkpoint")

    def while_holding(self) -> None:
        """Begin a checkpoint of what is committed, if there is none: it may take long, and members may be lost
        meanwhile. Raises CheckpointError."""
        self._state.snapshots.check()
        if not self._state.is_saved and self._group.unite():
            self.save(writes=self.may_write, beside=True)

    def save(self, *, writes: bool, beside: bool = False) -> None:
        """Who `writes` makes a checkpoint of what is committed, or if `beside` begins to. Raises CheckpointError."""
        if writes:
            self._context.series.flush()  # so that the records are those of all that the checkpoint holds
        with self._metrics.phase(contract.PHASE_CHECKPOINTING):
            self._state.save(writes=writes, beside=beside)

    def await_written(self) -> None:
        """Wait for the checkpoint that this worker has begun to write, if there is one. Raises CheckpointError."""
        if self._state.snapshots.under_way:
            with self._metrics.phase(contract.PHASE_CHECKPOINTING):
                self._state.snapshots.wait()
