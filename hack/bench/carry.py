"""Fill a folder with what the command needs beside torch, for a machine where nothing can be installed.

    .venv/bin/python hack/bench/carry.py --python 3.12 --out out/carry

The folder is put on the path of Python (`gpu.py` does so by itself). It holds wheels for one version of Python and one
kind of machine, unpacked by pip; of the Kubernetes schemas it keeps only the version that manifests are checked with.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

NEEDED = ("jsonschema", "kubernetes-validate", "prometheus-client", "pydantic", "pyyaml", "rich")
"""What `heterotrain run` imports when it makes no report; the versions are those of constraints.txt."""


def version_in(name: str) -> tuple[int, ...]:
    """The numbers in the name of a folder of schemas, such as v1.37.0-local-strict."""
    return tuple(map(int, re.findall(r"\d+", name)))


def main(arguments: Sequence[str]) -> int:
    """Returns pip's exit code."""
    parser = argparse.ArgumentParser(description="Unpack what the command needs beside torch into a folder.")
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser.add_argument("--python", default=own, help=f"its version there ({own})")
    parser.add_argument("--machine", default="x86_64", help="x86_64 or aarch64")
    parser.add_argument("--out", type=Path, default=Path("out/carry"), help="the folder, replaced (out/carry)")
    options = parser.parse_args(arguments)
    shutil.rmtree(options.out, ignore_errors=True)
    platforms = [f"manylinux{tag}_{options.machine}" for tag in ("2014", "_2_17", "_2_28")]
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    words += ["--only-binary=:all:", "--implementation", "cp", "--python-version", options.python]
    words += [word for platform in platforms for word in ("--platform", platform)]
    words += ["--constraint", str(ROOT / "constraints.txt"), "--target", str(options.out), *NEEDED]
    code = subprocess.run(words, check=False).returncode
    if code:
        return code
    schemas = options.out / "kubernetes_validate" / "kubernetes-json-schema"
    folders = list(schemas.iterdir())
    newest = max(version_in(folder.name) for folder in folders)
    for folder in folders:
        if version_in(folder.name) != newest:
            shutil.rmtree(folder)
    size = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    print(f"{options.out}: {size / 2**20:.0f} MiB for Python {options.python} on {options.machine}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
