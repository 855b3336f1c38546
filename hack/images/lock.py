"""Write operator.lock: what the operator's image needs, each package with its version and the hash of its wheel.

    .venv/bin/python hack/images/lock.py          (or `make lock`)

pip finds the versions that constraints.txt names at the package index, and says the hashes of what it would install on
this machine: so run it on the Python and the platform of the image. The image's build then accepts nothing else. The
trainer's image has no lock: its torch comes from an index or a folder of the builder's choice.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
LOCK = REPOSITORY / "operator.lock"


def requirements() -> list[str]:
    """What the operator's image needs, as pyproject.toml says it."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["operator"]]


def resolved(needed: Sequence[str], *options: str) -> Any:
    """pip's report of what it would install. Raises CalledProcessError if it finds no such set."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    wheels = ["--only-binary", ":all:", *options, *needed]
    return json.loads(subprocess.run([*command, *wheels], check=True, stdout=subprocess.PIPE).stdout)


def locked(report: Mapping[str, Any]) -> Iterator[str]:
    """A line for each package of a report, by name. Raises ValueError for one that has no hash."""
    for entry in sorted(report["install"], key=lambda each: str(each["metadata"]["name"]).lower()):
        name, version = entry["metadata"]["name"], entry["metadata"]["version"]
        sha256 = entry["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if not sha256:
            raise ValueError(f"pip knows no hash of {name} {version}")
        yield f"{name}=={version} --hash=sha256:{sha256}"


def main() -> None:
    """Write the lock."""
    lines = locked(resolved(requirements(), "--constraint", str(REPOSITORY / "constraints.txt")))
    LOCK.write_text("# Written by `make lock`.\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
