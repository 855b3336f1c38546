"""Whatever a script does in its loop, its replicas equal one process's model; where they do not, the job stops."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from heterotrain.contract import TrainingConfig
from heterotrain.state.replica_check import difference
from trainer.gang import Gang
from trainer.habits import EPOCHS, KINDS, SEED, train_plainly
from trainer.story import BREAK, EXACT, in_double

HABIT = "tests/trainer/scripts/train_habit.py"


@pytest.mark.processes
@pytest.mark.parametrize(
    "kind", [kind if kind in ("average", "cnn") else pytest.param(kind, marks=pytest.mark.long) for kind in KINDS]
)
def test_a_loop_with_habits_trains_the_model_of_plain_pytorch(tmp_path: Path, kind: str) -> None:
    """A worker without samples, one that needs several passes for its micro-batches, a failing collective and a new
    plan in the middle of it."""
    config = TrainingConfig(epochs=EPOCHS, seed=SEED)
    command = [*BREAK, "w-0", "before", "12", HABIT, kind, str(tmp_path)]
    first, later = ((12, 0, 4), (3, 12, 1)) if kind in ("gpt", "resnet18") else ((14, 0, 10), (3, 20, 1))
    with Gang(tmp_path, command, first, config, micro=(4, 0, 0)) as gang:
        gang.await_step(7)
        gang.publish(*later, micro=(0, 6, 0))
        gang.succeed()
    with in_double():
        plain = train_plainly(kind)
    saved = [gang.saved(rank) for rank in range(3)]
    worst = max((each[key] - plain[key]).abs().max().item() for each in saved for key in plain)
    assert worst < EXACT, f"weights differ by {worst:.1e} from those of a plain loop"
    assert saved[0]["largest"] <= 4, "no batch is larger than the micro-batches' limit"
    assert any(record.mark == "replay" for record in gang.series(0)), "nothing went wrong"
    assert len({record.version for record in gang.series(0)}) == 2


SCRIPT = """
import os, random, numpy, torch, heterotrain
from torch import nn
s = heterotrain.join()
name = os.environ["HETEROTRAIN_WORKER"]
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("mask", torch.ones(3))
    def forward(self, inputs):
        if self.training:
            self.steps += 1
            self.seen.mul_(0.5).add_(inputs.mean(0))
        return self.layer(inputs * self.mask)
torch.manual_seed(0)
m = Model()
o = torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.5)
d = torch.utils.data.TensorDataset(torch.arange(96.0).reshape(32, 3) / 96, torch.ones(32, 1))
m, o, bs = s.prepare(m, o, d)
for x, y in bs:
    {body}
    s.scale(nn.functional.mse_loss(m(x), y)).backward()
    o.step(); o.zero_grad()
