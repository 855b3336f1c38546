"""What is said and demanded of the images' packages: hashes, Debian's packages in the list, signatures."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def script(name: str, folder: str = "images") -> ModuleType:
    """A script of hack/ as a module."""
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "hack" / folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(folder: Path, text: str) -> Path:
    """A package of one module."""
    path = folder / "tiny-1.0-py3-none-any.whl"
    files = {
        "tiny.py": text,
        "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr("tiny-1.0.dist-info/RECORD", "".join(f"{name},,\n" for name in files))
    return path


def test_locked_package_is_accepted_and_another_of_its_name_and_version_is_not(tmp_path: Path) -> None:
    wheel(tmp_path, "GOOD = True")
    offline = ("--no-index", "--find-links", str(tmp_path))
    lock = script("lock")
    lines = list(lock.locked(lock.resolved(["tiny"], *offline)))
    (tmp_path / "lock").write_text("\n".join(lines))
    install = [sys.executable, "-m", "pip", "install", *offline, "--target", str(tmp_path / "out"), "--require-hashes"]
    command = [*install, "--requirement", str(tmp_path / "lock")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    wheel(tmp_path, "GOOD = False")
    run = subprocess.run([*command, "--upgrade"], capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "DO NOT MATCH THE HASHES" in run.stderr


def test_images_install_by_hash_what_they_need_at_the_versions_of_all_others() -> None:
    pinned = dict(
        re.findall("^([^#=\\s]+)==(\\S+)$", (REPOSITORY / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    )
    for name, needed in script("lock").requirements().items():
        lines = (REPOSITORY / "hack" / "images" / f"{name}.lock").read_text("utf-8").splitlines()[1:]
        assert all("--hash=sha256:" in line for line in lines)
        locked = dict(line.split()[0].split("==") for line in lines)
        assert locked.items() <= pinned.items()
        wanted = {re.match(r"[\w-]+", each)[0] for each in needed} - {"torch"}
        assert {canonical(each) for each in wanted} <= {canonical(each) for each in locked}
    for dockerfile in ("Dockerfile", "trainer-image/Dockerfile"):
        text = (REPOSITORY / dockerfile).read_text(encoding="utf-8")
        installs = re.findall(r"pip install ((?:.|\\\n)+?)(?:\\\n|$)", text, re.MULTILINE)
        assert {"--require-hashes" in each or "torch==$version" in each for each in installs} == {True}


def canonical(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def test_debian_packages_are_listed_as_scanners_know_them() -> None:
    debian = script("debian_packages")
    (component,) = debian.components(["libc6\t2.36-9+deb12u13\tamd64\n"], debian.release('ID=debian\nVERSION_ID="12"'))
    assert component["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64&distro=debian-12"
    with pytest.raises(ValueError, match="found 'libc6'"):
        list(debian.components(["libc6"], "debian-12"))


ADVISORY = """
id: MADE-UP-1
modified: 2026-01-01T00:00:00Z
affected:
- package: {name: tiny, ecosystem: PyPI}
  versions: [1.10]
"""


def test_advisories_are_packed_as_the_scanner_reads_them_and_what_has_none_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    advisories = script("advisories", "release")
    (tmp_path / "vulns" / "tiny").mkdir(parents=True)
    (tmp_path / "vulns" / "tiny" / "MADE-UP-1.yaml").write_text(ADVISORY)
    (tmp_path / "other.json").write_text("[]")
    (tmp_path / "of-no-package.json").write_text('{"id": "MADE-UP-2", "affected": [{"package": null}, null]}')
    advisories.pack(tmp_path, tmp_path / "out", ["PyPI", "Debian"])
    with zipfile.ZipFile(tmp_path / "out" / "osv-scanner" / "PyPI" / "all.zip") as packed:
        found = json.loads(packed.read("MADE-UP-1.json"))
    assert (found["modified"], found["affected"][0]["versions"]) == ("2026-01-01T00:00:00Z", ["1.10"])
    with zipfile.ZipFile(tmp_path / "out" / "osv-scanner" / "Debian" / "all.zip") as packed:
        assert packed.namelist() == []
    assert "no advisories for Debian: its packages are not looked at" in capsys.readouterr().err
    (tmp_path / "vulns" / "broken.yaml").write_text("{")
    with pytest.raises(ValueError, match=r"broken\.yaml"):
        advisories.pack(tmp_path, tmp_path / "out", ["PyPI"])


def test_images_are_signed_by_digest_alone(tmp_path: Path) -> None:
    (tmp_path / "cosign").write_text("#!/bin/sh\n")
    (tmp_path / "cosign").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [REPOSITORY / "hack" / "images" / "sign.sh", "registry.example/heterotrain-operator:0.1.0"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, "name the image by its digest" in run.stderr) == (2, True)


DOCKER = """#!/bin/sh
echo "$*" >> "$LOG"
case "$*" in
  *RepoDigests*) echo other@sha256:bb; echo python@sha256:aa ;;
  ps*) ;;
  *) echo 1 ;;
esac
"""


def test_images_are_built_on_the_digest_of_their_base(tmp_path: Path) -> None:
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "cache" / "dockerd").mkdir(parents=True)
    (tmp_path / "cache" / "dockerd" / "pid").write_text("0")  # the daemon is ours
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "LOG": str(tmp_path / "log"),
        "HETEROTRAIN_CACHE": str(tmp_path / "cache"),
    }
    command = ["bash", REPOSITORY / "hack" / "images" / "build.sh"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    built = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("build ")]
    assert ["BASE=python@sha256:aa" in line and "base.name=python@sha256:aa" in line for line in built] == [True, True]
