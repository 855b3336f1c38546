"""A release, made and pushed to a registry of this machine: whole, by digest, and what a user can check of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.helm import REPOSITORY
from e2e.programs import program, run
from e2e.waiting import wait_for
from heterotrain_operator.clusters.local.starting import Ports

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

CRANE = "github.com/google/go-containerregistry/cmd/crane@v0.22.1"
OUT = REPOSITORY / "out" / "release"
SOURCE = "https://git.example/team/heterotrain"
SECONDS = 600.0
MANIFESTS = "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"


def go_program(package: str) -> str:
    """The path of a Go program; the first time it is built."""
    kind = REPOSITORY / "hack" / "kind" / "lib.sh"
    return run("bash", "-c", f". {kind}; go_program {package}", seconds=SECONDS).strip()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a registry that holds nothing."""
    address = f"127.0.0.1:{Ports().take()}"
    command = [go_program(CRANE), "registry", "serve", "--address", address]
    process = subprocess.Popen(
        [*command, "--disk", tmp_path_factory.mktemp("registry")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: answers(f"http://{address}/v2/"), 30, "the registry", every=0.1)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=30)


def answers(url: str) -> bool:
    request = urllib.request.Request(url, headers={"Accept": MANIFESTS})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=5):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


def release(**variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("REGISTRY", "REPOSITORY", "SIGN")}
    environment["PATH"] = f"{Path(program('helm')).parent}:{environment['PATH']}"
    command = [REPOSITORY / "hack" / "release" / "release.sh"]
    environment |= variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.fixture(scope="module")
def references(registry: str) -> list[str]:
    """Images and charts of a release, by digest."""
    made = release(REGISTRY=f"{registry}/team", REPOSITORY=SOURCE)
    assert made.returncode == 0, made.stderr[-2000:]
    return (OUT / "oci.txt").read_text().split()


def test_images_and_charts_are_in_the_registry_under_their_digests(registry: str, references: list[str]) -> None:
    names = [reference.partition("@")[0].removeprefix(f"{registry}/team/") for reference in references]
    charts = ["charts/heterotrain", "charts/heterotrain-crds"]
    assert sorted(names) == [*charts, "heterotrain-operator", "heterotrain-trainer"]
    for reference in references:
        name, digest = reference.removeprefix(f"{registry}/").split("@")
        assert answers(f"http://{registry}/v2/{name}/manifests/{digest}")


def test_chart_from_the_registry_names_its_source_and_the_operators_image_by_digest(
    registry: str, references: list[str], tmp_path: Path
) -> None:
    pulled = ["--plain-http", "--destination", tmp_path, "--untar", f"oci://{registry}/team/charts/heterotrain"]
    run("helm", "pull", *pulled)
    about: dict[str, Any] = yaml.safe_load((tmp_path / "heterotrain" / "Chart.yaml").read_text())
    (image,) = (each for each in references if "heterotrain-operator@" in each)
    assert (about["home"], about["sources"]) == (SOURCE, [SOURCE])
    assert yaml.safe_load(about["annotations"]["artifacthub.io/images"]) == [{"name": "operator", "image": image}]
    assert f"image: {image}\n" in run("helm", "template", "a", tmp_path / "heterotrain")


@pytest.mark.usefixtures("references")
def test_files_are_those_that_the_checksums_name() -> None:
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=OUT, capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    named = {line.split()[1] for line in (OUT / "SHA256SUMS").read_text().splitlines()}
    assert named == {path.name for path in OUT.iterdir()} - {"SHA256SUMS"}
    with zipfile.ZipFile(*OUT.glob("*.whl")) as wheel, tarfile.open(*OUT.glob("heterotrain-?.?.?.tar.gz")) as source:
        assert "heterotrain_operator/main.py" in wheel.namelist()
        assert any(name.endswith("/pyproject.toml") for name in source.getnames())
    for image in ("operator", "trainer"):
        listed = json.loads((OUT / f"heterotrain-{image}.cdx.json").read_text())["components"]
        assert {each["purl"].partition("/")[0] for each in listed} == {"pkg:pypi", "pkg:deb"}


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"REPOSITORY": SOURCE}, "REGISTRY is not set"),
        ({"REGISTRY": "registry.example/team"}, "REPOSITORY is not an https URL"),
        ({"REGISTRY": "registry.example/team", "REPOSITORY": "git@git.example:a/b"}, "REPOSITORY is not an https URL"),
    ],
)
def test_release_that_lacks_an_address_is_refused(variables: dict[str, str], named: str) -> None:
    refused = release(**variables)
    assert (refused.returncode, named in refused.stderr) == (2, True)


def scan(folder: Path) -> subprocess.CompletedProcess[str]:
    """A scan of the lists in out/sbom by the advisories in a folder."""
    command = ["bash", REPOSITORY / "hack" / "release" / "scan.sh"]
    environment = {**os.environ, "ADVISORIES": str(folder), "PYTHON": sys.executable}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.mark.usefixtures("references")
def test_scan_without_a_network_finds_what_an_advisory_names_and_fails_without_any(tmp_path: Path) -> None:
    missing = scan(tmp_path)
    assert (missing.returncode, "nothing was scanned" in missing.stderr) == (2, True)
    kopf = {
        "package": {"ecosystem": "PyPI", "name": "kopf"},
        "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}],
    }
    advisory = {"id": "MADE-UP-1", "modified": "2026-01-01T00:00:00Z", "affected": [kopf]}
    (tmp_path / "MADE-UP-1.yaml").write_text(yaml.safe_dump(advisory))
    found = scan(tmp_path)
    assert found.returncode == 1, found.stderr
    assert "MADE-UP-1" in found.stdout
    assert "kopf" in found.stdout
    assert "no advisories for Debian" in found.stderr
