"""The example notebook runs from its first cell to its last, and is stored with what it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from execute import NOTEBOOK, executed

MOST_BYTES = 600_000


def shown(notebook: Any) -> str:
    """All outputs of its cells."""
    return "".join(str(each) for cell in notebook.cells for each in cell.get("outputs", ()))


@pytest.mark.processes
@pytest.mark.long
# These are of the libraries that run notebooks.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning")
def test_the_example_notebook_runs_and_is_stored_as_it_was_executed(tmp_path: Path) -> None:
    stored = nbformat.read(NOTEBOOK, as_version=4)
    for each in (shown(stored), shown(executed(NOTEBOOK, tmp_path))):
        assert "train: Succeeded" in each
        assert "<iframe title=" in each
        assert "trained 250 steps" in each
        assert "global_bach: is no option of run(); did you mean global_batch?" in each
    assert NOTEBOOK.stat().st_size < MOST_BYTES
