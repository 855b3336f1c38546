"""What the scripts of all workers must have in common, in words: a worker that differs is refused before it trains.

What a script registers is in the state that workers take over from one another, and an evaluation is done by all
together. A worker that differs there would fail later, or keep the others waiting. So would one with another library,
for what workers send one another while they train may change with every version.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from torch import nn

from heterotrain.data.evaluation import Evaluation
from heterotrain.state.training_state import TrainingState
from heterotrain.training.subject import Subject

LONGEST = 200
"""Characters of a trait that others are shown; what is longer is known by a checksum as well."""

LIBRARY = "library"
"""The trait that tells whether the others can mean the same: all that a worker of another library says is in doubt."""

_FOLDER = Path(__file__).parents[1]


def library_of(folder: Path) -> str:
    """What is below `folder`, by a checksum: an image may hold the library without its number, and two builds may have
    the same one."""
    checksum = 0
    for path in sorted(filter(Path.is_file, folder.rglob("*.py"))):  # an editor's lock is a link to no file
        checksum = zlib.crc32(path.read_bytes(), zlib.crc32(path.relative_to(folder).as_posix().encode(), checksum))
    return f"heterotrain, checksum {checksum:08x}"


def traits_of(subject: Subject, state: TrainingState, evaluation: Evaluation) -> dict[str, str]:
    """By names that a user understands. The metrics that an evaluation has are not among them, since nobody knows them
    before the first one."""
    every = subject.schedules.every
    shapes = {name: _shapes(module) for name, module in state.registered_modules.items()}
    registered = [
        f"{name} ({type(each).__name__}{shapes.get(name, '')}{f', each {every[name]}' if name in every else ''})"
        for name, each in sorted(state.registered.items())
    ]
    return {
        LIBRARY: library_of(_FOLDER),
        **{name: str(value) for name, value in subject.traits().items()},
        "set of registered objects": _bounded(", ".join(registered) or "none"),
        "evaluation": evaluation.describe(),
        **evaluation.samples,
    }


def _shapes(module: nn.Module) -> str:
    described = [f"{tuple(each.shape)} {each.dtype}" for each in module.parameters()]
    return f" of {len(described)} parameters, checksum {zlib.crc32(repr(described).encode()):08x}"


def _bounded(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}..., checksum {zlib.crc32(text.encode(errors='replace')):08x}"
