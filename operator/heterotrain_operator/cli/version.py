"""The version of the installed package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """The installed version; "unknown" in a checkout that is not installed."""
    try:
        return version("heterotrain")
    except PackageNotFoundError:
        return "unknown"
