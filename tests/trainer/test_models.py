"""Models with more than weights: BatchNorm, bfloat16, parts that a forward leaves out. Real processes."""

import dataclasses
import json
import signal
from pathlib import Path

import pytest
import torch

from heterotrain import contract
from heterotrain.contract import TrainingConfig
from heterotrain.data import sampler
from heterotrain.workloads.digits import digits
from trainer.gang import Gang, run_alone
from trainer.story import BREAK

pytestmark = pytest.mark.processes

NORMALIZED = "tests/trainer/scripts/train_normalized.py"
UNUSUAL = "tests/trainer/scripts/unusual.py"

WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
"""Some virtual machines name AMX among their processor's features and end a process that uses it, as torch's bfloat16
does."""


def test_batch_norm_is_merged_and_bfloat16_travels_as_float32(tmp_path: Path) -> None:
    samples, batches, seed = 121, (20, 9, 1), 7
    config = TrainingConfig(steps=43, seed=seed, precision="bfloat16", checkpoint_path=str(tmp_path))
    command = [NORMALIZED, str(tmp_path), str(samples), "1"]
    with Gang(tmp_path, command, batches, config, environment=WITHOUT_AMX) as gang:
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


@pytest.mark.long
def test_a_job_with_batch_norm_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    command = [NORMALIZED, str(tmp_path), "121", "0.1"]
    config = TrainingConfig(steps=100_000, seed=7, checkpoint_path=str(tmp_path), checkpoint_every_steps=10)
    with Gang(tmp_path, command, (20, 10), config) as gang:
        gang.await_step(25)
        gang.stop(signal.SIGKILL)
        gang.wait()
    resumed = newest_step(tmp_path)
    config = dataclasses.replace(config, steps=resumed + 25)
    with Gang(tmp_path, command, (10, 20), config, generation=2) as second:
        second.succeed()
    for rank in range(2):
        series = second.series(rank)
        assert [record.step for record in series] == list(range(resumed, resumed + 25))
        assert all(record.mark != "replay" for record in series)
    assert newest_step(tmp_path) == resumed + 25


