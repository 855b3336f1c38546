"""Tables of asynchronous training: in virtual time, and what a server carries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean

from table import NONE, Documents, measured_on, table

BSP, UNIFORM, STATIC, DYNAMIC = "BSP", "uniform", "static", "dynamic"
UNIFORM_SCALED = "uniform, rates by the global batch"
WORKER_BATCH, UNSCALED = "dynamic, rates by the worker's batch", "dynamic, rates as they are"
SSP, MODELS_PUSHED, UNIFORM_PUSHED = "dynamic, SSP(5)", "dynamic, models pushed", "uniform, models pushed"
ARMS = (BSP, UNIFORM, UNIFORM_SCALED, STATIC, DYNAMIC, WORKER_BATCH, UNSCALED, SSP, UNIFORM_PUSHED, MODELS_PUSHED)
CHANGING = "changing"

PLACES: Mapping[str, tuple[str, ...]] = {
    BSP: ("HL1", "HL8"),
    UNIFORM: ("HL1", "HL2", "HL4", "HL8", CHANGING),
    UNIFORM_SCALED: ("HL1", "HL8", CHANGING),
    STATIC: ("HL4", "HL8"),
    DYNAMIC: ("HL2", "HL4", "HL8", CHANGING),
    WORKER_BATCH: ("HL8",),
    UNSCALED: ("HL8",),
    SSP: ("HL8",),
    UNIFORM_PUSHED: ("HL1", "HL8"),
    MODELS_PUSHED: ("HL8",),
}
"""Where each arm runs: it would be another one's run elsewhere, or adds nothing to what the papers say."""


def accuracy(documents: Documents) -> str:
    """A row for each model, place and arm: accuracy, time, updates and staleness, in the mean over the seeds."""
    runs = [run for document in documents for run in document["outcomes"]]
    rows = []
    for model, place, arm in dict.fromkeys((run["model"], run["place"], run["arm"]) for run in runs):
        mine = [run for run in runs if (run["model"], run["place"], run["arm"]) == (model, place, arm)]
        whole = [run["accuracy"] for run in runs if run["model"] == model and run["arm"] == BSP]
        target = 0.95 * fmean(whole) if whole else math.inf
        reached = [next((when for when, found in run["epochs"] if found >= target), None) for run in mine]
        came = [when for when in reached if when is not None]
        rows.append(
            [
                model,
                place,
                arm,
                f"{fmean(run['accuracy'] for run in mine):.1%}",
                f"{fmean(run['seconds'] for run in mine):.0f}",
                f"{fmean(came):.0f}" + ("" if len(came) == len(mine) else f" ({len(came)} of {len(mine)})")
                if came
                else NONE,
                round(fmean(run["updates"] for run in mine)),
                f"{fmean(run['staleness'] for run in mine):.1f}",
                max(run["stalest"] for run in mine),
                f"{fmean(max(run['rates']) / min(run['rates']) for run in mine):.2f}",
                f"{fmean(run['adjustments'] for run in mine):.1f}",
            ]
        )
    models = list(dict.fromkeys(row[0] for row in rows))
    rows = sorted(rows, key=lambda row: (models.index(row[0]), row[1], ARMS.index(str(row[2]))))
    headings = ("model", "level", "arm", "accuracy", "virtual seconds", "until 95 % of BSP's accuracy", "updates")
    more = ("staleness", "greatest", "fastest over slowest update rate", "adjustments")
    return table((*headings, *more), rows, texts=3)


def real(documents: Documents) -> str:
    """A row for each policy: of `asp_run`."""
    rows = []
    for run in (run for document in documents for run in document["outcomes"]):
        late = run["late_updates"].values()
        rows.append(
            [
                run["policy"],
                run["updates"],
                f"{run['updates'] / run['seconds']:.1f}",
                f"{max(late) / min(late):.2f}",
                run["staleness"],
                run["stalest"],
                run["adjustments"],
                " / ".join(map(str, run["batches"])),
            ]
        )
    headings = ("policy", "updates", "updates/s", "fastest over slowest update rate", "staleness", "greatest")
    return table((*headings, "adjustments", "last batches"), rows) + "\n\n" + measured_on(documents)


def server(documents: Documents) -> str:
    """What one parameter server carries, in the mean over the turns: of `asp_server`."""
    runs = [run for document in documents for run in document["runs"]]
    raw = fmean(run["megabytes_per_second"] for run in runs if run["kind"] == "raw")
    bare = {"raw": "a plain socket, one worker", "channel": "the peers' channel, one worker"}
    rows = []
    for kind, workers, parameters in dict.fromkeys((run["kind"], run["workers"], run["parameters"]) for run in runs):
        mine = [run for run in runs if (run["kind"], run["workers"], run["parameters"]) == (kind, workers, parameters)]
        rate = fmean(run["megabytes_per_second"] for run in mine)
        row = [f"{rate:.0f}" + (f" ({rate / raw:.0%})" if kind in ("channel", "large") else ""), "", "", ""]
        if kind not in bare:
            row[1] = f"{fmean(run['updates_per_second'] for run in mine):.0f}"
            row[2] = f"{1e3 * fmean(run['cpu_seconds_per_update'] for run in mine):.2f} ms"
        if kind == "large":
            row[3] = f"{max(run['memory_models'] for run in mine):.1f}"
        size = f"{workers} {'worker' if workers == 1 else 'workers'}, {parameters * 4 / 1e6:g} MB"
        rows.append([bare.get(kind, f"a server, {size}"), *row])
    headings = ("what moves the bytes", "MB/s", "updates/s", "server's CPU per update", "memory in models")
    return f"{table(headings, rows)}\n\n{measured_on(documents)}"


def chaos(documents: Documents) -> str:
    """A row for each schedule of faults: of `asp_chaos`."""
    rows = []
    for run in (run for document in documents for run in document["runs"]):
        options = ", ".join(f"{name}: {value}" for name, value in run["asynchronous"].items())
        more = [name for name, has in (("carry", run["carry"]), ("loaders", run["loaders"])) if has]
        rows.append(
            [
                run["seed"],
                "; ".join([options or "no bound", *more]),
                ", ".join(run["done"]),
                run["updates"],
                run["lost"],
                f"{run['servers']} / {run['lives'] - run['servers']}",
                NONE if run["difference"] is None else f"{run['difference']:.0e}",
                "; ".join(run["wrong"]) or "each sample once",
            ]
        )
    headings = (
        "seed",
        "job",
        "faults",
        "updates",
        "lost with a server",
        "servers / workers",
        "from the replay",
        "found",
    )
    return f"{table(headings, rows, texts=3)}\n\n{measured_on(documents)}"
