"""Where a job's figures go beside Prometheus: TensorBoard, MLflow, Weights & Biases. None of them is imported before it
is used.

`session.prepare(..., sinks=[TensorBoard("runs/first")])` chooses them. A job has a run of its own, which the leader
writes, and one for each worker, which that worker writes. The name that the script gives identifies it, so a job that
is restarted, or another leader, goes on with the same run. No step is in a run twice:

* TensorBoard hides what the folder holds of the step at which a writer begins, and of later ones: the newest counts.
* MLflow and Weights & Biases cannot take a step back, so what the run holds already is not written again: the oldest
  counts.
* A training that begins at its first step begins its runs again.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class Run(Protocol):
    """One run of a tracker. Its methods are called in a thread of the sink's own, and may raise anything."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Figures of the training after `step` committed steps, by name."""

    def marker(self, step: int, text: str) -> None:
        """Something has happened then, such as a change of the plan."""

    def close(self) -> None:
        """There is no more."""


class Sink(Protocol):
    """A tracker of experiments."""

    def open(self, worker: str | None, step: int) -> Run:
        """A worker's run, or the job's own (None), in which steps from `step` on are to be written."""


class TensorBoard:
    """Event files in a folder: those of the job in `job`, those of each worker in `workers/NAME`."""

    def __init__(self, folder: str | Path) -> None:
        """Raises ModuleNotFoundError if the package is not installed."""
        _need("tensorboard", "tensorboard")
        self._folder = Path(folder)

    def open(self, worker: str | None, step: int) -> Run:
        """See `Sink`."""
        return _TensorBoardRun(self._folder / ("job" if worker is None else f"workers/{worker}"), step)


class _TensorBoardRun:
    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - a package that only this sink needs

        self._writer: Any = SummaryWriter(str(folder), purge_step=step, flush_secs=10)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def marker(self, step: int, text: str) -> None:
        self._writer.add_text("events", text, step)

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """Runs of an experiment: `NAME` for the job, and `NAME/WORKER` for each worker. Markers are tags."""

    def __init__(self, experiment: str, run: str, tracking_uri: str | None = None) -> None:
        """Without a `tracking_uri` it is MLflow's usual one (MLFLOW_TRACKING_URI). Raises ModuleNotFoundError if the
        package is not installed."""
        _need("mlflow", "mlflow")
        self._experiment = experiment
        self._run = run
        self._uri = tracking_uri

    def open(self, worker: str | None, step: int) -> Run:
        """See `Sink`."""
        from mlflow import MlflowClient  # noqa: PLC0415 - a package that only this sink needs

        name = self._run if worker is None else f"{self._run}/{worker}"
        return _MLflowRun(MlflowClient(self._uri), self._experiment, name, self._run, step)


class _MLflowRun:
    def __init__(self, client: Any, experiment: str, name: str, job: str, step: int) -> None:
        self._client = client
        self._held = -1  # the newest step that the run holds already
        where = _mlflow_experiment(client, experiment)
        quoted = name.replace("\\", "\\\\").replace("'", "\\'")
        found = client.search_runs(
            [where], f"tags.`heterotrain.run` = '{quoted}'", order_by=["attributes.start_time DESC"], max_results=1
        )
        if step > 1 and found:
            self._id = found[0].info.run_id
            histories = [client.get_metric_history(self._id, key) for key in found[0].data.metrics]
            self._held = max((each.step for history in histories for each in history), default=-1)
            client.update_run(self._id, status="RUNNING")
        else:
            tags = {"heterotrain.run": name, "heterotrain.job": job}
            self._id = client.create_run(where, run_name=name, tags=tags).info.run_id

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric  # noqa: PLC0415 - a package that only this sink needs

        if step > self._held:
            now = int(time.time() * 1000)
            self._client.log_batch(self._id, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def marker(self, step: int, text: str) -> None:
        self._client.set_tag(self._id, f"step {step}", text)

    def close(self) -> None:
        self._client.set_terminated(self._id)


def _mlflow_experiment(client: Any, name: str) -> str:
    """The experiment's id; it is made where there is none."""
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - a package that only this sink needs

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name))
        except MlflowException:  # another worker was faster
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return str(found.experiment_id)


class WandB:
    """Runs of a project in one group, `RUN`: the job's own has that id, a worker's is `RUN-WORKER`. Offline as
    WANDB_MODE says. Markers are the column `events`."""

    def __init__(self, project: str, run: str, folder: str | Path = ".") -> None:
        """In the `folder` lies what is written offline. Raises ModuleNotFoundError if the package is not installed."""
        _need("wandb", "wandb")
        self._project = project
        self._run = run
        self._folder = Path(folder)

    def open(self, worker: str | None, step: int) -> Run:
        """See `Sink`."""
        import wandb  # noqa: PLC0415 - a package that only this sink needs

        self._folder.mkdir(parents=True, exist_ok=True)
        name = self._run if worker is None else f"{self._run}-{worker}"
        run = wandb.init(
            project=self._project,
            id=name,
            name=name,
            group=self._run,
            job_type="job" if worker is None else "worker",
            dir=self._folder,
            resume="allow" if step > 1 else None,
            reinit="create_new",  # one process may write the job's run and its own
            # W&B waits for its server at the process' end, too, which may be within the grace of a pod.
            settings=wandb.Settings(console="off", silent=True, init_timeout=20, finish_timeout=5),
        )
        return _WandBRun(run, self._folder / f"{name}.newest-step", goes_on=step > 1)


class _WandBRun:
    def __init__(self, run: Any, newest: Path, *, goes_on: bool) -> None:
        """Offline nobody but the file `newest` knows which steps an earlier process has written."""
        self._run = run
        self._newest = newest
        self._held = run.step - 1 if goes_on else -1
        if goes_on and newest.exists():
            text = newest.read_text(encoding="ascii", errors="replace")
            self._held = max(self._held, int(text) if text.isdecimal() else -1)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._log(step, dict(values))

    def marker(self, step: int, text: str) -> None:
        self._log(step, {"events": text})

    def _log(self, step: int, values: dict[str, Any]) -> None:
        if step > self._held:
            self._run.log(values, step=step)
            self._newest.write_text(str(step), encoding="ascii")

    def close(self) -> None:
        self._run.finish()


def _need(package: str, extra: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(f"{package} is not installed; pip install 'heterotrain[{extra}]'", name=package)
