"""What the steps of one process share, on workers and on a parameter server, whatever their protocol."""

from __future__ import annotations

from dataclasses import dataclass

from heterotrain.data.sampler import Rules
from heterotrain.state.training_state import TrainingState
from heterotrain.training.accounts import Accounts
from heterotrain.training.context import Context
from heterotrain.training.group import Group
from heterotrain.training.subject import Subject


@dataclass(frozen=True, slots=True)
class StepParts:
    """One of each, of one process; the `state` is that of its replica."""

    context: Context
    subject: Subject
    state: TrainingState
    rules: Rules
    group: Group
    accounts: Accounts
