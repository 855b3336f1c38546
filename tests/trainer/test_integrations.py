"""Loops of accelerate, transformers and Lightning, as they are and in a session: the same weights. Real packages.

With one full batch a step the order of the samples does not matter, so a framework's own loop is what to compare with.
"""

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
import transformers
from accelerate import Accelerator as OwnAccelerator
from accelerate.state import AcceleratorState, PartialState
from lightning.fabric import Fabric
from lightning.pytorch import callbacks
from lightning.pytorch.loggers import CSVLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader

import heterotrain
from heterotrain import contract, refusals
from heterotrain.contract import TrainingConfig
from heterotrain.integrations.accelerate import Accelerator
from heterotrain.integrations.lightning import fit
from heterotrain.integrations.transformers import train
from trainer.gang import REPOSITORY, Gang, run_alone

SCRIPT = "tests/trainer/scripts/frameworks.py"
SAMPLES = [{"input_ids": torch.arange(4), "labels": torch.arange(4)} for _ in range(4)]


@pytest.fixture(autouse=True)
def _forget_accelerates_state() -> Iterator[None]:
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def parts() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(list(torch.eye(4)), batch_size=2)


def test_importing_heterotrain_imports_no_framework() -> None:
    statement = (
        "import sys, heterotrain, heterotrain.session, heterotrain.integrations.lightning;"
        "assert not {'accelerate', 'lightning', 'pytorch_lightning', 'transformers'} & set(sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "trainer-image")}
    subprocess.run([sys.executable, "-c", statement], check=True, env=environment)


@pytest.mark.processes
@pytest.mark.parametrize(
    "framework", ["accelerate", *(pytest.param(each, marks=pytest.mark.long) for each in ("transformers", "lightning"))]
)
def test_unequal_workers_train_what_the_frameworks_own_loop_trains(tmp_path: Path, framework: str) -> None:
    own = run_alone(tmp_path / "own", [SCRIPT, framework, "--own"])
    command = [SCRIPT, framework, "--out", str(tmp_path)]
    batch = {contract.ENV_GLOBAL_BATCH_SIZE: "32"}
    with Gang(tmp_path, command, (22, 0, 10), TrainingConfig(epochs=12, seed=7), environment=batch) as gang:
        gang.succeed()
    weights = [gang.saved(rank) for rank in range(3)]
    worst = max((each[key] - own[key]).abs().max().item() for each in weights for key in own)
    print(f"float64, {framework}: weights differ by {worst:.1e} from those of its own loop")
    assert worst < 1e-10
    if framework == "accelerate":  # the leader alone saves
        assert [path.name for path in tmp_path.glob("*.saved")] == ["w-0.saved"]
        assert (tmp_path / "pretrained" / "config.json").exists()


@pytest.mark.processes
@pytest.mark.parametrize(
    "framework", ["accelerate", *(pytest.param(each, marks=pytest.mark.long) for each in ("transformers", "lightning"))]
)
def test_torchruns_workers_train_what_the_frameworks_own_loop_trains(tmp_path: Path, framework: str) -> None:
    own = run_alone(tmp_path / "own", [SCRIPT, framework, "--own"])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [SCRIPT, framework, "--out", str(tmp_path)]
    path = os.pathsep.join(str(REPOSITORY / each) for each in ("trainer-image", "operator", "tests"))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, timeout=280)
    for rank in range(2):
        weights = torch.load(tmp_path / f"rank-{rank}.pt", weights_only=True)
        assert max((weights[key] - own[key]).abs().max().item() for key in own) < 1e-10