print(name, "ends with", m.steps.item(), m.seen.sum().item())
"""


def script(folder: Path, body: str = "pass") -> list[str]:
    path = folder / "script.py"
    path.write_text(SCRIPT.replace("{body}", body))
    return [str(path)]


NOISE = "print('noise', name, s.step, torch.rand(()).item(), random.random(), numpy.random.rand())"


def draws(gang: Gang) -> list[tuple[tuple[str, int], list[str]]]:
    """What workers drew, with their names and the step: from torch, Python and NumPy."""
    found = re.findall(r"noise (\S+) (\d+) (\S+) (\S+) (\S+)", gang.logs())
    return [((name, int(step)), numbers) for name, step, *numbers in found]


def repeats(drawn: Sequence[tuple[tuple[str, int], list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """What a worker drew in a step once more, with the place of what it drew there first."""
    first: dict[tuple[str, int], int] = {}
    for place, (key, numbers) in enumerate(drawn):
        if key in first:
            yield first[key], numbers
        first.setdefault(key, place)


def noise(gang: Gang) -> dict[tuple[str, int], list[str]]:
    """What they drew last in each step."""
    return dict(draws(gang))


@pytest.mark.processes
def test_random_numbers_belong_to_seed_worker_and_step(tmp_path: Path) -> None:
    def run(part: str, steps: int, generation: int = 1, seed: int = 3) -> dict[tuple[str, int], list[str]]:
        config = TrainingConfig(steps=steps, seed=seed, checkpoint_path=str(tmp_path / "checkpoints" / part))
        folder = tmp_path / f"{part}-{generation}"
        folder.mkdir()
        with Gang(folder, script(tmp_path, NOISE), (6, 2), config, generation=generation) as gang:
            gang.succeed()
        return noise(gang)

    whole, other = run("whole", 12), run("other", 4, seed=4)
    resumed = run("parts", 5) | run("parts", 12, generation=2)
    assert len(whole) == 24
    assert [len({numbers[kind] for numbers in whole.values()}) for kind in range(3)] == [24, 24, 24]
    assert {key: numbers[0] for key, numbers in resumed.items()} == {key: each[0] for key, each in whole.items()}
    assert [len({numbers[kind] for numbers in resumed.values()}) for kind in range(3)] == [24, 24, 24]
    assert not {each[0] for each in other.values()} & {each[0] for each in whole.values()}


@pytest.mark.processes
def test_buffers_become_those_of_the_worker_that_saw_most_and_a_replayed_step_draws_the_same_again(
    tmp_path: Path,
) -> None:
    config = TrainingConfig(steps=12, checkpoint_path=str(tmp_path))
    command = [*BREAK, "w-2", "before", "5", *script(tmp_path, NOISE)]
    with Gang(tmp_path, command, (0, 2, 6), config) as gang:
        gang.succeed()
        ends = re.findall(r"(\S+) ends with (\d+) (\S+)", gang.logs())
        drawn = draws(gang)
    again = [(drawn[first][1], numbers) for first, numbers in repeats(drawn)]
    assert again
    for one, other in again:
        assert [a == b for a, b in zip(one, other, strict=True)] == [True, False, False], "torch's alone"
    written = torch.load(tmp_path / "step-0000000012.pt", weights_only=True)["model"]
    assert any(record.mark == "replay" for record in gang.series(2))
    assert len(ends) == 3
    assert len({end[1:] for end in ends}) == 1
    assert written["steps"].item() == int(ends[0][1]) == 12
    assert written["seen"].sum().item() == float(ends[0][2]) > 0


EQUAL_AT = re.compile(r"equal at step (\d+) still; last checkpoint known to be equal: checkpoint of step (\d+)")

FLIP = """
    if s.step == 100 and name == "w-1":
        bits = m.layer.weight.data.view(torch.int32)
        bits[0, 1] ^= 1
