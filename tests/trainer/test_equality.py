"""Every split trains the same model. This is the strongest test of the training library. Real processes."""

from pathlib import Path

import pytest
import torch

from heterotrain.contract import TrainingConfig
from trainer.gang import Gang, run_alone

pytestmark = pytest.mark.processes

SCRIPT = "tests/trainer/scripts/train.py"


def train(folder: Path, config: TrainingConfig, *schedule: tuple[int, ...], options: tuple[str, ...] = ()) -> Gang:
    """Train to the end; the plan changes in the middle of epochs, at whatever step it arrives."""
    folder.mkdir()
    with Gang(folder, [SCRIPT, "--out", str(folder), *options], schedule[0], config) as gang:
        for number, batches in enumerate(schedule[1:]):
            gang.await_step(7 + 23 * number)
            gang.follow(*batches)
        gang.succeed()
    return gang


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max((one[key] - other[key]).abs().max().item() for key in one)


@pytest.mark.parametrize(("optimizer", "loss"), [("sgd", "mean"), ("adam", "sum")])
def test_dynamic_and_uniform_batches_and_one_process_train_the_same_model(
    tmp_path: Path, optimizer: str, loss: str
) -> None:
    config = TrainingConfig(epochs=13, seed=7)
    options = ("--optimizer", optimizer, "--loss", loss)
    uniform = train(tmp_path / "uniform", config, (32, 32, 32), options=options)
    dynamic = train(
        tmp_path / "dynamic",
        config,
        (32, 32, 32),
        (60, 36, 0),  # one worker without samples for a while
        (90, 5, 1),
        (0, 48, 48),  # the leader too
        (17, 29, 50),
        options=options,
    )
    alone = run_alone(tmp_path / "alone", [SCRIPT, "--alone", "96", "--epochs", "13", *options])

    assert len({record.version for record in dynamic.series(0)}) == 5
    assert any(record.samples == 0 for record in dynamic.series(2))
    losses = [uniform.losses(), dynamic.losses()]
    assert len(losses[0]) == 13 * 16 >= 200
    assert losses[0].keys() == losses[1].keys()
    worst_loss = max(abs(losses[0][step] - losses[1][step]) for step in losses[0])
    weights = [uniform.saved(), dynamic.saved(), dynamic.saved(2), alone]
    worst_weight = max(difference(weights[0], other) for other in weights[1:])
    print(f"float64, {optimizer}: losses differ by {worst_loss:.1e}, weights by {worst_weight:.1e} after 208 steps")
    assert worst_loss < 1e-10
    assert worst_weight < 1e-10


def test_float32_stays_equal_at_first_and_reports_its_drift(tmp_path: Path) -> None:
    config = TrainingConfig(steps=200, seed=7)
    options = ("--dtype", "float32", "--lr", "0.001", "--early", "20")
    one = train(tmp_path / "uniform", config, (32, 32, 32), options=options)
    other = train(tmp_path / "unequal", config, (70, 20, 6), options=options)
    early = difference(one.saved(name="early"), other.saved(name="early"))
    late = difference(one.saved(), other.saved())
    print(f"float32: weights differ by {early:.1e} after 20 steps, by {late:.1e} after 200")
    assert early < 1e-5


BREAKABLE = TrainingConfig(steps=30, seed=7)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Gang:
    return train(tmp_path_factory.mktemp("calm") / "run", BREAKABLE, (40, 40, 16))


@pytest.mark.parametrize(
    ("worker", "kind"), [("w-1", "before"), ("w-0", "before"), ("w-2", "after"), ("w-0", "after"), ("w-1", "control")]
)
def test_one_failing_collective_changes_nothing(tmp_path: Path, calm: Gang, worker: str, kind: str) -> None:
    number = "2" if kind == "control" else "12"
    command = ["tests/trainer/scripts/break_collective.py", worker, kind, number, SCRIPT, "--out", str(tmp_path)]
    with Gang(tmp_path, command, (40, 40, 16), BREAKABLE) as gang:
        gang.succeed()
    steps = [[record.step for record in gang.series(rank)] for rank in range(3)]
    # A worker whose part of a step arrived, but which did not learn of it, takes the others' result over.
    assert set().union(*steps) == set(range(30))
    assert all(len(each) == len(set(each)) >= 29 for each in steps)
    assert any(record.mark == "replay" for record in gang.series(0)), "nothing went wrong"
    assert difference(calm.saved(), gang.saved(0)) < 1e-12
    assert difference(gang.saved(0), gang.saved(1)) == 0
    assert difference(gang.saved(0), gang.saved(2)) == 0


def test_an_example_script_survives_a_failing_collective_unchanged(tmp_path: Path) -> None:
    def weights(folder: Path, *breaking: str) -> dict[str, torch.Tensor]:
        folder.mkdir()
        config = TrainingConfig(steps=20, seed=7, checkpoint_path=str(folder / "checkpoints"))
        with Gang(folder, [*breaking, "examples/digits.py", "--width", "8"], (40, 40, 16), config) as gang:
            gang.succeed()
        assert any(record.mark == "replay" for record in gang.series(0)) == bool(breaking)
        last = torch.load(folder / "checkpoints" / "step-0000000020.pt", weights_only=True)
        return dict(last["model"])

    breaking = ("tests/trainer/scripts/break_collective.py", "w-1", "before", "12")
    worst = difference(weights(tmp_path / "calm"), weights(tmp_path / "broken", *breaking))
    print(f"float32 example: weights differ by {worst:.1e} from the undisturbed run")
    assert worst < 1e-6
