"""What a newcomer copies: every example manifest is valid and can run here, every example script runs alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from heterotrain_operator.api import load_manifest
from heterotrain_operator.clusters.local.template import read_templates

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDERS = ("examples", "examples/frameworks", "examples/papers")
MANIFESTS = sorted(path for folder in FOLDERS for path in (REPOSITORY / folder).glob("*.yaml"))
SCRIPTS = sorted(path for folder in FOLDERS for path in (REPOSITORY / folder).glob("*.py"))
PORTED = REPOSITORY / "examples" / "ported"


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_example_manifest_runs_an_example_script_and_meets_the_restricted_pod_security_standard(path: Path) -> None:
    job = load_manifest(path)
    commands = {argument for template in read_templates(job).values() for argument in template.command}
    scripts = [*SCRIPTS, *PORTED.glob("*.py")]
    assert commands & {str(script.relative_to(REPOSITORY)) for script in scripts}
    for group in job.spec.worker_groups:
        pod = group.template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.processes
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.stem == "digits" else pytest.mark.long) for path in SCRIPTS],
    ids=lambda path: path.name,
)
def test_example_script_runs_alone(path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "trainer-image"), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, str(path)], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    # A transformers.Trainer prints each evaluation before that line.
    assert run.stdout.splitlines()[-1].startswith("step ")
