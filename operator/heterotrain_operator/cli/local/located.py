"""Find the scripts of a job on this machine: where the job would look for them, else beside its manifest."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heterotrain_operator.api import HeteroTrainingJob, Problem
from heterotrain_operator.cli.script_job import SUFFIX

_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
"""Options of python that take the next word."""

FOLDERS_ABOVE = 2
"""Folders above that of the manifest in which scripts are sought: manifests usually lie no deeper in a repository."""


def script_at(words: Sequence[str]) -> int | None:
    """The position of the script in a command such as `python -u train.py`; None if it cannot be found."""
    if not words or not Path(words[0]).name.startswith("python"):
        return None
    position = 1
    while position < len(words) and words[position].startswith("-"):
        if words[position].startswith(("-m", "-c")) or words[position] == "-":
            return None
        position += 2 if words[position] in _WITH_VALUE else 1
    return position if position < len(words) and words[position].endswith(SUFFIX) else None


def located(job: HeteroTrainingJob, manifest: Path, here: Path, problems: list[Problem]) -> HeteroTrainingJob:
    """The job with the absolute path of every relative script, and a problem for each script that is not found.

    A script is sought below `here`, the current folder, then below that of the manifest and FOLDERS_ABOVE more, so that
    a path that was written for the top of a repository holds from anywhere; with a workingDir only below that.
    Paths with references such as $(HOME) are left as they are.
    """
    groups = []
    for index, group in enumerate(job.spec.worker_groups):
        template = copy.deepcopy(group.template)
        containers = template["spec"]["containers"]
        place = f"spec.workerGroups[{index}].template.spec.containers[0]"
        if containers:
            _locate(containers[0], manifest, here, place, problems)
        groups.append(group.model_copy(update={"template": template}))
    return job.model_copy(update={"spec": job.spec.model_copy(update={"worker_groups": tuple(groups)})})


def _locate(container: dict[str, Any], manifest: Path, here: Path, place: str, problems: list[Problem]) -> None:
    command, arguments = list(container.get("command") or ()), list(container.get("args") or ())
    if not command:
        return
    words = [*command, *arguments]
    position = script_at(words)
    if position is None or "$(" in words[position] or "$(" in (container.get("workingDir") or ""):
        return
    script = words[position]
    beside = manifest.absolute().parent
    asked = container.get("workingDir")
    folders = (
        [Path(asked)] if asked is not None else list(dict.fromkeys((here, beside, *beside.parents[:FOLDERS_ABOVE])))
    )
    if asked is not None and not folders[0].is_dir():
        return  # reading the templates refuses such a folder
    found = next((folder / script for folder in folders if (folder / script).is_file()), None)
    if found is None:
        field = "command" if position < len(command) else "args"
        sought = "" if Path(script).is_absolute() else f" in {', '.join(map(str, folders))}"
        advice = "" if Path(script).is_absolute() or asked is not None else "; name its folder in workingDir"
        problems.append(Problem(f"{place}.{field}", f"there is no {script}{sought}{advice}"))
    elif asked is None and found.parent != (here / script).parent:
        if position < len(command):
            container["command"][position] = str(found)
        else:
            container["args"][position - len(command)] = str(found)
