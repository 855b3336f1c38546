"""Execute examples/notebook.ipynb where it runs nothing over, and store its outputs: `make notebook`.

What changes without meaning anything (times of cells, versions of the kernel) is left out of the file.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
SECONDS = 300


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """A notebook with the outputs of its cells, run in a folder. Raises CellExecutionError if one fails."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=SECONDS, record_timing=False, resources={"metadata": {"path": folder}})
    client.execute()
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    return notebook


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="notebook-") as folder:
        nbformat.write(executed(NOTEBOOK, Path(folder)), NOTEBOOK)
