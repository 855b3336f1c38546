"""README's script is one that runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_readmes_script_trains_alone(tmp_path: Path) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "train.py").write_text(script.replace("epochs=20", "epochs=1"), encoding="utf-8")
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=True, timeout=120)
    assert (tmp_path / "model.pt").exists()
