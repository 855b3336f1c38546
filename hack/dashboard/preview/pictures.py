"""Take the pictures of the dashboards that the documents show: `make dashboard-pictures`.

A real Prometheus reads the operator and the workers of three jobs for four minutes, while things happen to them.
Grafana's own components (`app.jsx`) then draw what the dashboards' JSON asks of it, and Chromium takes the pictures.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from browser import Browser, BrowserError
from cluster import REPOSITORY, SCRAPE_SECONDS, Cluster, cluster, prometheus

DASHBOARDS = REPOSITORY / "helm/heterotrain/files/dashboards"
PICTURES = REPOSITORY / "docs" / "images"
DIGITS = {"namespace": "vision", "job": "digits"}
SHOWN = (
    ("all-jobs", "all-jobs", {"namespaces": ".+"}, "dark", ()),
    ("job", "batch-convergence", DIGITS, "light", ("Job", "Balance")),
    ("job-training", "batch-convergence", DIGITS, "light", ("Training", "Phases")),
    ("job-resources", "batch-convergence", DIGITS, "light", ("Scaling and cost", "Resources")),
    ("operator", "operator", {}, "dark", ()),
)
"""Pictures, each with its dashboard, the values of its variables, its theme, and its rows if not all are shown."""

PRICES = {"large": ("1", 0.40), "small": ("400m", 0.12)}
"""CPU limit and price per hour of a group's machines; a worker waits as long as so many cores would compute."""


def job(namespace: str, name: str, samples: int, steps: int, *, policy: str = "Optimal", **replicas: int) -> Any:
    """A manifest; groups by their replicas."""

    def group(name: str) -> Any:
        cpu, price = PRICES[name]
        container = {
            "name": "trainer",
            "image": "heterotrain-trainer:0.1.0",
            "command": ["python", "hack/dashboard/preview/worker.py"],
            "resources": {"limits": {"cpu": cpu, "memory": "2Gi"}},
        }
        template = {"spec": {"containers": [container]}}
        return {"name": name, "replicas": replicas[name], "pricePerHour": price, "template": template}

    return {
        "apiVersion": "heterotrain.dev/v1alpha1",
        "kind": "HeteroTrainingJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "workerGroups": [group(name) for name in replicas],
            "training": {"globalBatchSize": samples, "steps": steps, "seed": 7},
            "batching": {"policy": policy, "initial": "Uniform"},
        },
    }


def play(jobs: Cluster) -> tuple[float, float]:
    """What happens; returns from when to when it is shown, in Unix seconds."""
    jobs.apply(job("vision", "digits", 240, 5000, large=1, small=2))
    jobs.apply(job("vision", "letters", 180, 500, large=1, small=1))
    jobs.apply(job("language", "readings", 96, 5000, large=1, small=1, policy="Uniform"))
    while not jobs.all_train():
        jobs.pass_(1)
    began = time.time() - 20
    jobs.pass_(75)
    jobs.kubelet.give("vision", "digits-large-0", 1.0, neighbours=1)
    jobs.pass_(60)
    jobs.kubelet.kill("vision", "digits-small-")
    jobs.pass_(60)
    return began, time.time()


def panels(dashboard: Any, rows: Sequence[str]) -> list[Any]:
    """Those of a dashboard's rows, moved up to where the picture begins; of all if none are named."""
    found, row = [], ""
    for panel in dashboard["panels"]:
        row = panel["title"] if panel["type"] == "row" else row
        if not rows or row in rows:
            found.append(panel)
    top = found[0]["gridPos"]["y"]
    return [{**panel, "gridPos": {**panel["gridPos"], "y": panel["gridPos"]["y"] - top}} for panel in found]


def photograph(app: Path, url: str, began: float, ended: float) -> None:
    """Draw each dashboard with what `build.sh` built. Raises BrowserError."""
    with Browser() as browser:
        for name, of, variables, theme, rows in SHOWN:
            dashboard = json.loads((DASHBOARDS / f"{of}.json").read_text())
            given = {"url": url, "from": began, "to": ended, "theme": theme, "scrape": SCRAPE_SECONDS}
            given |= {"dashboard": {**dashboard, "panels": panels(dashboard, rows)}, "variables": variables}
            file = app / f"{name}.html"
            file.write_text(
                "<!doctype html><meta charset=utf-8><link rel=stylesheet href=app.css>"
                "<body style='margin:0'><div id=root></div>"
                f"<script>window.preview = {json.dumps(given)}</script><script src=app.js></script>"
            )
            browser.open(file, width=1600, theme=theme)
            browser.evaluate("window.drawn")
            (PICTURES / f"dashboard-{name}.png").write_bytes(browser.screenshot())


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("app", type=Path, help="folder in which build.sh built the drawing")
    parser.add_argument(
        "series", type=Path, help="folder of the recorded series; if there, they are not recorded again"
    )
    chosen = parser.parse_args()
    series: Path = chosen.series.resolve()
    span = series / "span.json"
    if not span.is_file():
        if series.exists():
            parser.error(f"{series} has no {span.name}, so its series are not all there; remove it")
        series.mkdir(parents=True)
        with cluster(series) as jobs:
            span.write_text(json.dumps(play(jobs)))
    try:
        with ExitStack() as stack:
            photograph(chosen.app, prometheus(series, stack), *json.loads(span.read_text()))
    except BrowserError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