"""


@pytest.mark.processes
def test_one_flipped_bit_stops_the_job_and_says_whose_it_is(tmp_path: Path) -> None:
    config = TrainingConfig(
        steps=400, checkpoint_path=str(tmp_path / "checkpoints"), checkpoint_every_steps=10, checkpoint_keep=50
    )
    with Gang(tmp_path, script(tmp_path, FLIP.strip()), (4, 2, 2), config) as gang:
        assert gang.wait() == [1, 1, 1]
    for rank in range(3):
        ending = gang.ending(rank)
        assert ending.fatal
        assert not ending.script_error
        assert "parameters or optimizer state of w-1 differ from the others'" in ending.message
        equal = EQUAL_AT.search(ending.message)
        assert equal is not None, ending.message
        assert int(equal[1]) <= 100 < int(ending.step) <= 100 + 2 * 64
        assert int(equal[2]) <= int(equal[1])


ONCE = 'o.param_groups[0]["lr"] = 0.02 if s.step == 100 and name == "w-1" else 0.01'


@pytest.mark.processes
def test_a_learning_rate_that_differs_in_a_single_step_stops_the_job_and_says_whose_it_is(tmp_path: Path) -> None:
    """Also where no exchange is in that step: most have none."""
    with Gang(tmp_path, script(tmp_path, ONCE), (4, 2, 2), TrainingConfig(steps=400)) as gang:
        assert gang.wait() == [1, 1, 1]
    for rank in range(3):
        assert "hyperparameters of w-1 differ from the others'" in gang.ending(rank).message
        assert 100 < gang.ending(rank).step <= 100 + 2 * 16


LAST = "if s.step == 7 and name == 'w-2': m.layer.weight.data[0, 1] += 1"
BY_HAND = "torch.manual_seed(s.step); frozen.data.add_(torch.rand(3))"


@pytest.mark.processes
@pytest.mark.parametrize(
    "body",
    [LAST, pytest.param(BY_HAND.replace("frozen", "m.frozen"), marks=pytest.mark.long)],
    ids=["in the last step", "frozen"],
)
def test_a_difference_is_found_before_the_job_ends_well(tmp_path: Path, body: str) -> None:
    """Too late for an exchange; or in parameters that are not trained, changed in the loop, where one worker has no
    samples."""
    command = script(tmp_path, body)
    path = Path(command[0])
    frozen = "self.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)"
    path.write_text(path.read_text().replace("self.register_buffer(", f"{frozen}; self.register_buffer(", 1))
    with Gang(tmp_path, command, (4, 4, 0 if body != LAST else 2), TrainingConfig(steps=8)) as gang:
        assert gang.wait() == [1, 1, 1]
    for rank in range(3):
        assert "parameters or optimizer state of w-2 differ from the others'" in gang.ending(rank).message
        assert not gang.ending(rank).finished


HIDDEN = {
    "another tensor": "self.seen = 0.5 * self.seen + inputs.detach().mean(0)",
    "behind its version": "self.seen.data.mul_(0.5).add_(inputs.detach().mean(0))",
}


@pytest.mark.processes
@pytest.mark.parametrize("how", ["behind its version", pytest.param("another tensor", marks=pytest.mark.long)])
def test_buffers_are_put_back_and_shared_however_they_are_written(tmp_path: Path, how: str) -> None:
    """All samples are the second worker's, whose buffer takes part in the loss; a step fails, and nothing is done
    twice."""

    def trained(part: str, *breaking: str) -> list[tuple[str, ...]]:
        folder = tmp_path / part
        folder.mkdir()
        command = script(folder)
        path = Path(command[0])
        text = path.read_text().replace("self.seen.mul_(0.5).add_(inputs.mean(0))", HIDDEN[how])
        path.write_text(text.replace("inputs * self.mask", "inputs * self.mask + self.seen"))
        config = TrainingConfig(steps=12, checkpoint_path=str(folder), checkpoint_every_steps=4)
        with Gang(folder, [*breaking, *command], (0, 8), config) as gang:
            gang.succeed()
            return re.findall(r"(\S+) ends with \d+ (\S+)", gang.logs())

    calm = trained("calm")
    assert len({value for _, value in calm}) == 1
    assert sorted(trained("broken", *BREAK, "w-1", "before", "6")) == sorted(calm)


def test_machines_of_different_kinds_may_round_differently_but_not_drift_apart() -> None:
    assert difference("weights", [5.0, 5.0, 5.0], exact=True) is None
    assert difference("weights", [5.0, 6.0, 5.0], exact=True).ranks == (1,)
    assert difference("weights", [1000.0, 1000.1, 999.9], exact=False) is None
    assert difference("weights", [1000.0, 1000.1, 1009.0], exact=False).ranks == (2,)
    assert difference("weights", [float("nan")] * 3, exact=False) is None
    assert difference("weights", [1.0, float("nan"), 1.0], exact=False).ranks == (1,)


OTHER = {
    "another model": "m.add_module('more', nn.Linear(1, 1))",
    "another optimizer": "o = torch.optim.Adam(m.parameters())",
    "another number of samples": "d = torch.utils.data.TensorDataset(torch.ones(31, 3), torch.ones(31, 1))",
}


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.parametrize("message", OTHER)
def test_workers_whose_scripts_differ_are_named_at_the_start(tmp_path: Path, message: str) -> None:
    command = script(tmp_path)
    path = Path(command[0])
    path.write_text(path.read_text().replace("m, o, bs =", f"if name == 'w-1': {OTHER[message]}\nm, o, bs ="))
    with Gang(tmp_path, command, (4, 4), TrainingConfig(steps=3)) as gang:
        assert gang.wait() == [1, 1]
    assert f"w-1 has {message} than w-0" in gang.ending(0).message
