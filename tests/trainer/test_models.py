"""Real models in unequal hands: loading ahead, augmentation, passes, clipping, schedules, padded tokens, BatchNorm,
bfloat16. Real processes.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from heterotrain import sampler
from heterotrain.contract import TrainingConfig
from heterotrain.workloads.digits import digits
from trainer.gang import Gang
from trainer.subjects import train_plainly

pytestmark = pytest.mark.processes


@pytest.fixture
def double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("name", "epochs", "first", "later"),
    [
        # A worker that never has samples, one that needs up to four passes; then others, in the middle of an epoch. A
        # collective fails meanwhile.
        ("cnn", 9, ((14, 0, 10), (4, 0, 0)), ((3, 20, 1), (0, 6, 0))),
        ("resnet18", 3, ((12, 4), (5, 0)), None),
        ("gpt", 6, ((15, 1), (1, 0)), None),
    ],
)
def test_loaded_ahead_augmented_in_passes_clipped_and_scheduled_it_is_the_model_of_plain_pytorch(
    tmp_path: Path,
    name: str,
    epochs: int,
    first: tuple[tuple[int, ...], tuple[int, ...]],
    later: tuple[tuple[int, ...], tuple[int, ...]] | None,
) -> None:
    batches, micro = first
    config = TrainingConfig(epochs=epochs, seed=7)
    breaking = ("tests/trainer/scripts/break_collective.py", "w-0", "before", "12") if name == "cnn" else ()
    command = [*breaking, "tests/trainer/scripts/train_subject.py", name, str(tmp_path)]
    with Gang(tmp_path, command, batches, config, micro=micro) as gang:
        if later is not None:
            gang.await_step(7)
            gang.publish(*later[0], micro=later[1])
        gang.succeed()
    plain = train_plainly(name, epochs, 7)
    saved = [gang.saved(rank) for rank in range(len(batches))]
    worst = max((each[key] - plain[key]).abs().max().item() for each in saved for key in plain)
    print(f"float64, {name}: weights differ by {worst:.1e} from plain PyTorch's")
    assert worst < 1e-10
    assert len({record.version for record in gang.series(0)}) == (1 if later is None else 2)
    assert saved[0]["largest"] <= micro[0]
    assert any(record.mark == "replay" for record in gang.series(0)) == bool(breaking)


def test_batch_norm_is_merged_and_bfloat16_travels_as_float32(tmp_path: Path) -> None:
    samples, batches, seed = 121, (20, 9, 1), 7
    config = TrainingConfig(steps=43, seed=seed, precision="bfloat16", checkpoint_path=str(tmp_path))
    command = ["tests/trainer/scripts/train_normalized.py", str(tmp_path), str(samples)]
    with Gang(tmp_path, command, batches, config) as gang:
        gang.succeed()

    for rank in range(3):
        noted = json.loads((tmp_path / f"w-{rank}.json").read_text())
        assert noted == {"computed": ["torch.bfloat16"], "travelled": ["torch.float32"]}
    losses = gang.losses()
    assert losses[42] < losses[0] / 3

    # 121 samples in steps of 30: neither a last step of one sample, nor a worker with one.
    sizes = [30, 30, 30, 29, 2]
    series = [gang.series(rank) for rank in range(3)]
    assert [sum(records[step].samples for records in series) for step in range(5)] == sizes
    assert all(record.samples != 1 for records in series for record in records)
    assert gang.logs().count("the model has BatchNorm") == 1

    # Each layer held the moments of the last batch that it saw; they weigh as much as all that it saw.
    images = digits().tensors[0].flatten(1).double()
    total, first, second = 0, torch.zeros(64).double(), torch.zeros(64).double()
    for rank, records in enumerate(series):
        last = [record for record in records if record.samples][-1]
        cursor = sum(sizes[: last.step % 5])
        start, stop = sampler.rank_slice(batches, rank, sizes[last.step % 5], least=2)
        batch = images[sampler.epoch_order(samples, seed, last.epoch)[cursor + start : cursor + stop]]
        weight = sum(record.samples for record in records)
        total, first = total + weight, first + weight * batch.mean(0)
        second += weight * (batch.var(0) + batch.mean(0) ** 2)
    mean = first / total
    for rank in range(3):
        saved = gang.saved(rank)
        assert torch.allclose(saved["1.running_mean"].double(), mean, atol=1e-5)
        assert torch.allclose(saved["1.running_var"].double(), second / total - mean**2, atol=1e-5)
    written = torch.load(tmp_path / "step-0000000043.pt", weights_only=True)
    assert torch.equal(written["model"]["1.running_mean"], gang.saved(2)["1.running_mean"])
