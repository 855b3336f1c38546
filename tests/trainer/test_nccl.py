"""What is decided otherwise over nccl, where a sum counts as completed once it is enqueued. No test needs a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from heterotrain import worker_metrics as table
from heterotrain.contract import MEMBERS_STAY, Member, Plan, TrainingConfig
from heterotrain.gradients import wire
from heterotrain.groups import making
from heterotrain.groups.arrival import await_arrival
from heterotrain.groups.convening.roster import Number
from heterotrain.groups.generation import CollectiveError, Generation
from heterotrain.groups.making import DEVICE, Maker
from heterotrain.groups.sockets import SocketCutter
from heterotrain.reporting.timing import CudaStepClock
from trainer.gang import Gang
from trainer.story import BREAK, DISTURBED

CPU, GPU = torch.device("cpu"), torch.device("cuda")
PLAN = Plan(1, 1, "step", (Member("a", "", "127.0.0.1:1", "", 1), Member("b", "", "127.0.0.1:2", "", 1)))

SCRIPT = """
import os, time, torch, heterotrain
from torch import nn
s = heterotrain.join()
name = os.environ["HETEROTRAIN_WORKER"]
torch.manual_seed(0)
m = nn.Linear(3, 1)
o = torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.5)
d = torch.utils.data.TensorDataset(torch.arange(96.0).reshape(32, 3) / 96, torch.ones(32, 1))
m, o, bs = s.prepare(m, o, d)
for x, y in bs:
    s.scale(nn.functional.mse_loss(m(x), y)).backward()
    o.step(); o.zero_grad()
    {body}
torch.save(m.state_dict(), f"{out}/{name}.pt")
"""


class Job:
    """A job of three workers in a folder, whose generations go on where the checkpoint ends."""

    def __init__(self, folder: Path, steps: int, body: str = "pass") -> None:
        self.folder = folder
        self.config = TrainingConfig(
            steps=steps, checkpoint_path=str(folder / "checkpoints"), checkpoint_every_steps=4, checkpoint_keep=9
        )
        self._body = body
        self._generation = 0

    def gang(self, *breaking: str) -> Gang:
        self._generation += 1
        folder = self.folder / str(self._generation)
        folder.mkdir(parents=True)
        path = folder / "script.py"
        path.write_text(SCRIPT.replace("{body}", self._body).replace("{out}", str(folder)))
        command = [DISTURBED, "nccl", *breaking, str(path)]
        return Gang(folder, command, (4, 2, 2), self.config, generation=self._generation)

    @property
    def saved_steps(self) -> list[int]:
        return sorted(int(path.stem.partition("-")[2]) for path in (self.folder / "checkpoints").glob("*.pt"))


def fails(gang: Gang) -> None:
    assert gang.wait() == [1, 1, 1]
    for rank in range(3):
        assert "over nccl a failed step is not repeated in place" in gang.ending(rank).message
        assert not gang.ending(rank).finished
        assert not gang.ending(rank).fatal


@pytest.mark.processes
def test_a_failed_step_ends_all_workers_and_the_job_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Members stay, and wait for what is enqueued before each checkpoint."""
    go = tmp_path / "go"
    job = Job(tmp_path / "job", 12)
    calm = Job(tmp_path / "calm", 12, f"while s.step == 3 and not os.path.exists({str(go)!r}): time.sleep(0.01)")
    with job.gang(*BREAK, "w-1", "before", "7") as gang:
        fails(gang)
    assert job.saved_steps == [4]
    with job.gang() as gang, calm.gang() as other:
        other.await_metric(0, table.STEP.name, 2)
        assert other.metric(0, table.PROTOCOL.name) == MEMBERS_STAY
        assert not other.has_said("waits for what is enqueued")
        go.touch()
        gang.succeed()
        other.succeed()
        assert other.logs().count("waits for what is enqueued") == 3 * 3
        assert all(torch.equal(gang.saved()[key], weights) for key, weights in other.saved().items())
    assert job.saved_steps == calm.saved_steps == [4, 8, 12]


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["after", pytest.param("before", marks=pytest.mark.long)])
def test_a_job_whose_last_step_fails_on_one_worker_is_finished_by_nobody(tmp_path: Path, kind: str) -> None:
    """Those for which it was completed may lack what they take for received."""
    job = Job(tmp_path, 8)
    with job.gang(*BREAK, "w-1", kind, "8") as gang:
        fails(gang)
    assert job.saved_steps == [4]
    with job.gang() as gang:
        gang.succeed()
    assert job.saved_steps == [4, 8]


@pytest.mark.processes
@pytest.mark.parametrize("then", ["break", pytest.param("pass", marks=pytest.mark.long)])
def test_a_script_that_ends_the_job_goes_on_until_its_loop_ends(tmp_path: Path, then: str) -> None:
    job = Job(tmp_path, 1000, f"if name == 'w-1' and s.step == 3: s.stop('converged'); {then}")
    with job.gang() as gang:
        if then == "pass":
            gang.succeed()
            return
        assert gang.wait() == [1, 0, 1]
        assert "over nccl a script that calls session.stop() has to go on until the loop ends by itself" in gang.logs()
    for rank in range(3):
        assert not gang.ending(rank).finished


