"""Whether decisions are still the same: 200 traces of simulated jobs, each kept as a hash.

    .venv/bin/python hack/bench/traces.py
    .venv/bin/python hack/bench/traces.py --explain "jump 2x, 8" --against HEAD~1
    .venv/bin/python hack/bench/traces.py --record

Run the first command after a change that must not alter decisions: it decides every trace again and names those that
differ from `results/traces.json`. `--explain` also decides one trace with another commit's sources, and shows the first
round that differs. Record the traces again after a change that is meant to alter decisions.

A trace has two hashes: of what was done (plans, pods, phases and the names of events), and of that with the words that
explain it. It is the same in every run on one machine; another processor may round otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path

from random_scenarios import random_scenario
from simulated_scenarios import by_name

from heterotrain_operator.clusters.simulated.cluster import BEGIN, SimulatedCluster
from heterotrain_operator.clusters.simulated.scenario import Scenario
from heterotrain_operator.core.model import Decision
from heterotrain_operator.loop import run_job

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).with_name("results") / "traces.json"
WORKERS = (3, 8)
INTERVALS = 40
TRACES = 200
STUCK_SECONDS = 3_600.0
DIGITS = 16
OVER = ("over",)

Trace = list[tuple[str, str]]
"""What each round did, and the words that explain it."""


def scenarios() -> dict[str, Callable[[], Scenario]]:
    """All that is traced, by name: every case of the table with two numbers of workers, and random jobs, every second
    of which lets its members change while they train.
    """
    found: dict[str, Callable[[], Scenario]] = {}
    for name in by_name():
        for workers in WORKERS:
            found[f"{name}, {workers}"] = partial(_of_the_table, name, workers)
    for seed in range(TRACES - len(found)):
        found[f"random {seed}"] = partial(_elastic if seed % 2 else random_scenario, seed)
    return found


def _of_the_table(name: str, workers: int) -> Scenario:
    return replace(by_name()[name].scenario(workers, "Optimal", 0), intervals=INTERVALS)


def _elastic(seed: int) -> Scenario:
    """A random scenario whose workers may join, leave and be replaced."""
    rng, drawn = random.Random(seed), random_scenario(seed)
    stragglers = replace(drawn.job.stragglers, action=rng.choice(("Report", "Rebalance", "Replace", "Remove")))
    job = replace(drawn.job, stragglers=stragglers, backoff_limit=3)
    models = {name: replace(model, protocol=3) for name, model in drawn.models.items()}
    return replace(drawn, job=job, models=models, other_workers=replace(drawn.other_workers, protocol=3))


def trace(name: str) -> Trace:
    """Decide it from begin to end."""
    scenario = scenarios()[name]()
    cluster, found = SimulatedCluster(scenario, forgetful=True), Trace()
    last_step, last_step_at = -1, cluster.now

    def over(*_: object) -> bool:
        nonlocal last_step, last_step_at
        if cluster.training.executed > last_step:
            last_step, last_step_at = cluster.training.executed, cluster.now
        return last_step >= scenario.steps or cluster.now - last_step_at > STUCK_SECONDS

    run_job(
        scenario.job,
        cluster,
        now=lambda: cluster.now,
        pause=cluster.wait,
        on_round=lambda _, decision: found.append(_line(cluster, decision)),
        until=over,
        monotonic=lambda: cluster.now,
    )
    return found


def _line(cluster: SimulatedCluster, decision: Decision) -> tuple[str, str]:
    done = [f"{cluster.now - BEGIN:.6f} s, step {cluster.training.executed}: {decision.phase}"]
    if decision.plan is not None:
        done.append(f"plan {decision.plan.to_json()}")
    done += [f"create {key.name}" for key in decision.create]
    done += [f"delete {name}" for name in decision.delete]
    done += [f"{event.kind} {event.reason}" for event in decision.events]
    return "; ".join(done), "; ".join([decision.reason, *(event.message for event in decision.events)])


def hashes(name: str) -> tuple[str, str]:
    """Of what was done, and of that with its words."""
    lines = trace(name)
    return _hash(done for done, _ in lines), _hash(f"{done}\0{words}" for done, words in lines)


def _hash(lines: Iterator[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()[:DIGITS]


def decide_all() -> dict[str, tuple[str, str]]:
    """The hashes of all traces."""
    names = list(scenarios())
    with ProcessPoolExecutor(os.cpu_count(), initializer=os.nice, initargs=(10,)) as pool:
        return dict(zip(names, pool.map(hashes, names, chunksize=4), strict=True))


def explain(name: str, against: str) -> int:
    """Print the first round of a trace that another commit decides otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", against], cwd=REPOSITORY, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        path = os.pathsep.join(str(Path(folder, part)) for part in ("operator", "trainer-image"))
        command = [sys.executable, str(Path(folder, "hack/bench/traces.py")), "--print", name]
        then = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": path}, check=True, capture_output=True, text=True
        )
    before, now = [tuple(line) for line in json.loads(then.stdout)], trace(name)
    for number, (old, new) in enumerate(zip_longest(before, now)):
        if old != new:
            print(f"round {number} of {name!r}", f"{against}:", *(old or OVER), "now:", *(new or OVER), sep="\n")
            return 1
    print(f"{name!r} is the same as with {against}")
    return 0


def main(arguments: Sequence[str]) -> int:
    """Decide, compare or record; 1 if a trace differs."""
    parser = argparse.ArgumentParser(description="Compare the decisions about simulated jobs with recorded ones.")
    parser.add_argument("--record", action="store_true", help="write the hashes instead of comparing them")
    parser.add_argument("--explain", metavar="NAME", help="the first round of a trace that --against decides otherwise")
    parser.add_argument("--against", metavar="COMMIT", default="HEAD", help="of --explain (HEAD)")
    parser.add_argument("--print", metavar="NAME", help="the rounds of one trace, as JSON")
    options = parser.parse_args(arguments)
    for name in filter(None, (options.explain, options.print)):
        if name not in scenarios():
            parser.error(f"there is no trace {name!r}; {RECORDED.name} names them")
    if options.print:
        print(json.dumps(trace(options.print)))
        return 0
    if options.explain:
        return explain(options.explain, options.against)
    found = decide_all()
    if options.record:
        RECORDED.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
        return 0
    recorded = {name: tuple(both) for name, both in json.loads(RECORDED.read_text(encoding="utf-8")).items()}
    changed = [name for name in {**recorded, **found} if recorded.get(name) != found.get(name)]
    for name in changed:
        old, new = recorded.get(name), found.get(name)
        kind = "words" if old and new and old[0] == new[0] else "decisions"
        print(f"{name}: other {kind}")
    print(f"{len(found) - len(changed)} of {len(found)} traces are the same")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
