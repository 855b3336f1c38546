"""What `heterotrain run SCRIPT` learns from a first look at a script: what it gives to `join()`."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterotrain_operator.cli.main import main
from heterotrain_operator.cli.script_look import Asked, look_at


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "train.py"


LOOKED_AT = """
import argparse, atexit, heterotrain
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
atexit.register(open("at-exit", "x").close)
{call}
open("too-far", "x").close()
"""


@pytest.mark.parametrize(
    ("call", "asked"),
    [
        (
            "heterotrain.join(epochs=parser.parse_args().epochs, batch_size=256, seed=7)",
            Asked(epochs=4, batch_size=256, seed=7),
        ),
        ("raise ValueError", Asked()),
        ("import time; time.sleep(600)", Asked()),
    ],
    ids=["options of the script", "fails", "comes to no end"],
)
def test_a_look_at_a_script_ends_at_its_join(call: str, asked: Asked, script: Path) -> None:
    script.write_text(LOOKED_AT.format(call=call), "utf-8")
    assert look_at(script, ["--epochs", "4"], 1.0 if "sleep" in call else 120.0) == asked
    assert not (script.parent / "too-far").exists()


@pytest.mark.parametrize(
    ("call", "words"),
    [("batch_size=0", "batch_size of join(): must be a whole number of at least 1, found 0"), ("epochs=2.5", "2.5")],
)
def test_what_alone_would_fail_in_join_is_refused(
    call: str, words: str, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(f"import heterotrain\nheterotrain.join({call})\n", "utf-8")
    assert main(["run", script.name]) == 2
    assert words in capsys.readouterr().err
