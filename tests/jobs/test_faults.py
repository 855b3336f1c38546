"""Faults by the command line on jobs of real workers: they train on after each, and leave nothing behind."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from heterotrain import contract
from heterotrain_operator.cli.main import main
from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.limits.mechanism import NEIGHBOUR
from jobs.worlds import LASTING, running, summary
from unit.cli.commands import eventually

pytestmark = pytest.mark.processes

WORKER = "job-g1-0"
Chaos = Callable[..., str]


@pytest.fixture
def chaos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Chaos:
    """`heterotrain chaos job` with more words: what it prints."""
    monkeypatch.chdir(tmp_path)

    def asked(*words: str) -> str:
        assert main(["chaos", "job", *words]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return asked


def neighbours_beside(token: str) -> list[int]:
    """The busy processes beside workers of a run, once they are what they are to be."""
    beside = [pid for pid in leftovers.all_pids() if f"{leftovers.ENV_RUNNER}={token}" in leftovers.environment(pid)]
    return [pid for pid in beside if NEIGHBOUR in Path(f"/proc/{pid}/cmdline").read_text()]


def test_others_train_on_while_those_that_were_killed_or_stopped_are_replaced(tmp_path: Path, chaos: Chaos) -> None:
    with running(
        tmp_path,
        ["500m"] * 3,
        least="g1",
        each="print('a batch', flush=True)",
        lasting=True,
        training=LASTING,
        membership={"heartbeatTimeoutSeconds": 5},
        runPolicy={"backoffLimit": 3},
    ) as run:
        run.trains(20)
        chaos("kill", "g0-0")  # the leader
        run.trains(5, "job-g2-0")
        chaos("kill", "g1-0")  # of which there must be one
        run.trains(1, "job-g0-1")
        run.trains(1, "job-g1-1")
        before = len(run.lives("job-g0-"))
        chaos("stop", "g0-1")  # nobody lets it go on, so it never ends by itself
        run.trains(2, "job-g2-0")
        eventually(lambda: any(run.lives("job-g0-")[before:]))
        run.hurry()
        code, out, said = run.ends()
        assert code == 0, said
        assert "RestartingWorkers" not in said
        assert summary(out)["restarts"] == 0
        assert "job-g0-1 does not answer, and the others train without it" in said
        assert "training holds until others have joined: group g1 has 0 of at least 1 workers" in said
        last = LASTING["steps"] - 1
        (whole,) = run.lives("job-g2-0")
        assert [record.step for record in whole] == list(range(last + 1)), "each step once"
        assert sum(life[-1].step == last for life in run.lives("job-") if life) == 3
        leaders = [line.split()[0] for line in said.splitlines() if line.endswith(" | a batch")]
        assert leaders[0] == "job-g0-0" != leaders[-1], "the output of whoever leads"
        assert [fault["act"] for fault in summary(out)["faults"]] == ["kill", "kill", "stop"]


def test_job_trains_on_after_faults_that_are_taken_back(tmp_path: Path, chaos: Chaos) -> None:
    with running(
        tmp_path,
        ["500m", "500m"],
        training={"globalBatchSize": 96, "steps": 1_000_000, "seed": 7},
        membership={"heartbeatTimeoutSeconds": 100},  # nobody is left behind meanwhile
    ) as run:
        run.trains(20)
        chaos("stop", "g1-0")
        eventually(lambda: {leftovers._stat_fields(pid)[0] for pid in run.worker(WORKER)} == {"T"})
        assert f"{WORKER}: stop\n" in chaos()
        chaos("continue", "g1-0")
        run.trains(20)

        chaos("slow", "g1-0", "--neighbours", "2")
        environment = next(iter(run.worker(WORKER).values()))
        token, port = environment[leftovers.ENV_RUNNER], int(environment[contract.ENV_METRICS_PORT])
        busy = eventually(lambda: two if len(two := neighbours_beside(token)) == 2 else [])
        chaos("starve", "g1-0")
        assert f"{WORKER}: slow, starve\n" in chaos()
        chaos("restore", "g1-0")
        eventually(lambda: not any(map(leftovers.alive, busy)))
        run.trains(20)

        chaos("partition", "g1-0")
        with pytest.raises(TimeoutError):
            socket.create_connection(("127.0.0.1", port), timeout=0.2)
        chaos("partition", "g1-0", "--for", "0.5")
        run.trains(20)
        socket.create_connection(("127.0.0.1", port), timeout=30).close()
        assert f"{WORKER}: no fault\n" in chaos()

        chaos("leave", "g1-0")
        eventually(lambda: not run.worker(WORKER))
        run.trains(20)
        run.command.send_signal(signal.SIGTERM)
        code, out, said = run.ends()
        assert code == 143, said
        assert "some workers did not end in time" not in said
        assert summary(out)["restarts"] == 0
        acts = [fault["act"] for fault in summary(out)["faults"]]
        lasting = ["stop", "continue", "slow", "starve", "restore", "partition", "partition", "heal", "leave"]
        assert acts == lasting
        assert f"{WORKER} is cut off from the network for 0.5 s" in (tmp_path / "out" / "report.html").read_text()
        assert main(["chaos", "job", "kill", "g1-0"]) == 2
