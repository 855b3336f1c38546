"""Elastic jobs under random faults: whatever befalls their workers, they end with the model of the undisturbed run.

`python hack/bench/chaos.py --seeds 50` runs that many jobs of real processes by `heterotrain run`, each with `--faults`
faults drawn from its seed: workers that are killed, stopped, cut off, slowed, starved, or asked to leave, and others
that join, also close to one another. Afterwards each job must have ended well, with every sample of every step
committed, the weights of one process alone (float64, 1e-10), and with no process, file or descriptor left. The last
line sums up; the exit code is 1 if a job has failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from chaos_findings import Outcome
from chaos_job import Setting
from chaos_run import run, undisturbed
from chaos_schedule import PlannedFault, schedule, variant
from recorded_elastic import this_machine
from rich.console import Console
from rich.table import Table


def show(found: dict[int, Outcome], faults: int, console: Console) -> bool:
    """Print the table and a line that sums up; whether all jobs ended as they must."""
    table = Table("seed", "seconds", "processes", "generation", "restarts", "weights differ by", "faults", "wrong")
    for seed, outcome in found.items():
        table.add_row(
            str(seed),
            f"{outcome.seconds:.0f}",
            str(outcome.lives),
            str(outcome.generation),
            str(outcome.restarts),
            "-" if outcome.difference is None else f"{outcome.difference:.0e}",
            "\n".join(outcome.done),
            "\n".join(outcome.wrong),
        )
    console.print(table)
    failed = [seed for seed, outcome in found.items() if outcome.wrong]
    known = [outcome.difference for outcome in found.values() if outcome.difference is not None]
    console.print(
        f"{len(found)} jobs, {faults} faults: {len(found) - len(failed)} ended as the undisturbed run "
        f"(weights differ by {max(known, default=float('nan')):.0e} at most, goal 1e-10); "
        f"failed seeds: {', '.join(map(str, failed)) or 'none'}"
    )
    return not failed


def record(
    machine: dict[str, object],
    setting: Setting,
    planned: dict[int, Sequence[PlannedFault]],
    found: dict[int, Outcome],
) -> dict[str, object]:
    """All of a benchmark as JSON."""
    verbs = Counter(fault.verb for seed in found for fault in planned[seed])
    runs = []
    for seed, outcome in found.items():
        faults = [asdict(fault) for fault in planned[seed]]
        runs.append({"seed": seed, **asdict(variant(seed)), "planned": faults, **asdict(outcome)})
    failed = [seed for seed, outcome in found.items() if outcome.wrong]
    head = {"benchmark": "chaos", "machine": machine, "setting": asdict(setting)}
    return head | {"verbs": dict(sorted(verbs.items())), "failed": failed, "runs": runs}


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description="Run elastic jobs under random faults.")
    parser.add_argument("--seeds", type=int, default=50, help="jobs (50)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=4, help="of each job (4)")
    parser.add_argument("--workers", type=int, default=3, help="of each job, at least 2 (3)")
    parser.add_argument("--out", type=Path, help="write all figures as JSON to this file, after every job")
    parser.add_argument("--keep", type=Path, help="keep the folders of jobs that fail below this one")
    options = parser.parse_args()
    setting = Setting(workers=options.workers)
    machine = this_machine()
    console = Console(width=200)
    found: dict[int, Outcome] = {}
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    planned = {seed: schedule(seed, options.workers, options.faults, setting.heartbeat_timeout) for seed in seeds}
    with tempfile.TemporaryDirectory(prefix="heterotrain-chaos-") as folder:
        expected = undisturbed(Path(folder) / "alone", setting)
        for seed in seeds:
            place = Path(folder) / str(seed)
            outcome = found[seed] = run(place, setting, planned[seed], expected, variant(seed))
            print(f"seed {seed}: {'; '.join(outcome.wrong) or 'ended well'}", file=sys.stderr, flush=True)
            if outcome.wrong and options.keep is not None:
                with contextlib.suppress(shutil.Error):  # sockets that are left cannot be copied
                    shutil.copytree(place, options.keep / str(seed), symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(place)
            if options.out is not None:
                options.out.write_text(json.dumps(record(machine, setting, planned, found), indent=1) + "\n")
    return 0 if show(found, sum(len(planned[seed]) for seed in found), console) else 1


if __name__ == "__main__":
    sys.exit(main())
