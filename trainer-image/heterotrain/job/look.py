"""The first look that `heterotrain run` takes at a script, to learn what it asks for before there are workers."""

from __future__ import annotations

import json
import operator
import os
from pathlib import Path

from heterotrain import contract


def answer_look(*, final: bool, **given: int | None) -> None:
    """Where a first look is taken: write down what is known, and end once that is all."""
    path = os.environ.get(contract.ENV_LOOK)
    if path is None:
        return
    answer = Path(path)
    known = json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else {}
    for name, value in given.items():
        if value is not None:
            # What is no whole number goes on as text, and is refused by its name.
            known[name] = operator.index(value) if hasattr(value, "__index__") else repr(value)
    answer.write_text(json.dumps(known), encoding="utf-8")
    if final:
        os._exit(0)  # nothing that the script does at its end has anything to do yet
