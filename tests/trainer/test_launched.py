"""Workers that torchrun has started, and scripts run by `python -m heterotrain`."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import heterotrain
from heterotrain import contract
from heterotrain.contract import LaunchedWorker, Member, Plan, TrainingConfig
from heterotrain.job import launched
from heterotrain.job.launched import Launched
from trainer.gang import REPOSITORY
from trainer.story import EXACT, difference, undisturbed

VARIABLES = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def environment() -> dict[str, str]:
    path = os.pathsep.join(str(REPOSITORY / each) for each in ("trainer-image", "operator", "tests"))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


class Torchrun:
    """Nodes of torchrun on this machine, of one worker each, that train by scripts/launched.py."""

    def __init__(self, folder: Path, nnodes: str, *options: str, conf: str = "", **variables: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
        self._folder = folder
        self._environment = environment() | variables
        command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nnodes}", "--nproc-per-node=1"]
        command += ["--max-restarts=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=test"]
        command += [f"--rdzv-conf={conf}"] if conf else []
        script = ["-m", "heterotrain", "tests/trainer/scripts/launched.py", "--out", str(folder)]
        self._command = [*command, *script, *options]
        self._nodes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        with (self._folder / f"log-{len(self._nodes)}").open("wb") as log:
            self._nodes.append(
                subprocess.Popen(self._command, cwd=REPOSITORY, env=self._environment, stdout=log, stderr=log)
            )

    def runs(self) -> bool:
        return all(node.poll() is None for node in self._nodes)

    def succeed(self) -> str:
        """Await the end of all; returns their logs."""
        try:
            codes = [node.wait(280) for node in self._nodes]
        finally:
            for node in self._nodes:
                node.terminate()
                node.wait(60)
        logs = "".join((self._folder / f"log-{node}").read_text() for node in range(len(self._nodes)))
        assert not any(codes), logs
        for rank in range(len(self._nodes)):
            weights = torch.load(self._folder / f"rank-{rank}.pt", weights_only=True)
            assert difference(weights, undisturbed().weights) < EXACT
        return logs


@pytest.mark.processes
def test_two_nodes_of_torchrun_are_balanced_and_go_on_from_the_checkpoint_after_a_death(tmp_path: Path) -> None:
    """The second node is slower; its worker is killed once. The model is that of a plain loop."""
    torchrun = Torchrun(tmp_path, "2", "--milliseconds", "0.3,1.5", "--dies-at", "50")
    for _ in range(2):
        torchrun.start()
    logs = torchrun.succeed()
    assert "resumed at step 50" in logs
    fast, slow = (
        [int(line.split()[1]) for line in (tmp_path / f"rank-{rank}.batches").read_text().splitlines()]
        for rank in range(2)
    )
    assert fast[0] == slow[0] == 48
    assert fast[-2] > 1.5 * slow[-2], logs


@pytest.mark.processes
@pytest.mark.long
def test_a_node_that_comes_later_trains_with_the_first_from_its_checkpoint(tmp_path: Path) -> None:
    """As the documents say, with the variable without which torch's agents wait for each other."""
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    given = ("--milliseconds", "2,2", "--dies-at", "1000000")
    torchrun = Torchrun(tmp_path, "1:2", *given, conf="last_call_timeout=2", **variables)
    torchrun.start()
    notes = tmp_path / "rank-0.batches"
    while not (notes.exists() and len(notes.read_text().splitlines()) > 12):
        assert torchrun.runs(), (tmp_path / "log-0").read_text()
        time.sleep(0.1)
    torchrun.start()
    assert "resumed at step" in torchrun.succeed()


def test_python_m_heterotrain_runs_a_script_as_python_does(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print(__name__, sys.argv[1:], sys.path[0], sys.flags.optimize)")
    command = [sys.executable, "-O", "-m", "heterotrain"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *words], check=False, env=environment(), capture_output=True, text=True)

    done = run(str(script), "-x", "y")
    assert done.stdout == f"__main__ ['-x', 'y'] {tmp_path} 1\n"
    wrong = run("nowhere.py")
    assert (wrong.returncode, wrong.stderr.splitlines()[0]) == (2, "nowhere.py: there is no such file")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"RANK": "first"}, "RANK: expected a whole number, found 'first'"),
        ({"RANK": "2"}, "2 is not below WORLD_SIZE, 2"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT: expected a port, found 70000"),
        ({"MASTER_ADDR": "nowhere.invalid"}, "MASTER_ADDR: no such host: 'nowhere.invalid'"),
    ],
)
def test_a_malformed_variable_of_the_launcher_is_named(wrong: dict[str, str], message: str) -> None:
    with pytest.raises((ValueError, ConnectionError), match=message):
        Launched(VARIABLES | wrong, TrainingConfig())


def test_a_launcher_that_says_half_of_it_is_refused_and_one_alone_needs_none() -> None:
    with pytest.raises(ValueError, match="WORLD_SIZE is 2, but MASTER_ADDR, MASTER_PORT is not set"):
        launched.is_launched({"RANK": "0", "WORLD_SIZE": "2"})
    assert not launched.is_launched({"RANK": "0", "WORLD_SIZE": "1"})


def test_a_port_of_somebody_elses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as theirs:
        port = str(theirs.getsockname()[1])
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", port)
        with pytest.raises(ConnectionError, match=rf"MASTER_PORT.*rank 0 of 2.*127\.0\.0\.1:{port}.*EADDRINUSE"):
            Launched(VARIABLES | {"MASTER_PORT": port}, TrainingConfig()).meet(32)


