"""Every sample is measured once, by some worker; the target ends the job."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from heterotrain.contract import Evaluated, Member, TrainingConfig
from heterotrain.data.evaluation import Evaluation, Measure
from heterotrain.data.sampler import Position
from heterotrain.data.source import Source
from trainer.gang import Gang
from trainer.story import BREAK

LENGTH = 37
NO_TARGET = TrainingConfig()
CPU = torch.device("cpu")
DATA = TensorDataset(torch.arange(LENGTH, dtype=torch.float64), torch.arange(LENGTH) % 5)


def measured(_model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, object]:
    values, labels = batch
    return {
        "mean": values.sum(),
        "weighted": ((values * labels).sum(), labels.sum()),
        "zeros": int((labels == 0).sum()),
    }


def declared(config: TrainingConfig, measure: Measure = measured, every_steps: int | None = None) -> Evaluation:
    evaluation = Evaluation(config)
    evaluation.declare(Source(DATA), measure, every_steps, CPU)
    return evaluation


def evaluated(sizes: list[int], config: TrainingConfig = NO_TARGET, measure: Measure = measured) -> Evaluation:
    """The last worker's evaluation, which comes to know what all measured."""
    members = [Member(f"w-{rank}", "", "", "", size) for rank, size in enumerate(sizes)]
    documents: list[bytes] = []

    def gather(document: bytes) -> list[bytes] | None:
        documents.append(document)
        return documents if len(documents) == len(sizes) else None

    for rank in range(len(sizes)):
        with declared(config, measure) as evaluation:
            evaluation.run(nn.Linear(1, 1), members, rank, 8, gather, handle=None)
    return evaluation


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(any))
def test_metrics_are_those_of_the_whole_set_for_any_split(sizes: list[int]) -> None:
    weights = [index % 5 for index in range(LENGTH)]
    weighted = sum(index * weight for index, weight in enumerate(weights)) / sum(weights)
    assert evaluated(sizes).values == {
        "mean": pytest.approx((LENGTH - 1) / 2, rel=1e-14),
        "weighted": pytest.approx(weighted, rel=1e-14),
        "zeros": weights.count(0) / LENGTH,
    }


def test_evaluation_is_due_by_epochs_or_steps_and_at_the_end_but_once_per_step() -> None:
    by_epochs, by_steps = declared(TrainingConfig()), declared(TrainingConfig(), every_steps=4)
    positions = [Position(0, 0, 0), Position(3, 0, 9), Position(4, 1, 0), Position(8, 1, 9)]
    assert [by_epochs.is_due(each, at_the_end=False) for each in positions] == [False, False, True, False]
    assert [by_steps.is_due(each, at_the_end=False) for each in positions] == [False, False, True, True]
    assert by_steps.is_due(Position(3, 0, 9), at_the_end=True)
    done = evaluated([1])
    assert not done.is_due(Position(8, 2, 0), at_the_end=True)
    assert not Evaluation(TrainingConfig()).is_due(Position(4, 1, 0), at_the_end=True)


def test_a_target_decides_how_often_and_is_reached_from_the_right_side() -> None:
    config = TrainingConfig(target_metric="mean", target_value=18.0, target_mode="Max", target_every_steps=3)
    assert declared(config, every_steps=50).is_due(Position(3, 0, 9), at_the_end=False)
    assert evaluated([1, 2], config).target_reached
    assert not evaluated([1, 2], TrainingConfig(target_metric="mean", target_value=17.9)).target_reached
    assert not evaluated([1, 2], TrainingConfig(target_value=99.0)).target_reached, "that is the training loss's"


@pytest.mark.parametrize(
    ("measure", "config", "message"),
    [
        (lambda _, batch: {"a": batch[0]}, TrainingConfig(), "a: expected a sum over the batch"),
        (lambda _, batch: {f"a{batch[0][0]}": 1}, TrainingConfig(), "has a0.0, that of another has a"),
        (
            measured,
            TrainingConfig(target_metric="f1", target_value=1.0),
            r"f1 is not measured; .* mean, weighted, zeros",
        ),
    ],
)
def test_a_bad_measure_says_what_is_wrong(measure: Measure, config: TrainingConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluated([9, 9], config, measure)


def test_a_target_that_nothing_measures_is_an_error_at_the_start() -> None:
    with (
        pytest.raises(ValueError, match=r"spec\.training\.target\.metric: nothing measures accuracy"),
        Evaluation(TrainingConfig(target_metric="accuracy", target_value=0.9)),
    ):
        pass


def test_modes_and_random_state_are_as_before() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Linear(1, 1))
    model[1].eval()
    torch.manual_seed(0)
    expected = torch.rand(())
    torch.manual_seed(0)

    def measure(model: nn.Module, batch: object) -> dict[str, float]:
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        return {"noise": torch.rand(()).item()}

    with declared(TrainingConfig(), measure) as evaluation:
        assert evaluation.run(model, [Member("w", "", "", "", 8)], 0, 4, lambda own: [own], handle=model) is not None
    assert [module.training for module in model.modules()] == [True, True, False]
    assert torch.rand(()) == expected


@pytest.mark.processes
def test_a_job_ends_when_its_metric_reaches_the_target_though_an_evaluation_fails_once(tmp_path: Path) -> None:
    config = TrainingConfig(
        epochs=40, seed=7, target_metric="accuracy", target_value=0.6, target_mode="Max", target_every_steps=5
    )
    # Documents are gathered by evaluations alone.
    command = [*BREAK, "w-1", "gather", "1", "tests/trainer/scripts/loaders.py"]
    with Gang(tmp_path, [*command, "--out", str(tmp_path)], (64, 32), config) as gang:
        gang.succeed()
    assert "workers formed again at step 5" in gang.logs()
    records = gang.evaluations()
    assert [record.step for record in records] == list(range(5, 5 * len(records) + 1, 5))
    assert [record.metrics["accuracy"] >= 0.6 for record in records] == [False] * (len(records) - 1) + [True]
    assert max(record.step for record in gang.series(0)) == records[-1].step - 1
    newest = Evaluated.of(records[-1].step, records[-1].metrics.items())
    assert [gang.ending(rank).evaluated for rank in range(2)] == [newest, None], "the leader alone reports it"
    assert {gang.saved(rank, "-metrics")["accuracy"] for rank in range(2)} == {records[-1].metrics["accuracy"]}
