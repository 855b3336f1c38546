"""Add Debian's packages, as `dpkg-query` lists them on standard input, to a CycloneDX list of Python's.

    dpkg-query --show --showformat '${Package}\t${Version}\t${Architecture}\n' | python3 debian_packages.py SBOM.json

It runs where an image is built, with nothing but the standard library.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote


def components(lines: Iterable[str], distribution: str) -> Iterator[dict[str, Any]]:
    """A component for each line (package, version and architecture, between tabs), by name; `distribution` is such as
    `debian-12`, without which scanners do not know whose fixes count.

    Raises ValueError if a line is of another form.
    """
    for line in sorted(lines):
        try:
            name, version, architecture = line.rstrip("\n").split("\t")
        except ValueError:
            raise ValueError(f"expected a package, its version and its architecture, found {line!r}") from None
        where = f"pkg:deb/debian/{quote(name)}@{quote(version, safe='~')}"
        purl = f"{where}?arch={quote(architecture)}&distro={quote(distribution)}"
        yield {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def release(text: str) -> str:
    """The distribution that /etc/os-release is of, as `debian-12`."""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return "-".join(values[name].strip('"') for name in ("ID", "VERSION_ID"))


def main() -> None:
    """Change the file that is named."""
    path = Path(sys.argv[1])
    document = json.loads(path.read_text(encoding="utf-8"))
    found = components(sys.stdin, release(Path("/etc/os-release").read_text(encoding="utf-8")))
    document["components"] = [*document.get("components", ()), *found]
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
