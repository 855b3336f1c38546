"""Write the locks beside this file: what the images need, each package with its version and the hashes of its wheels.

    .venv/bin/python hack/images/lock.py          (or `make lock`)

pip finds the versions that constraints.txt names at the package index, and says the hashes of what it would install in
an image of either machine type. The images' builds then accept nothing else. Only torch, and what comes with its CUDA
build, is in no lock: it comes from an index or a folder of the builder's choice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
LOCKS = Path(__file__).parent
MACHINES = ("x86_64", "aarch64")
GLIBC = range(17, 37)  # of the wheels' manylinux_2_17 up to that of Debian bookworm
NOT_LOCKED = ("torch", "triton", "nvidia-", "cuda-")


def requirements() -> dict[str, list[str]]:
    """What each image needs, as pyproject.toml says it, and the tool that lists packages."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = {image: [*project["dependencies"], *extras[image]] for image in ("operator", "trainer")}
    needed["trainer"].append("pip")  # stays in the image for those that extend it, and the base's is years old
    return {**needed, "sbom": ["cyclonedx-bom"]}


def platform(machine: str) -> list[str]:
    """pip's options for the Python and the system of the images, on a type of machine."""
    names = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC] + [f"manylinux2014_{machine}"]
    options = ["--python-version", "3.11", "--implementation", "cp", "--target", tempfile.gettempdir()]
    return [*options, *(word for name in names for word in ("--platform", name))]


def resolved(needed: Sequence[str], *options: str) -> Any:
    """pip's report of what it would install. Raises CalledProcessError if it finds no such set."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    wheels = ["--only-binary", ":all:", *options, *needed]
    # A wheel of this machine's own may be another build of the same version.
    environment = {**os.environ, "PIP_FIND_LINKS": ""}
    return json.loads(subprocess.run([*command, *wheels], check=True, stdout=subprocess.PIPE, env=environment).stdout)


def locked(*reports: Mapping[str, Any]) -> Iterator[str]:
    """A line for each package of the reports, by name, with all hashes. Raises ValueError for one that has no hash."""
    hashes: dict[tuple[str, str], set[str]] = {}
    for entry in (entry for report in reports for entry in report["install"]):
        name, version = entry["metadata"]["name"], entry["metadata"]["version"]
        sha256 = entry["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if not sha256:
            raise ValueError(f"pip knows no hash of {name} {version}")
        hashes.setdefault((name, version), set()).add(sha256)
    for (name, version), found in sorted(hashes.items(), key=lambda item: item[0][0].lower()):
        if not name.startswith(NOT_LOCKED):
            yield " ".join([f"{name}=={version}", *(f"--hash=sha256:{sha256}" for sha256 in sorted(found))])


def main() -> None:
    """Write the locks."""
    constraints = ["--constraint", str(REPOSITORY / "constraints.txt")]
    for name, needed in requirements().items():
        lines = locked(*(resolved(needed, *constraints, *platform(machine)) for machine in MACHINES))
        (LOCKS / f"{name}.lock").write_text("# Written by `make lock`.\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
