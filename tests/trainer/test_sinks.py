"""Figures in trackers of experiments: the real packages, offline."""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto import wandb_internal_pb2

import heterotrain
from heterotrain import sinks
from heterotrain.contract import Member, Plan
from heterotrain.reporting import reporter
from heterotrain.reporting.metrics import VersionCounters, WorkerMetrics
from heterotrain.reporting.reporter import Reporter, Training
from trainer.alone import prepared, train

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr(reporter, "_CLOSING_SECONDS", 120.0)  # a busy machine takes long to start W&B's processes


class Held:
    """One tracker, and the scalars and markers that its run of a worker, or of the job (None), holds by name."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.kind = kind

    def sink(self) -> sinks.Sink:
        if self.kind == "TensorBoard":
            return sinks.TensorBoard(self.folder)
        if self.kind == "MLflow":
            return sinks.MLflow("tests", "first", f"file://{self.folder}")
        return sinks.WandB("tests", "first", self.folder)

    def scalars(self, worker: str | None, name: str) -> list[tuple[int, float]]:
        if self.kind == "TensorBoard":
            events = self._events(worker).Scalars(name)
            return [(event.step, event.value) for event in events]
        if self.kind == "MLflow":
            return [(m.step, m.value) for m in self._client().get_metric_history(self._run(worker).info.run_id, name)]
        return [(step, float(values[name])) for step, values in self._history(worker) if name in values]

    def markers(self, worker: str | None) -> list[str]:
        if self.kind == "TensorBoard":
            return [t.tensor_proto.string_val[0].decode() for t in self._events(worker).Tensors("events/text_summary")]
        if self.kind == "MLflow":
            return [v for k, v in self._run(worker).data.tags.items() if k.startswith("step ")]
        return [values["events"].strip('"') for _, values in self._history(worker) if "events" in values]

    def _events(self, worker: str | None) -> EventAccumulator:
        events = EventAccumulator(str(self.folder / ("job" if worker is None else f"workers/{worker}")))
        return events.Reload()

    def _client(self) -> mlflow.MlflowClient:
        return mlflow.MlflowClient(f"file://{self.folder}")

    def _run(self, worker: str | None) -> mlflow.entities.Run:
        client, name = self._client(), "first" if worker is None else f"first/{worker}"
        where = client.get_experiment_by_name("tests").experiment_id
        return client.search_runs([where], f"tags.`heterotrain.run` = '{name}'")[0]

    def _history(self, worker: str | None) -> Iterator[tuple[int, Mapping[str, str]]]:
        name = "first" if worker is None else f"first-{worker}"
        for file in sorted(self.folder.glob(f"wandb/offline-run-*/run-{name}.wandb")):
            for record in records(file.read_bytes()):
                if record.HasField("history"):
                    items = {each.key or ".".join(each.nested_key): each.value_json for each in record.history.item}
                    yield record.history.step.num, items


def records(log: bytes) -> Iterator[wandb_internal_pb2.Record]:
    """Those of a file of W&B's: LevelDB's log format after a header of 7 bytes, in blocks of 32 KiB."""
    at, whole = 7, b""
    while at + 7 <= len(log):
        if 2**15 - at % 2**15 < 7:
            at += 2**15 - at % 2**15
        length, kind = struct.unpack_from("<4xHB", log, at)
        whole += log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # the whole record, or its last part
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


@pytest.fixture(params=["TensorBoard", "MLflow", "WandB"])
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Held:
    return Held(tmp_path, request.param)


def test_trackers_hold_what_the_job_its_workers_and_its_script_say(held: Held) -> None:
    session, model, optimizer, batches = prepared(epochs=4, sinks=[held.sink()])
    session.evaluate([torch.zeros(2)], lambda model, batch: {"bias": model(batch).sum()})
    for step in train(session, model, optimizer, batches):
        session.log({"mine": torch.tensor(2.0 * step)})
    assert session._reporter is not None
    session._reporter.close()
    assert held.scalars(None, "mine") == [(step, 2.0 * step) for step in range(1, 13)]
    assert [step for step, _ in held.scalars(None, "loss")][-1] == 12
    assert held.scalars(None, "bias")[-1][0] == 12
    assert held.markers(None) == ["plan 0: batches alone 4"]
    assert held.scalars("alone", "batch_size")[0] == (1, 4)
    assert held.scalars("alone", "own_seconds")
    assert held.scalars("alone", "waiting_seconds")


def test_no_step_is_held_twice_after_a_restart_or_another_leader(held: Held) -> None:
    first = held.sink().open(None, 1)
    for step in range(1, 9):
        first.scalars(step, {"loss": 1.0})
    first.close()
    time.sleep(1.0)  # offline, W&B names the folder of a run by the second: no process restarts as fast
    second = held.sink().open(None, 6)  # from the checkpoint of step 5
    for step in range(6, 12):
        second.scalars(step, {"loss": 2.0})
    second.close()
    assert [step for step, _ in held.scalars(None, "loss")] == list(range(1, 12))


PLAN = Plan(1, 1, "step", (Member("a", "u", "", "", 6), Member("b", "v", "", "", 2)))


class Recorded:
    """A sink that remembers what it gets, once it may."""

    def __init__(self, fails: bool = False) -> None:
        self.may = threading.Event()
        self.got: list[tuple[str | None, int, object]] = []
        self.closed: list[str | None] = []
        self.fails = fails

    def open(self, worker: str | None, step: int) -> sinks.Run:
        return _Recorded(self, worker)


class _Recorded:
    def __init__(self, recorded: Recorded, worker: str | None) -> None:
        self._recorded, self._worker = recorded, worker

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._recorded.may.wait(60)
        if self._recorded.fails:
            raise OSError("no space left")
        self._recorded.got.append((self._worker, step, values))

    def marker(self, step: int, text: str) -> None:
        self._recorded.got.append((self._worker, step, text))

    def close(self) -> None:
        self._recorded.closed.append(self._worker)


def test_the_leader_alone_writes_the_jobs_run_and_every_worker_its_own() -> None:
    sink, metrics, now = Recorded(), WorkerMetrics("job", "b", "", lambda: False), [Training(1, False, PLAN)]
    sink.may.set()
    sending = Reporter([sink], "b", metrics, lambda: now[0], every_seconds=0)
    metrics.counters = VersionCounters(1, 1, 2, steps=2, samples=4, own_seconds=1.0, wait_seconds=3.0)
    sending.after_step()
    metrics.counters.add(2, 0.5, 0.5, 0.2)
    now[0] = Training(2, True, Plan(2, 1, "step", PLAN.members))
    sending.after_step()
    sending.log({"mine": 1})
    now[0] = Training(3, False, PLAN)
    sending.after_step()
    sending.log({"mine": 2})
    sending.close()
    own = [values for worker, step, values in sink.got if worker == "b" and step < 3]
    assert own == [
        {"batch_size": 2.0, "own_seconds": 0.5, "waiting_seconds": 1.5, "samples_per_second": 1.0},
        {"batch_size": 2.0, "own_seconds": 0.5, "waiting_seconds": 0.5, "samples_per_second": 2.0},
    ]
    job = [what for worker, _, what in sink.got if worker is None]
    assert job[1:] == ["plan 2: batches a 6, b 2", {"mine": 1.0}]
    assert sink.closed == [None, "b"]


def test_no_worker_of_a_parameter_server_writes_the_jobs_run() -> None:
    sink = Recorded()
    sink.may.set()
    session, model, optimizer, batches = prepared(sinks=[sink])
    assert session._life is not None
    session._life._plans.is_served = True
    for _ in train(session, model, optimizer, batches):
        session.log({"mine": 1})
    assert session._reporter is not None
    session._reporter.close()
    assert sink.closed == ["alone"]


def test_a_training_that_ends_before_its_tracker_is_at_work_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    at_exit: list[object] = []
    monkeypatch.setattr("atexit.register", at_exit.append)
    made = Reporter(
        [], "w", WorkerMetrics("", "w", "", lambda: False), lambda: Training(0, True, Plan(1, 1, "step", ()))
    )
    assert at_exit == [made.close]


def test_a_sink_that_fails_or_is_slow_is_reported_once_and_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    failing, slow, metrics = Recorded(fails=True), Recorded(), WorkerMetrics("job", "a", "", lambda: False)
    failing.may.set()
    sending = Reporter([failing, slow], "a", metrics, lambda: Training(1, True, PLAN), every_seconds=0)
    with caplog.at_level(logging.WARNING):
        for _ in range(1500):
            sending.log({"mine": 1})
        slow.may.set()
        sending.close()
    said = [record.getMessage() for record in caplog.records]
    assert len([each for each in said if "OSError: no space left; training goes on" in each]) == 1
    assert any("too slow" in each for each in said)
    assert len([each for each in said if "some figures are dropped" in each]) <= 2
    assert 0 < len(slow.got) < 1500


def test_a_sink_that_asks_to_exit_or_says_a_page_is_named_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    class Exits:
        def open(self, worker: str | None, step: int) -> sinks.Run:
            raise SystemExit("500:\n" + "<html>\n" * 10**5)

    sending = Reporter([Exits()], "a", WorkerMetrics("job", "a", "", lambda: False), lambda: Training(1, True, PLAN))
    with caplog.at_level(logging.WARNING):
        sending.log({"mine": 1})
        sending.close()
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("Exits does not take all figures: SystemExit: 500: <html> <html>")
    assert len(said) < 500
    assert "\n" not in said


def test_weights_and_biases_waits_for_its_server_within_the_grace_of_a_pod(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[dict[str, Any]] = []

    def init(**asked: Any) -> None:
        begun.append(asked)
        raise TimeoutError

    monkeypatch.setattr("wandb.init", init)
    with pytest.raises(TimeoutError):
        sinks.WandB("tests", "first", tmp_path).open(None, 1)
    settings = begun[0]["settings"]
    assert 0 < settings.init_timeout <= 20
    assert 0 < settings.finish_timeout <= 10


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"mine": "text"}, TypeError, "mine: expected one number, found str"),
        ({"mine": torch.ones(2)}, TypeError, r"mine: expected one number, found Tensor of shape \(2,\)"),
        ({"mine": 10**400}, ValueError, "mine: int too large"),
        ({"": 1}, ValueError, "1 to 250 characters"),
        ({str(each): 1 for each in range(257)}, ValueError, "257 figures are more than 256"),
        ({"mine": 1}, RuntimeError, "before session.prepare"),
    ],
)
def test_what_is_no_figure_is_refused_by_its_name(
    values: dict[str, float], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        heterotrain.join().log(values)


def test_a_tracker_that_is_not_installed_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'heterotrain\[wandb\]'"):
        sinks.WandB("tests", "first")
