"""Asynchronous jobs as real processes: a gang of workers and a parameter server, which is one process more of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from heterotrain import contract
from heterotrain.contract import Server, TrainingConfig, UpdateRecord, parse_plan
from heterotrain.data.sampler import epoch_order
from heterotrain.workloads.digits import DigitsCNN, digits
from trainer.gang import Gang
from trainer.story import SEED, in_double, optimizer_of


class ServedGang(Gang):
    """`len(batches)` workers and a server; `server` is the number of its newest process."""

    def __init__(
        self, folder: Path, command: Sequence[str], batches: Sequence[int], config: TrainingConfig, **more: Any
    ) -> None:
        self._named: Server | None = None
        super().__init__(folder, command, batches, replace(config, mode=contract.ASP), **more)
        self.server = self.serve()

    def write(self, document: str) -> None:
        """Replace the plan's document; it names the server."""
        super().write(replace(parse_plan(document), server=self._named).to_json())

    def serve(self, *, command: Sequence[str] = ()) -> int:
        """Start a server, in the place of the one before, and name it in the plan."""
        number = len(self.members)
        member = self.start(0, command=command, more={contract.ENV_ROLE: contract.ROLE_SERVER, contract.ENV_GROUP: ""})
        self.server = number
        self._named = Server(member.name, member.uid, member.address)
        self.plan = replace(self.plan, version=self.plan.version + 1)
        self.write(self.plan.to_json())
        return number

    def updates(self, number: int | None = None) -> list[UpdateRecord]:
        """What a server has applied, in its order."""
        lines = self._lines(self.server if number is None else number)
        return [UpdateRecord.from_json(line) for line in lines if '"staleness"' in line]


def replay(updates: Sequence[UpdateRecord], optimizer: str) -> dict[str, torch.Tensor]:
    """The weights of `scripts/train.py` after these updates, by a plain loop: each gradient is that of the weights of
    its version, on its samples."""
    with in_double():
        data = digits()
        torch.manual_seed(1)
        model = DigitsCNN(8)
        made = optimizer_of(model, optimizer)
        [rate] = {group["lr"] for group in made.param_groups}
        versions = {0: deepcopy(model.state_dict())}
        for number, update in enumerate(updates):
            assert update.step == number and update.version + update.staleness == number
            order = torch.cat([epoch_order(len(data), SEED, update.epoch + later) for later in (0, 1)])
            images, labels = data[order[update.start : update.stop]]
            newest = versions[number]
            model.load_state_dict(versions[update.version])
            made.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(images), labels))
            model.load_state_dict(newest)
            made.param_groups[0]["lr"] = rate * update.factor
            made.step()
            versions[number + 1] = deepcopy(model.state_dict())
        return versions[len(updates)]


def assert_each_sample_once(updates: Sequence[UpdateRecord], epochs: int) -> None:
    """Together they have applied each sample of each epoch once."""
    length = len(digits())
    counts = Counter(
        place for each in updates for place in range(each.epoch * length + each.start, each.epoch * length + each.stop)
    )
    assert set(counts.values()) == {1}, "no sample is applied twice in an epoch"
    assert set(counts) == set(range(epochs * length)), "every sample is applied in each epoch"
