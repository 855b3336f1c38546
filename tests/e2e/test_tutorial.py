"""The tutorial's part on a cluster, done as its page says: with a folder of the nodes behind its claim, and with images
loaded instead of pushed, since a test cluster has no registry."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from e2e.cluster import Cluster
from e2e.helm import REPOSITORY
from e2e.installation import Installation
from e2e.programs import program, run
from e2e.shared_folder import FOLDER, volume
from pages import files_and_script, follow

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

REGISTRY = "registry.example"
LOAD = REPOSITORY / "hack" / "kind" / "load.sh"


def test_tutorial_leads_from_a_script_to_its_result_on_a_cluster(
    cluster: Cluster, installation: Installation, namespace: str, tmp_path: Path
) -> None:
    classes = json.loads(cluster.kubectl("get", "storageclasses", "--output=json"))["items"]
    default = "storageclass.kubernetes.io/is-default-class"
    named = [each["metadata"]["name"] for each in classes if each["metadata"].get("annotations", {}).get(default)]
    name = f"{namespace}-tutorial"
    folder, _ = volume(name, namespace, "digits", f"{FOLDER}/{namespace}")
    folder["spec"]["storageClassName"] = named[0] if named else ""
    cluster.apply(folder)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(cluster.kubectl("config", "view", "--raw", "--minify", "--flatten"), encoding="utf-8")
    kubeconfig.chmod(0o600)
    run("kubectl", f"--kubeconfig={kubeconfig}", "config", "set-context", "--current", f"--namespace={namespace}")
    run("docker", "tag", "heterotrain-trainer:0.1.0", f"{REGISTRY}/heterotrain-trainer:0.1.0")
    scripts, _ = files_and_script("tutorial.md")
    (tmp_path / "train.py").write_text(scripts["train.py"], encoding="utf-8")
    path = {str(Path(program(each)).parent) for each in ("kubectl", "docker", "kind")}
    try:
        printed = follow(
            "tutorial-cluster.md",
            tmp_path,
            800,
            {"KUBECONFIG": str(kubeconfig), "REGISTRY": REGISTRY, "PATH": os.pathsep.join([*path, os.environ["PATH"]])},
            lambda script: script.replace("docker push", str(LOAD)),
        )
    finally:
        cluster.kubectl("delete", "persistentvolume", name, "--wait=false")
    assert "Succeeded" in printed
    assert (tmp_path / "best.pt").stat().st_size > 0