def test_without_what_balances_rank_0_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"heterotrain\[operator,trainer\]"):
        Launched(VARIABLES, TrainingConfig())


def test_frameworks_see_no_launcher_and_their_own_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs of four, as the user says; the third worker gets none."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for local, visible, place in [(0, "2", ("node0-gpu", 0, "gpu")), (2, "", ("node0", 0, "cpu"))]:
        monkeypatch.setattr(launched, "_hidden", {})
        given = VARIABLES | {"LOCAL_RANK": str(local), "GROUP_RANK": "0", "CUDA_VISIBLE_DEVICES": "2,3"}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        for _ in range(2):
            launched.hide_from_frameworks()
        assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & set(os.environ)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == visible
        worker = Launched(launched.launcher_environment(), TrainingConfig()).worker
        assert (worker.group, int(worker.name.rpartition("-")[2]), worker.config.device) == place
    atexit.unregister(launched._warn_of_none_met)


def test_one_process_of_torchrun_may_train_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    at_exit: list[object] = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    monkeypatch.setattr(launched, "_hidden", {})
    for name, value in (VARIABLES | {"WORLD_SIZE": "1"}).items():
        monkeypatch.setenv(name, value)
    launched.hide_from_frameworks()
    assert "RANK" not in os.environ
    assert at_exit == []


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dist.Store:
    """The launcher's, of workers that are threads here; nobody balances them."""
    store = dist.HashStore()
    monkeypatch.setattr(launched, "rendezvous", lambda *_, **__: iter([(store, 0, 0)]))
    monkeypatch.setattr(Launched, "_start_balancer", lambda self, launch: None)
    return store


def test_workers_that_are_started_again_meet_in_a_store_that_holds_what_went_before(store: dist.Store) -> None:
    for _ in range(2):
        workers = [Launched(VARIABLES | {"RANK": str(rank)}, TrainingConfig()) for rank in range(2)]
        with ThreadPoolExecutor(2) as threads:
            leader = threads.submit(workers[0].meet, 32)
            time.sleep(0.2)  # time to read what the store holds
            other = threads.submit(workers[1].meet, 64)
            met = [leader.result(60), other.result(60)]
        assert met[0].secret == met[1].secret
        assert [each.global_batch_size for each in met] == [32, 32]
        plan = Plan(1, 1, "step", tuple(Member(each.name, each.uid, "h:1", each.group, 16) for each in met))
        (met[0].plan_dir / contract.PLAN_FILE).write_text(plan.to_json())
        files = [each.plan_file(lambda: None) for each in workers]
        assert files[1].newest() is None
        assert [file.newest() for file in files] == [plan, plan]


def test_what_becomes_of_a_training_whose_balancer_ends(
    store: dist.Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a plan there is none; with one its batches stay."""
    monkeypatch.setattr(Launched, "balancer_ended", lambda self: "it ended")
    worker = Launched(VARIABLES | {"WORLD_SIZE": "1"}, TrainingConfig())
    met = worker.meet(32)
    file = worker.plan_file(lambda: None)
    with pytest.raises(RuntimeError, match="it ended"):
        file.newest()
    plan = Plan(1, 1, "step", (Member(met.name, met.uid, "h:1", met.group, 32),))
    (met.plan_dir / contract.PLAN_FILE).write_text(plan.to_json())
    assert [file.newest() for _ in range(3)] == [plan] * 3
    assert caplog.text.count("it ended. Batches stay as they are") == 1


def test_ranks_that_ask_for_other_samples_do_not_train(store: dist.Store) -> None:
    configs = [TrainingConfig(seed=rank, startup_deadline_seconds=2.0) for rank in range(2)]
    workers = [Launched(VARIABLES | {"RANK": str(rank)}, config) for rank, config in enumerate(configs)]
    with ThreadPoolExecutor(2) as threads:
        leader, other = (threads.submit(worker.meet, 32) for worker in workers)
        with pytest.raises(ValueError, match=r"seed of join\(\): rank 0 asks for 0, rank 1 for 1"):
            other.result(60)
        with pytest.raises(TimeoutError, match="ranks 1 of 2 have not come"):
            leader.result(60)


def test_ranks_that_do_not_come_are_named(store: dist.Store) -> None:
    config = TrainingConfig(startup_deadline_seconds=0.1)
    with pytest.raises(TimeoutError, match="ranks 1 of 2 have not come"):
        Launched(VARIABLES, config).meet(32)
    with pytest.raises(TimeoutError, match="rank 0 has not come"):
        Launched(VARIABLES | {"RANK": "1"}, config).meet(32)


def test_one_worker_of_a_launcher_without_checkpoints_runs_alone_and_one_without_a_launcher_keeps_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", logger="heterotrain"):
        assert heterotrain.join(checkpoints=tmp_path)._worker is None
    assert "a run alone keeps no checkpoints" in caplog.text
    for name, value in (VARIABLES | {"WORLD_SIZE": "1"}).items():
        monkeypatch.setenv(name, value)
    assert heterotrain.join()._worker is None


def test_what_another_worker_says_of_itself_is_read_with_bounds() -> None:
    with pytest.raises(ValueError, match="index: expected a whole number"):
        LaunchedWorker.from_json("{}")
    worker = LaunchedWorker("a", "u", "g", 0, "cpu", "h:1", "h:2")
    assert LaunchedWorker.from_json(worker.to_json()) == worker
    with pytest.raises(ValueError, match="uid: expected text"):
        LaunchedWorker.from_json(worker.to_json().replace('"u"', "7"))