# --- accelerate -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "remedy"),
    [({"mixed_precision": "bf16"}, "precision"), ({"gradient_accumulation_steps": 2}, "global batch")],
)
def test_accelerates_options_that_the_manifest_has_instead_are_refused(options: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        Accelerator(heterotrain.join(), **options)


def test_options_of_accelerate_launch_are_refused_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    with pytest.raises(ValueError, match=r"torch\.autocast.*scaler of fp16 would be each worker's own"):
        Accelerator(heterotrain.join())


def test_scripts_started_by_accelerate_launch_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(RuntimeError, match="accelerate launch"):
        Accelerator(heterotrain.join())


def test_a_process_group_that_accelerate_has_made_is_refused_and_one_of_the_scripts_own_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        Accelerator(heterotrain.join())
    finally:
        torch.distributed.destroy_process_group()
    monkeypatch.setattr(PartialState, "_shared_state", {"num_processes": 2})
    with pytest.raises(RuntimeError, match="before anything of accelerate's is made"):
        Accelerator(heterotrain.join())


def test_accelerate_refuses_what_one_worker_alone_cannot_do() -> None:
    model, optimizer, loader = parts()
    accelerator = Accelerator(heterotrain.join())
    with pytest.raises(ValueError, match=r"session\.evaluate"):
        accelerator.prepare(model, optimizer, loader, loader)
    for name, instead in [("gather", "evaluate"), ("check_trigger", "stop"), ("save_state", "checkpoints")]:
        with pytest.raises(NotImplementedError, match=instead):
            getattr(accelerator, name)(torch.ones(1))
    with pytest.raises(NotImplementedError, match="is_main_process"):
        print(accelerator.process_index)


def test_a_measure_gets_what_accelerate_was_given() -> None:
    model, optimizer, loader = parts()
    session = heterotrain.join(epochs=1)
    accelerator = Accelerator(session)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    session.evaluate(list(torch.eye(4)), lambda given, batch: {"same": len(batch) * (given is model)})
    for inputs in loader:
        accelerator.backward(model(inputs).mean())
        optimizer.step()
        optimizer.zero_grad()
    assert session.metrics["same"] == 1


# --- transformers -----------------------------------------------------------------------------------------------------


def hugging_face(tmp_path: Path, *callbacks: Any, metrics: Any = None, **options: Any) -> transformers.Trainer:
    config = transformers.GPT2Config(
        vocab_size=4, n_positions=4, n_embd=4, n_layer=1, n_head=1, bos_token_id=None, eos_token_id=None
    )
    usual = {"report_to": "none", "num_train_epochs": 1, "eval_strategy": "epoch"}
    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, **{**usual, **options})
    return transformers.Trainer(
        transformers.GPT2LMHeadModel(config),
        arguments,
        train_dataset=SAMPLES,
        eval_dataset=SAMPLES,
        callbacks=list(callbacks),
        compute_metrics=metrics,
    )


class Saves(transformers.TrainerCallback):
    def on_save(self, *_: Any, **__: Any) -> None:
        """Never called."""


class Heard(transformers.TrainerCallback):
    """Notes which events there were."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.logs: list[dict[str, float]] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.events.append("begin")

    def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
        self.events.append(f"step {state.global_step}")

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        self.events.append("epoch")

    def on_evaluate(self, arguments: Any, state: Any, control: Any, metrics: dict[str, float], **_: Any) -> None:
        self.events.append(f"evaluated {sorted(metrics)}")

    def on_log(self, arguments: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        self.logs.append(logs)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.events.append("end")


@pytest.mark.parametrize(
    ("callbacks", "options", "found"),
    [
        ([Saves()], {}, r"Saves\.on_save.*the session writes the checkpoints"),
        ([], {"load_best_model_at_end": True, "save_strategy": "epoch"}, "ends with the newest model"),
        ([], {"metrics": print}, "compute_metrics.*workers send one another sums"),
        ([], {"activation_checkpointing": True}, "own activation_checkpointing_enable"),
        ([], {"neftune_noise_alpha": 1.0}, "neftune_noise_alpha"),
        ([], {"train_sampling_strategy": "group_by_length"}, "order"),
    ],
)
def test_what_a_trainer_would_do_and_a_session_does_not_is_refused(
    tmp_path: Path, callbacks: list[Any], options: dict[str, Any], found: str
) -> None:
    with pytest.raises(ValueError, match=found):
        train(heterotrain.join(), hugging_face(tmp_path, *callbacks, **options))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TensorBoard's
def test_a_trainers_callbacks_and_loggers_are_called_and_may_stop_it_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a learning rate of 0 nothing gets better."""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    heard, session = Heard(), heterotrain.join(epochs=9, batch_size=2)
    early = transformers.EarlyStoppingCallback(early_stopping_patience=2)
    options = {"learning_rate": 0.0, "logging_steps": 1, "metric_for_best_model": "eval_loss", "bf16": True}
    trainer = hugging_face(tmp_path, heard, early, report_to="tensorboard", **options)
    train(session, trainer)
    assert heard.events[:5] == ["begin", "step 1", "step 2", "epoch", "evaluated ['eval_loss']"]
    assert heard.events[-1] == "end"
    assert trainer.state.global_step == session.step < 18
    assert next(logs["loss"] for logs in heard.logs if "loss" in logs) > 0
    events = EventAccumulator(str(tmp_path / "board")).Reload()
    assert [event.step for event in events.Scalars("eval/loss")][:2] == [2, 4]


def test_bf16_of_a_trainer_is_autocast(tmp_path: Path) -> None:
    trainer = hugging_face(tmp_path, bf16=True)
    seen: list[torch.dtype] = []
    trainer.model.transformer.h[0].mlp.c_fc.register_forward_hook(lambda *given: seen.append(given[2].dtype))
    train(heterotrain.join(batch_size=4), trainer)
    assert set(seen) == {torch.bfloat16}
    assert all(each.dtype == torch.float32 for each in trainer.model.parameters())


