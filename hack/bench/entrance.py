"""Record what README shows: three unequal CPU workers under our policy and under equal batches, by the very command of
`make demo`, on a terminal of 80 columns. The loss by time and what the terminal showed are kept; `page.py` draws them.

    .venv/bin/python hack/bench/entrance.py --out hack/bench/results/entrance/digits.json
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

import runner
from table import OWN_POLICY, UNIFORM

JOB, OUT = "examples/digits-hetero.yaml", "out/demo"
ROWS, COLUMNS = 30, 80
PART = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|[\r\n]|[^\x1b\r\n]+")
TORN = re.compile(r"\x1b[^A-Za-z]*$")
REST_SECONDS = 0.05
TRAINING = re.compile(rf"({OWN_POLICY}|{UNIFORM})\S* .*━.* step [1-9]")
LONGEST_SECONDS = 900.0
"""Of a recording: several times what it takes. The command then gets GRACE_SECONDS to end its workers."""
GRACE_SECONDS = 60.0
FRAMES = 7
"""Of those that show a policy training; the last one shows the comparison."""


class Terminal:
    """What a terminal shows of the output of rich, which erases whole lines and writes them again."""

    def __init__(self) -> None:
        self._lines, self._row = [""], 0

    def feed(self, output: str) -> None:
        """Take output; colours stay in the lines as they are."""
        for part in PART.finditer(output):
            if part[0] == "\n":
                self._row += 1
                self._lines += [""] * (self._row + 1 - len(self._lines))
            elif part[2] == "A":
                self._row -= int(part[1] or 1)
            elif part[2] == "K":
                self._lines[self._row] = ""
            elif part[0] != "\r" and part[2] in ("m", None):
                self._lines[self._row] += part[0]

    def shown(self) -> list[str]:
        """The lines in sight."""
        lines = self._lines[:]
        while lines and not lines[-1]:
            lines.pop()
        return lines[-ROWS:]


def record(command: Sequence[str], longest: float = LONGEST_SECONDS) -> list[tuple[float, list[str]]]:
    """What a terminal shows while a command runs, each time that it comes to rest, with the seconds since the start.

    Raises BenchmarkError if the command fails, or has not ended after `longest` seconds.
    """
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    began, terminal, seen = time.monotonic(), Terminal(), []
    decoder, torn, is_new = codecs.getincrementaldecoder("utf-8")(), "", False
    with subprocess.Popen(command, stdout=child, stderr=child, cwd=runner.REPOSITORY, env=environment) as process:
        os.close(child)
        while time.monotonic() - began < longest:
            if select.select([parent], [], [], REST_SECONDS)[0]:
                try:
                    output = torn + decoder.decode(os.read(parent, 2**16))
                except OSError:  # nobody writes any more
                    break
                torn = unfinished[0] if (unfinished := TORN.search(output)) else ""
                terminal.feed(output.removesuffix(torn))
                is_new = True
            elif is_new:
                seen.append((round(time.monotonic() - began, 1), terminal.shown()))
                is_new = False
        try:
            process.wait(max(began + longest - time.monotonic(), 0.0))
            hangs = False
        except subprocess.TimeoutExpired:
            hangs = True
            _end(process)
    os.close(parent)
    seen.append((round(time.monotonic() - began, 1), terminal.shown()))
    if hangs or process.returncode != 0:
        how = f"has not ended after {longest:g} s" if hangs else "failed"
        raise runner.BenchmarkError(f"the run {how}:\n" + "\n".join(terminal.shown()))
    return seen


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def losses(series: Path) -> list[tuple[float, float]]:
    """The loss over the global batch of each step, and the seconds since the first step, from the workers' records."""
    steps: dict[int, list[dict[str, float]]] = {}
    for line in series.read_text(encoding="utf-8").splitlines():
        steps.setdefault((entry := json.loads(line))["step"], []).append(entry)
    first = max(entry["time"] for entry in steps[min(steps)])
    return [
        (round(max(each["time"] for each in step) - first, 2), round(sum(each["loss"] or 0 for each in step), 5))
        for _, step in sorted(steps.items())
    ]


def main(arguments: Sequence[str]) -> int:
    """Record once. Raises BenchmarkError if the run fails."""
    options = runner.options_of(argparse.ArgumentParser(description=__doc__.splitlines()[0])).parse_args(arguments)
    machine = runner.machine()
    words = ["run", JOB, "--compare", UNIFORM, "--out", OUT, "--fresh"]
    seen = record([str(Path(sys.executable).with_name("heterotrain")), *words])
    folder = runner.REPOSITORY / OUT
    trials = {policy: losses(folder / f"{policy.lower()}-1-series.jsonl") for policy in (OWN_POLICY, UNIFORM)}
    training = [each for each in seen if any(TRAINING.search(line) for line in each[1][-3:])]
    chosen = [training[index * len(training) // FRAMES] for index in range(FRAMES)] + seen[-1:]
    document = {
        "benchmark": "entrance",
        "machine": machine,
        "job": JOB,
        "command": " ".join(["heterotrain", *words]),
        "rows": ROWS,
        "columns": COLUMNS,
        "losses": trials,
        "frames": [
            {"seconds": seconds, "lines": [line.replace(f"{runner.REPOSITORY}/", "") for line in lines]}
            for seconds, lines in chosen
        ],
    }
    runner.report(document, "\n".join(chosen[-1][1]), options)
    return 0


if __name__ == "__main__":
    runner.command(main)
