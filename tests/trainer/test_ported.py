"""The ported examples change little of what people have, run alone and in a job, and are what their README says."""

import difflib
import os
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
import torch

from heterotrain.contract import TrainingConfig
from trainer.gang import PATIENCE_SECONDS, REPOSITORY, Gang

FOLDER = REPOSITORY / "examples" / "ported"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))
LINES = dict.fromkeys(SCRIPTS, 6) | dict.fromkeys(
    ["accelerate_transformers.py", "gpt_pretraining.py", "image_mixup.py", "variational_autoencoder.py"], 8
)
LINES["best_checkpoint.py"] = 9  # of which 8 are added
TOLD = ["best_checkpoint.py", "image_mixup.py", "variational_autoencoder.py"]
"""Those of them that use most of the library."""
RESULT = re.compile(r"^([a-z ]+): \D*([\d.]+)", re.MULTILINE)
RUN_ALL = "import runpy, sys\nfor path in sys.argv[1:]: runpy.run_path(path, run_name='__main__')"


def lines(path: Path) -> list[str]:
    return [stripped for line in path.read_text().splitlines() if (stripped := line.strip())]


def changes(name: str) -> list[tuple[list[str], list[str]]]:
    """Removed and added lines, place by place."""
    before, after = lines(FOLDER / "plain" / name), lines(FOLDER / name)
    opcodes = difflib.SequenceMatcher(a=before, b=after, autojunk=False).get_opcodes()
    return [(before[i1:i2], after[j1:j2]) for tag, i1, i2, j1, j2 in opcodes if tag != "equal"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_port_changes_few_lines_and_its_readme_shows_them(name: str) -> None:
    changed = changes(name)
    assert 0 < sum(max(len(went), len(came)) for went, came in changed) <= LINES[name]
    shown = [f"-{line}" for went, _ in changed for line in went] + [f"+{line}" for _, came in changed for line in came]
    diffs = re.findall(r"```diff\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    assert sorted(shown) in [sorted(diff.splitlines()) for diff in diffs]


def test_there_are_ten_ports_of_ten_plain_scripts() -> None:
    assert sorted(path.name for path in (FOLDER / "plain").glob("*.py")) == SCRIPTS
    assert len(SCRIPTS) == 10


@pytest.mark.processes
@pytest.mark.long
def test_ports_run_alone_and_learn() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", RUN_ALL, *(str(FOLDER / name) for name in SCRIPTS)],
        check=True,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "trainer-image"), "OMP_NUM_THREADS": "1"},
        timeout=PATIENCE_SECONDS,
    )
    results = dict(RESULT.findall(ran.stdout))
    assert float(results["image classification"]) > 200  # of 297
    assert float(results["best checkpoint"]) > 250  # of 297
    assert float(results["batch norm"]) > 200  # of 256
    assert float(results["custom collate"]) > 140  # of 200
    assert float(results["language model"]) < 3.5
    assert float(results["regression"]) < 0.8
    assert float(results["accelerate transformers"]) > 160  # of 200
    assert float(results["gpt pretraining"]) < 2.8  # nats; 4.3 before
    assert float(results["image mixup"]) > 250  # of 297
    assert float(results["variational autoencoder"]) < 28  # nats; 44 before


@pytest.mark.processes
@pytest.mark.parametrize(
    "name", [*TOLD, *(pytest.param(name, marks=pytest.mark.long) for name in SCRIPTS if name not in TOLD)]
)
def test_ports_train_as_unequal_workers_of_a_job_and_their_leader_alone_tells(tmp_path: Path, name: str) -> None:
    command = ["tests/trainer/scripts/noted_noise.py", str(FOLDER / name), str(tmp_path)]
    with Gang(tmp_path, command, (20, 0, 12), TrainingConfig(steps=8, seed=7)) as gang:
        gang.succeed()
        assert [len(gang.series(rank)) for rank in range(3)] == [8, 8, 8]
        results = RESULT.findall(gang.logs())
        weights, noise = ([gang.saved(rank, kind) for rank in range(3)] for kind in ("", "noise"))
        averages = [gang.saved(rank, "average") for rank in range(3)] if name == "image_mixup.py" else []
    assert [title.replace(" ", "_") for title, _ in results] == [name.removesuffix(".py")]
    if name != "batch_norm.py":  # statistics of each worker's own samples are merged at the end
        assert all(torch.equal(each[key], weights[0][key]) for each in weights for key in weights[0])
    # Noise is each worker's own, and a moving average the same on all, also on a worker without samples.
    drawn = [each[:12] for steps in (noise[0], noise[2]) for each in steps.values()]
    assert len(drawn) >= 16 or name != "variational_autoencoder.py"
    assert all(not torch.equal(one, another) for one, another in combinations(drawn, 2))
    assert all(average["n_averaged"] == 8 for average in averages)
    assert all(torch.equal(each[key], averages[0][key]) for each in averages for key in averages[0])
