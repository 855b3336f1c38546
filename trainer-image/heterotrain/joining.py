"""How a process comes to its session: as a worker of a job, as one that a launcher has started, or alone."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

from heterotrain.contract import TrainingConfig
from heterotrain.job.launched import Launched, is_launched, launcher_environment
from heterotrain.job.look import answer_look
from heterotrain.job.worker import Worker
from heterotrain.refusals import check_process
from heterotrain.session import Session

log = logging.getLogger(__name__)


def join(
    *,
    batch_size: int | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    checkpoints: str | Path | None = None,
    checkpoint_every_steps: int = 100,
) -> Session:
    """Join the job that this process was started for, or the workers that torchrun has started; else be the only one.

    The arguments are for these: in a job its manifest decides. `batch_size` is that of all workers together; without
    one it is that of the DataLoader given to `prepare()`, or 32. Without epochs and steps there is one epoch. In the
    folder `checkpoints` torchrun's workers keep the newest three, and go on from the newest. Call `join` once, early:
    from here on the worker answers to SIGTERM and reports how it ended, and torch's random state is seeded.

    `heterotrain run SCRIPT` takes batch size, epochs or steps, and seed from here for its manifest, where its command
    line does not say them.

    Raises ValueError if the job's environment is incomplete, OSError if the metrics port is taken, RuntimeError if a
    promised GPU is missing, and in a process that multiprocessing has started, which is no worker.
    """
    worker = Worker.from_environment(os.environ)
    check_process(is_in_job=worker is not None)
    if worker is None:
        answer_look(final=batch_size is not None, epochs=epochs, steps=steps, batch_size=batch_size, seed=seed or None)
        if epochs is None and steps is None:
            epochs = 1
        folder = None if checkpoints is None else str(Path(checkpoints).absolute())
        config = TrainingConfig(
            epochs=epochs,
            steps=steps,
            seed=seed,
            checkpoint_path=folder,
            checkpoint_every_steps=checkpoint_every_steps,
        )
        environment = launcher_environment()
        if is_launched(environment) and (folder is not None or environment["WORLD_SIZE"] != "1"):
            launched = Launched(environment, config)
            return Session(launched.worker, launched.worker.config, batch_size, launched)
        session = Session(None, replace(config, checkpoint_path=None), batch_size)
        if folder is not None:
            log.warning("a run alone keeps no checkpoints: start it by `torchrun --nproc-per-node 1`, or as a job")
        return session
    return Session(worker, worker.config, None)
