"""Processes that load ahead change nothing: not which samples a step has, how they look, or what is measured."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from heterotrain.contract import TrainingConfig
from heterotrain.workloads.digits import digits
from trainer.gang import Gang, run_alone
from trainer.story import BREAK

SCRIPT = "tests/trainer/scripts/loaders.py"
EPOCHS = 4


def committed(folder: Path) -> Counter[tuple[int, int]]:
    """How often each (epoch, index) was trained on, by all workers."""
    counts: Counter[tuple[int, int]] = Counter()
    for path in folder.glob("*.committed"):
        for line in path.read_text().splitlines():
            _, epoch, indices = line.split(" ")
            counts.update((int(epoch), int(index)) for index in indices.split(","))
    return counts


@pytest.mark.processes
def test_loading_ahead_changes_nothing_while_batches_change_and_a_step_is_replayed(tmp_path: Path) -> None:
    command = [*BREAK, "w-1", "before", "30", SCRIPT]
    command += ["--out", str(tmp_path), "--workers", "2"]
    with Gang(tmp_path, command, (32, 32, 32), TrainingConfig(epochs=EPOCHS, seed=7)) as gang:
        for number, batches in enumerate([(60, 36, 0), (5, 90, 1), (40, 40, 16)]):
            gang.await_step(5 + 14 * number)
            gang.follow(*batches)
        gang.succeed()
    assert len({record.version for record in gang.series(0)}) == 4
    assert any(record.mark == "replay" for record in gang.series(0)), "nothing went wrong"
    assert committed(tmp_path) == {(epoch, index): 1 for epoch in range(EPOCHS) for index in range(len(digits()))}
    alone = run_alone(tmp_path / "alone", [SCRIPT])
    saved = gang.saved()
    worst = max((alone[key] - saved[key]).abs().max().item() for key in alone)
    print(f"float64, loading ahead with augmentation: weights differ by {worst:.1e} from a run alone without")
    assert worst < 1e-10
    metrics = torch.load(tmp_path / "alone" / "alone-metrics.pt")
    assert metrics["accuracy"] > 0.3
    for rank in range(3):
        assert gang.saved(rank, "-metrics") == {name: pytest.approx(metrics[name], abs=1e-10) for name in metrics}