def newest_step(folder: Path) -> int:
    return max(int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.pt"))


@pytest.mark.parametrize("kind", ["after", pytest.param("before", marks=pytest.mark.long)])
def test_a_failed_step_leaves_the_running_statistics_of_all_workers_as_they_were(tmp_path: Path, kind: str) -> None:
    """All samples are the second worker's, which fails in the last step but one. That is done again; or the other one
    has committed it: then the statistics of that step are lost, and no others."""
    samples, seed, steps, momentum = 120, 7, 12, 0.1
    script = [NORMALIZED, str(tmp_path), str(samples), str(momentum)]
    breaking = [*BREAK, "w-1", kind, str(steps - 1)]
    with Gang(tmp_path, [*breaking, *script], (0, 30), TrainingConfig(steps=steps, seed=seed)) as gang:
        gang.succeed()
    assert any(record.mark == "replay" for record in gang.series(1))
    committed = {record.step for record in gang.series(1)}
    assert len(committed) >= steps - 1
    images = digits().tensors[0].flatten(1)
    mean, variance = torch.zeros(64), torch.ones(64)
    for epoch in range(3):
        for number, indices in enumerate(sampler.epoch_order(samples, seed, epoch).split(30)):
            if 4 * epoch + number not in committed:
                continue
            mean += momentum * (images[indices].mean(0) - mean)
            variance += momentum * (images[indices].var(0) - variance)
    for rank in range(2):
        assert torch.allclose(gang.saved(rank)["1.running_mean"], mean, atol=1e-5)
        assert torch.allclose(gang.saved(rank)["1.running_var"], variance, atol=1e-5)


def test_workers_that_seed_differently_start_from_the_leaders_weights_and_buffers(tmp_path: Path) -> None:
    """And what every step holds, such as a look at the model, is measured with it."""
    with Gang(tmp_path, [UNUSUAL, "looks", "--out", str(tmp_path)], (6, 2), TrainingConfig(steps=14)) as gang:
        gang.succeed()
    first, second = gang.saved(0), gang.saved(1)
    assert "offset" in first
    assert first["epoch_loss"] > 0
    assert all(torch.equal(first[name], second[name]) for name in first)
    for rank in range(2):
        marks = [record.mark for record in gang.series(rank)]
        assert marks[1:10] == ["evaluation"] * 9
        assert marks[10:] == [""] * 4


def test_what_is_unfrozen_between_two_epochs_is_trained_by_newcomers_and_after_a_restart(tmp_path: Path) -> None:
    command = [UNUSUAL, "thaws", "--out", str(tmp_path)]
    config = TrainingConfig(steps=31, checkpoint_path=str(tmp_path / "checkpoints"))
    environment = {contract.ENV_WARM_UP: "1"}
    with Gang(tmp_path, command, (6, 2), config, environment=environment) as gang:
        gang.await_step(4)
        gang.start(0)
        gang.await_phase(2, contract.PHASE_WAITING)
        gang.change({0: 3, 1: 0, 2: 5})
        gang.await_generation(0, 1, 2)
        (tmp_path / "joined").touch()
        gang.succeed()
    with Gang(tmp_path, command, (2, 6), dataclasses.replace(config, steps=34), generation=3) as second:
        second.succeed()
    alone = run_alone(tmp_path / "alone", command[:2])
    for rank in range(2):
        saved = second.saved(rank)
        for part in ("used.weight", "left_out.bias", "left_out.weight", "epoch_loss"):
            assert torch.allclose(alone[part], saved[part], atol=1e-10), part


def test_workers_that_unfreeze_other_parts_are_named(tmp_path: Path) -> None:
    with Gang(tmp_path, [UNUSUAL, "thaws-apart", "--out", str(tmp_path)], (6, 2), TrainingConfig(epochs=3)) as gang:
        assert all(gang.wait())
    assert any("train other parameters, or in other groups" in gang.ending(rank).message for rank in range(2))


@pytest.mark.parametrize("when", ["meets-within", pytest.param("meets-before", marks=pytest.mark.long)])
def test_the_default_process_group_is_the_scripts_own(tmp_path: Path, when: str) -> None:
    with Gang(tmp_path, [UNUSUAL, when, "--out", str(tmp_path)], (6, 2), TrainingConfig(steps=4)) as gang:
        gang.succeed()
    for rank in range(2):
        assert gang.saved(rank)["sums"].tolist() == [3.0] * 4
    assert torch.equal(gang.saved(0)["used.weight"], gang.saved(1)["used.weight"])


@pytest.mark.parametrize("kind", ["declared", pytest.param("unused", marks=pytest.mark.long)])
def test_what_the_forward_leaves_out_has_gradients_of_zero_alone_and_in_a_job(tmp_path: Path, kind: str) -> None:
    command = [UNUSUAL, kind, "--out"]
    with Gang(tmp_path, [*command, str(tmp_path)], (6, 2), TrainingConfig(epochs=2)) as gang:
        gang.succeed()
    alone = run_alone(tmp_path / "alone", command[:-1])
    for name, weights in gang.saved(1).items():
        # torch compares few of its types by value
        assert torch.allclose(alone[name].to(torch.complex128), weights.to(torch.complex128), atol=1e-6), name


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("undeclared", "find_unused_parameters=True"),
        pytest.param("unfrozen", "parameter 'used.bias' was made trainable in the loop", marks=pytest.mark.long),
    ],
)
def test_parameters_without_gradients_are_explained(tmp_path: Path, kind: str, message: str) -> None:
    config = TrainingConfig(steps=8, progress_timeout_seconds=2)
    with Gang(tmp_path, [UNUSUAL, kind, "--out", str(tmp_path)], (6, 2), config) as gang:
        assert all(gang.wait())
    assert any(message in gang.ending(rank).message for rank in range(2))
