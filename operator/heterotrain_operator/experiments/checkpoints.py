"""Where a job's checkpoints are on this machine, and which are there already. None is ever removed. Beside them lies
what the job's predictor has learned, for later jobs of its name.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from pathlib import Path

from heterotrain.foreign import parse_json
from heterotrain_operator.api import HeteroTrainingJob, checkpoint_folder
from heterotrain_operator.core.prediction.learned import LEARNED, Learned

logger = logging.getLogger(__name__)

VOLUMES = Path(".heterotrain") / "volumes"
"""Stands for a cluster's persistent volumes, below the current folder."""

LEARNED_FILE, MAX_LEARNED_BYTES = "learned.json", 2**20

_NAME = re.compile(r"step-(\d+)\.pt")


def local_folder(job: HeteroTrainingJob, here: Path) -> Path | None:
    """The folder for `spec.checkpoint`, None if the job has no durable one.

    A claim is a folder below `here` by its name, and the job's own folder is in it; without a claim it is where
    `spec.checkpoint.path` says.
    """
    folder = checkpoint_folder(job)
    claim = job.spec.checkpoint.persistent_volume_claim
    if folder is None:
        return None
    return Path(folder) if claim is None else here / VOLUMES / claim / Path(folder).name


def steps_in(folder: Path) -> dict[int, Path]:
    """The checkpoints in a folder by step, ascending; none if there is no such folder."""
    found = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match:
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def newest_step(folder: Path) -> int | None:
    """The number of steps in the newest checkpoint, None if there is none."""
    return max(steps_in(folder), default=None)


def set_aside(folder: Path, now: datetime | None = None) -> Path:
    """Move the checkpoints in `folder` into a new folder inside it, and return that. Raises OSError."""
    moment = datetime.now(UTC) if now is None else now
    aside = folder / f"before-{moment:%Y%m%dT%H%M%S%f}"
    aside.mkdir()
    for path in steps_in(folder).values():
        path.rename(aside / path.name)
    return aside


def learned_in(folder: Path) -> tuple[Learned, ...]:
    """What a former job's predictor has learned; nothing, with a warning, where that is malformed."""
    path = folder / LEARNED_FILE
    try:
        with path.open("rb") as file:
            rows = parse_json(file.read(MAX_LEARNED_BYTES + 1), MAX_LEARNED_BYTES)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        logger.warning("what a former job has learned is learned again: %s: %s", path, error)
        return ()
    found = LEARNED.read(rows)
    sound = tuple(each for each in found if each.numbers)
    if not isinstance(rows, list) or len(sound) < len(rows):
        logger.warning("what a former job has learned is learned again as far as it is malformed: %s", path)
    return sound


def keep_learned(folder: Path, learned: tuple[Learned, ...]) -> None:
    """Leave it for later jobs; whoever reads it meanwhile finds all of the former or of this. Raises OSError."""
    if not learned:
        return
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{LEARNED_FILE}.partial"
    partial.write_text(json.dumps(LEARNED.write(learned), separators=(",", ":")) + "\n", encoding="utf-8")
    partial.replace(folder / LEARNED_FILE)
