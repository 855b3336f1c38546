"""Where the library's log appears: with all others in a job, by itself in a script that runs alone."""

from __future__ import annotations

import logging


def show_log_of_worker() -> None:
    """In a job, where a pod's log is read by others: with times and names, and other libraries' messages, too."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def show_log_alone() -> None:
    """Alone, what is measured is worth seeing too, unless the script shows logs in a way of its own."""
    logger = logging.getLogger("heterotrain")
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