@pytest.mark.parametrize("padding", [0, 2])
def test_a_models_own_loss_over_padded_labels_is_warned_of(
    tmp_path: Path, padding: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a mean over tokens: over as many of each sample where nothing is padded, though the last has no target."""
    session = heterotrain.join(batch_size=2)
    model = hugging_face(tmp_path).model
    padded = {"input_ids": torch.arange(4), "labels": torch.arange(4).masked_fill(torch.arange(4) >= 4 - padding, -100)}
    data = [*SAMPLES[:2], padded, padded, SAMPLES[0], padded]
    model, optimizer, batches = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
    for batch in batches:
        session.scale(model(**batch).loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert caplog.text.count("the loss is no mean over samples") == bool(padding)


# --- Lightning --------------------------------------------------------------------------------------------------------


class Regression(lightning.LightningModule):
    """Hardly learns anything."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(batch).square().mean()}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2), "interval": "step"}]


class WithHook(Regression):
    def on_train_batch_end(self, *_: Any) -> None:
        """Never called."""


class ByHand(Regression):
    automatic_optimization = False


class TwoOptimizers(Regression):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=0.1)] * 2


def test_a_lightning_module_is_trained_and_its_schedule_stepped() -> None:
    session = heterotrain.join(batch_size=2, epochs=2)
    module = Regression()
    fit(session, module, parts()[2])
    assert session.step == module.trainer.global_step == 4
    assert module.trainer.estimated_stepping_batches == 4
    assert module.trainer.is_global_zero


class Logging(Regression):
    def training_step(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = self.layer(batch).square().mean()
        self.log("mine", loss)
        self.log("bits", float(self.layer(batch).element_size()))
        return {"loss": loss}


def test_a_logger_of_lightnings_gets_the_jobs_figures_and_what_a_step_logs(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, name="", version="")
    session = heterotrain.join(batch_size=2, epochs=3)
    fit(session, Logging(), parts()[2], logger=logger, precision="bf16-mixed")
    assert session._reporter is not None
    session._reporter.close()
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert [row["step"] for row in rows if row["mine"]] == [str(step) for step in range(6)]
    assert {row["bits"] for row in rows if row["bits"]} == {"2.0"}
    assert [row["step"] for row in rows if row["loss"]][-1] == "6"


class Worsening(Regression):
    def validation_step(self, batch: torch.Tensor) -> None:
        self.log("measured", float(self.current_epoch))


def test_early_stopping_ends_the_job_and_the_learning_rate_is_logged(tmp_path: Path) -> None:
    """Its best is that of the first epoch; it waits for two more."""
    logger = CSVLogger(tmp_path, name="", version="")
    early = callbacks.EarlyStopping("measured", patience=2)
    session = heterotrain.join(batch_size=2, epochs=9)
    given = [early, callbacks.LearningRateMonitor()]
    fit(session, Worsening(), parts()[2], parts()[2], logger=logger, callbacks=given)
    assert early.wait_count == 2 and early.best_score < 2
    assert 6 <= session.step < 10
    assert session._reporter is not None
    session._reporter.close()
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert [float(row["lr-SGD"]) for row in rows if row.get("lr-SGD")][:3] == pytest.approx([0.1, 0.1, 0.01])


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"callbacks": [callbacks.EarlyStopping("mine")]}, "give fit.. a loader to validate on"),
        ({"callbacks": [callbacks.ModelCheckpoint()]}, "ModelCheckpoint is not called: the session writes the checkp"),
        ({"callbacks": callbacks.TQDMProgressBar()}, "TQDMProgressBar is not called: leave it out: `heterotrain run`"),
        ({"callbacks": [callbacks.Timer()]}, "Timer is not called: it expects Lightning's Trainer"),
        ({"precision": "16-mixed"}, "a gradient scaler would be each worker's own"),
    ],
)
def test_what_lightnings_trainer_would_take_and_fit_does_not_is_refused(options: dict[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        fit(heterotrain.join(), Regression(), parts()[2], **options)


@pytest.mark.parametrize(
    ("module", "found"),
    [(WithHook(), "on_train_batch_end"), (ByHand(), "manual"), (TwoOptimizers(), "no single optimizer")],
)
def test_what_lightning_would_do_and_a_session_does_not_is_refused(module: Regression, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        fit(heterotrain.join(), module, parts()[2])


# --- what prepare() is given ------------------------------------------------------------------------------------------


def test_what_another_framework_has_prepared_is_recognised(tmp_path: Path) -> None:
    own = OwnAccelerator(cpu=True)
    prepared = own.prepare(*parts())
    for each in prepared[1:]:
        with pytest.raises(TypeError, match=r"integrations\.accelerate"):
            refusals.check(each)
    fabric = Fabric(accelerator="cpu", devices=1)
    model, optimizer, loader = parts()
    for each in (*fabric.setup(model, optimizer), fabric.setup_dataloaders(loader)):
        with pytest.raises(TypeError, match="Fabric"):
            refusals.check(each)
    with pytest.raises(TypeError, match=r"lightning\.fit"):
        refusals.check(lightning.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu"))
    with pytest.raises(TypeError, match=r"transformers\.train"):
        refusals.check(hugging_face(tmp_path))
    with pytest.raises(TypeError, match="module inside"):
        refusals.check(nn.DataParallel(nn.Linear(1, 1)))
    refusals.check(*parts(), Regression())
