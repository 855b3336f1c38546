"""Tables of asynchronous training's figures."""

from __future__ import annotations

from statistics import fmean

from table import Documents, measured_on, table


def server(documents: Documents) -> str:
    """What one parameter server carries: of `asp_server`."""
    runs = [run for document in documents for run in document["runs"]]
    rates = {
        kind: fmean(run["megabytes_per_second"] for run in runs if run["kind"] == kind) for kind in ("raw", "channel")
    }
    rows = [
        ["a plain socket, one worker", f"{rates['raw']:.0f}", "", "", ""],
        [
            "the peers' channel, one worker",
            f"{rates['channel']:.0f} ({rates['channel'] / rates['raw']:.0%})",
            "",
            "",
            "",
        ],
    ]
    for run in runs:
        if run["kind"] in rates:
            continue
        rows.append(
            [
                f"a server, {run['workers']} {'worker' if run['workers'] == 1 else 'workers'}, "
                f"{run['parameters'] * 4 / 1e6:g} MB",
                f"{run['megabytes_per_second']:.0f}",
                f"{run['updates_per_second']:.0f}",
                f"{1e3 * run['cpu_seconds_per_update']:.2f} ms",
                f"{run['memory_models']:.1f}" if run["kind"] == "large" else "",
            ]
        )
    headings = ("what moves the bytes", "MB/s", "updates/s", "server's CPU per update", "memory in models")
    return f"{table(headings, rows)}\n\n{measured_on(documents)}"
