"""Find this process's folder among the cgroup hierarchies that are mounted, as containers and machines show them."""

from __future__ import annotations

from pathlib import Path


def folder_of(controller: str, memberships: list[list[str]], mounts: list[list[str]]) -> Path | None:
    """This process's folder of a version 1 controller; of version 2, if the controller has no name."""
    for membership in memberships:
        if len(membership) != 3 or controller not in membership[1].split(","):
            continue
        for fields in mounts:
            if "-" not in fields[6:] or not _holds(controller, fields):
                continue
            root, mount_point = fields[3], Path(fields[4])
            path = membership[2].removeprefix(root) if root != "/" else membership[2]
            # In a container the path may be that of the host, and the mount shows this cgroup alone.
            for folder in (mount_point / path.lstrip("/"), mount_point):
                if _is_cgroup(folder):
                    return folder
    return None


def _is_cgroup(folder: Path) -> bool:
    """Whether it is there, and may be looked into."""
    try:
        return (folder / "cgroup.procs").exists()
    except OSError:
        return False


def _holds(controller: str, mount: list[str]) -> bool:
    kind = mount[mount.index("-", 6) + 1 :][:1]
    return kind == ["cgroup2"] if not controller else kind == ["cgroup"] and controller in mount[-1].split(",")
