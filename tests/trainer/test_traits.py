"""What scripts must have in common is said in words that are short, and differ wherever scripts do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from heterotrain.contract import TrainingConfig
from heterotrain.data.evaluation import Evaluation
from heterotrain.data.order import Order
from heterotrain.data.source import Source
from heterotrain.peers import LONGEST_WORD
from heterotrain.state.training_state import TrainingState
from heterotrain.training.subject import Subject
from heterotrain.training.traits import LIBRARY, library_of, traits_of

CPU = torch.device("cpu")
CONFIG = TrainingConfig()


class Average:
    """Something that a script registers."""

    def state_dict(self) -> dict[str, object]:
        return {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """There is nothing in it."""


class Script:
    """What one script has made."""

    def __init__(self) -> None:
        model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.subject = Subject(model, self.optimizer, CPU, Order(10, 0))
        self.subject.settle()
        self.state = TrainingState(model, self.optimizer, 10, CONFIG)
        self.evaluation = Evaluation(CONFIG)

    def traits(self) -> dict[str, str]:
        return traits_of(self.subject, self.state, self.evaluation)

    def register(self, every: str = "", **objects: object) -> None:
        self.state.registered.update(objects)
        for name, each in objects.items():
            if every:
                self.subject.schedules.add(name, each, "step" if every == "step" else "epoch")


def scheduled(every: str) -> Script:
    script = Script()
    script.register(every, rate=torch.optim.lr_scheduler.ConstantLR(script.optimizer))
    return script


def averaged(name: str) -> Script:
    script = Script()
    script.register(**{name: Average()})
    return script


def evaluated(samples: int, every_steps: int | None) -> Script:
    script = Script()
    script.evaluation.declare(Source([0] * samples), lambda *_: {}, every_steps, CPU)  # type: ignore[arg-type]
    return script


def test_scripts_that_register_or_evaluate_otherwise_differ() -> None:
    scripts = [
        Script(),
        averaged("ema"),
        averaged("average"),
        scheduled("step"),
        scheduled("epoch"),
        evaluated(8, None),
        evaluated(9, None),
        evaluated(9, 5),
    ]
    assert len({str(each.traits()) for each in scripts}) == len(scripts)


def test_the_order_in_which_objects_are_registered_is_the_scripts_own_affair() -> None:
    first, second = Script(), Script()
    first.register(a=Average(), b=Average())
    second.register(b=Average(), a=Average())
    assert first.traits() == second.traits()


@pytest.mark.parametrize("last", ["x", "y"])
def test_many_objects_make_no_long_trait(last: str) -> None:
    script, other = Script(), Script()
    for number in range(5000):
        script.register(**{f"object-{number:05}": Average()})
    other.register(**script.state.registered)
    other.register(**{f"object-{last}": Average()})
    traits = script.traits()
    assert max(map(len, traits.values())) < LONGEST_WORD / 2
    assert traits != other.traits()


def test_builds_of_the_library_differ_by_what_is_in_their_files_and_by_where_it_is(tmp_path: Path) -> None:
    def build(name: str, **files: str) -> str:
        for file, text in files.items():
            path = tmp_path / name / file.replace("_", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".py").write_text(text, encoding="utf-8")
        return library_of(tmp_path / name)

    builds = [build("a", x="1", y_z="2"), build("b", x="2", y_z="2"), build("c", x="1", z="2"), build("d", x="1")]
    assert len(set(builds)) == len(builds)
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / ".#x.py").symlink_to("nobody@nowhere.1")  # as an editor locks what it edits
    assert build("e", y_z="2", x="1") == builds[0]
    assert next(iter(Script().traits())) == LIBRARY
