"""What `make images` says is in the images: every package at the version that is pinned, and what each image is for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.helm import REPOSITORY

SBOMS = REPOSITORY / "out" / "sbom"
PINNED = dict(
    line.split("==") for line in (REPOSITORY / "constraints.txt").read_text("utf-8").splitlines() if "==" in line
)

pytestmark = pytest.mark.e2e


@pytest.fixture(params=["operator", "trainer"])
def image(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def sbom(image: str) -> dict[str, Any]:
    assert SBOMS.is_dir(), "`make images`, which writes out/sbom, has not run here"
    document: dict[str, Any] = json.loads((SBOMS / f"heterotrain-{image}.cdx.json").read_text("utf-8"))
    return document


def packages(sbom: dict[str, Any], kind: str = "pypi") -> dict[str, str]:
    return {each["name"]: each["version"] for each in sbom["components"] if each["purl"].startswith(f"pkg:{kind}/")}


def test_list_of_an_image_is_one_that_scanners_read(sbom: dict[str, Any]) -> None:
    assert sbom["bomFormat"] == "CycloneDX"
    assert {component["purl"].partition("/")[0] for component in sbom["components"]} == {"pkg:pypi", "pkg:deb"}
    assert {"libc6", "base-files"} <= packages(sbom, "deb").keys()


def test_list_of_an_image_names_what_the_image_is_for(image: str, sbom: dict[str, Any]) -> None:
    needed = {"operator": {"aiohttp", "kopf", "kubernetes"}, "trainer": {"torch", "prometheus_client"}}
    assert needed[image] <= packages(sbom).keys()
    assert ("torch" in packages(sbom)) == (image == "trainer")


def test_packages_of_an_image_are_of_the_pinned_versions(sbom: dict[str, Any]) -> None:
    found = {name: version.partition("+")[0] for name, version in packages(sbom).items() if name in PINNED}
    assert found == {name: PINNED[name] for name in found}