@pytest.mark.parametrize(
    ("devices", "backend", "chosen"),
    [
        (("cuda", "cuda"), "auto", "nccl"),
        (("cuda", "cuda"), "gloo", "gloo"),
        (("cuda", "cpu"), "auto", "gloo"),
        (("cpu", "cpu"), "auto", "gloo"),
    ],
)
def test_gradients_travel_over_nccl_where_all_have_gpus_and_nobody_says_gloo(
    devices: tuple[str, str], backend: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def make_groups(_: Generation, _store: dist.Store, _prefix: str, for_nccl: dist.Store | None) -> None:
        made.append("gloo" if for_nccl is None else "nccl")

    class Served(dist.HashStore):
        port = 7

        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()

    monkeypatch.setattr(Generation, "make_groups", make_groups)
    monkeypatch.setattr(making, "dist", SimpleNamespace(TCPStore=Served))
    begun = Maker({}, lambda *_: None, None, backend, lambda: False).begin(PLAN, Number(1, 0), 0)
    begun.traits = [{DEVICE: device} for device in devices]
    store = dist.HashStore()
    store.set("ports/1", "[]")
    begun.make(store)  # type: ignore[arg-type]  # in place of the board's
    assert made == [chosen]


@pytest.mark.parametrize(
    ("device", "backend", "staged"), [(GPU, "gloo", True), (GPU, "nccl", False), (CPU, "gloo", False)]
)
def test_gradients_of_a_gpu_are_staged_where_they_travel_over_gloo(
    device: torch.device, backend: str, staged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "StagedWire", lambda *_: "staged")
    generation = groups(backend)
    assert (wire.wire_for(generation, device) == "staged") == staged


def groups(backend: str = "nccl") -> Generation:
    """Groups that are not made."""
    generation = Generation(PLAN, Number(1, 0), 0, SocketCutter())
    generation.backend = backend
    return generation


def test_broken_groups_are_aborted_once() -> None:
    aborted = Event()
    calls: list[str] = []

    def abort() -> None:
        calls.append("abort")
        aborted.set()

    generation = groups()
    generation.gradients = SimpleNamespace(abort=abort)  # type: ignore[assignment]  # in place of nccl's
    generation.break_up("a peer has ended")
    generation.break_up("again")
    assert aborted.wait(60)
    assert calls == ["abort"]
    other = groups("gloo")
    other.gradients = SimpleNamespace(abort=lambda: calls.append("gloo"))  # type: ignore[assignment]  # likewise
    other.break_up("a peer has ended")
    assert calls == ["abort"]


class Enqueued:
    """A sum of nccl's: who waits only orders the stream, and it may fail."""

    def __init__(self, error: str = "") -> None:
        self.waited: list[tuple[Any, ...]] = []
        self._error = error

    def wait(self, *given: Any) -> None:
        self.waited.append(given)
        if self._error:
            raise RuntimeError(self._error)


def test_a_sum_that_is_enqueued_is_not_polled() -> None:
    generation = groups()
    work, failed = Enqueued(), Enqueued("NCCL error: unhandled system error")
    generation._watched(work, "nccl").wait()  # type: ignore[arg-type]  # in place of nccl's
    assert work.waited == [()]
    with pytest.raises(CollectiveError, match="unhandled system error"):
        generation._watched(failed, "nccl").wait()  # type: ignore[arg-type]  # likewise


def events(monkeypatch: pytest.MonkeyPatch, query: Callable[[], bool]) -> list[str]:
    """Stand-ins for those of CUDA; what was done with them."""
    done: list[str] = []

    class Recorded:
        def record(self, _stream: object) -> None:
            done.append("recorded")

        def query(self) -> bool:
            done.append("looked at")
            return query()

    monkeypatch.setattr(torch.cuda, "Event", Recorded)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)
    return done


def test_what_is_enqueued_has_arrived_once_the_device_has_come_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, False, True])
    done = events(monkeypatch, lambda: next(answers))
    await_arrival(groups(), GPU)
    assert done == ["recorded", *["looked at"] * 3]


@pytest.mark.parametrize("goes_on", [False, True], ids=["the device is stuck", "the sum was aborted"])
def test_what_a_member_that_has_ended_should_have_sent_is_not_waited_for(
    goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = groups()

    def query() -> bool:
        generation.break_up("a peer has ended")
        return goes_on

    events(monkeypatch, query)
    with pytest.raises(CollectiveError, match="a peer has ended"):
        await_arrival(generation, GPU)


def test_a_steps_own_time_on_a_gpu_ends_with_its_last_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host only enqueues, so it measures the whole step and the device tells its parts."""
    now = [0.0]
    waited: list[float] = []

    class Timed:
        def __init__(self, **_: Any) -> None:
            self.at = 0.0

        def record(self) -> None:
            self.at = now[0]

        def synchronize(self) -> None:
            waited.append(self.at)

        def elapsed_time(self, later: Timed) -> float:
            return (later.at - self.at) * 1e3

    monkeypatch.setattr(torch.cuda, "Event", Timed)
    monkeypatch.setattr("heterotrain.reporting.timing.time", SimpleNamespace(perf_counter=lambda: now[0]))
    clock = CudaStepClock()
    pending = []
    for begin in (0.0, 10.0):
        now[0] = begin + 2.0
        clock.bucket_ready()
        now[0] = begin + 4.0
        clock.bucket_ready()
        now[0] = begin + 10.0
        clock.bucket_done()
        clock.gradients_arrived()
        pending.append(clock.finish())
    assert not waited
    assert [each.read() for each in pending] == [(4.0, 6.0), (4.0, 6.0)]
    assert waited == [4.0, 14.0]
