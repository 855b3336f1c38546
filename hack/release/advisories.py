"""Pack advisories in OSV's format as osv-scanner reads them without a network.

    python3 advisories.py FOLDER PLACE ECOSYSTEM...

FOLDER holds advisories at any depth, as JSON or YAML, such as a copy of https://github.com/pypa/advisory-database.
Those of each ecosystem (PyPI, Debian, ...) become `PLACE/osv-scanner/ECOSYSTEM/all.zip`. The scanner takes a missing
file for an error and an empty one for good news; so an ECOSYSTEM without advisories gets an empty one and is named on
standard error.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

SUFFIXES = (".json", ".yaml", ".yml")
LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # which leaves dates and versions as they are written


def advisories(folder: Path) -> Iterator[dict[str, Any]]:
    """The advisories below a folder: mappings with an `id` and a list `affected`; other files are passed over.

    Raises ValueError, with the file's name, if one is neither JSON nor YAML.
    """
    for path in sorted(each for each in folder.rglob("*") if each.suffix in SUFFIXES):
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            found = json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader=LOADER)
        except (json.JSONDecodeError, yaml.YAMLError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from None
        if isinstance(found, dict) and isinstance(found.get("id"), str) and isinstance(found.get("affected"), list):
            yield found


def ecosystems_of(advisory: dict[str, Any]) -> set[str]:
    """Of the packages that it names: those of Debian:12 are Debian's."""
    packages = [each.get("package") for each in advisory["affected"] if isinstance(each, dict)]
    return {str(each.get("ecosystem")).partition(":")[0] for each in packages if isinstance(each, dict)}


def pack(folder: Path, place: Path, ecosystems: list[str]) -> None:
    """Raises ValueError if the folder has no advisories at all for the ecosystems, or one that cannot be read."""
    by_ecosystem: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in ecosystems}
    for advisory in advisories(folder):
        for name in ecosystems_of(advisory) & by_ecosystem.keys():
            by_ecosystem[name][advisory["id"]] = advisory
    if not any(by_ecosystem.values()):
        raise ValueError(f"{folder} has no advisories for {' or '.join(ecosystems)}")
    for name, known in by_ecosystem.items():
        archive = place / "osv-scanner" / name / "all.zip"
        archive.parent.mkdir(parents=True)
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            for identifier, advisory in known.items():
                packed.writestr(f"{identifier}.json", json.dumps(advisory))
        newest = max((str(each.get("modified", "")) for each in known.values()), default="")
        count = f"{len(known)} advisories for {name}, the newest of {newest}"
        print("scan:", count if known else f"no advisories for {name}: its packages are not looked at", file=sys.stderr)


if __name__ == "__main__":
    try:
        pack(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
    except (OSError, ValueError) as error:
        sys.exit(f"scan: {error}")
