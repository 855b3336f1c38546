"""The benchmark of what the library costs: its stopwatch, its arithmetic, and that it runs."""

import inspect
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import overhead
import overhead_parts
import overhead_ranks
import pytest
from overhead_parts import LIBRARY, PARTS, PLAIN, SCRIPT, Part, Stopwatch

from heterotrain.gradients import reduction
from heterotrain.groups import control


class Clock:
    """Nanoseconds that pass only where a test says so, and whenever they are read, if it says that."""

    def __init__(self, per_look: int = 0) -> None:
        self.now = 0
        self.per_look = per_look

    def __call__(self) -> int:
        self.now += self.per_look
        return self.now

    def work(self, microseconds: int) -> None:
        self.now += 1000 * microseconds


def microseconds(parts: list[Part]) -> dict[str, float]:
    return {part.name: part.microseconds for part in parts}


@pytest.mark.parametrize("target", [target for targets in PARTS.values() for target in targets])
def test_every_function_of_a_part_is_there(target: str):
    owner, name, function = overhead_parts.find(target)
    assert getattr(owner, name) is function


def test_a_property_is_no_function_that_could_be_timed():
    with pytest.raises(TypeError, match="expected a function, found property"):
        overhead_parts.find("heterotrain.training.synchronous:Synchronous.share")


def test_time_in_a_nested_part_counts_there_alone():
    clock = Clock()
    watch = Stopwatch(clock)
    inner = watch.timed("inner", lambda: clock.work(3))

    def work() -> None:
        clock.work(1)
        inner()
        inner()
        clock.work(1)

    outer = watch.timed("outer", work)
    watch.start()
    for _ in range(2):
        clock.work(5)
        outer()
    found = watch.stop(steps=2)
    assert microseconds(found) == {SCRIPT: 5, "outer": 2, "inner": 6}
    assert {part.name: part.calls for part in found} == {SCRIPT: 0, "outer": 1, "inner": 2}


def test_a_generator_takes_time_only_while_it_makes_values():
    clock = Clock()
    watch = Stopwatch(clock)
    closed = []

    def values() -> Iterator[int]:
        try:
            for each in range(3):
                clock.work(2)
                yield each
        finally:
            closed.append(True)

    timed = watch.timed("values", values)
    watch.start()
    seen = []
    for each in timed():
        clock.work(10)
        seen.append(each)
    assert microseconds(watch.stop(steps=1)) == {SCRIPT: 30, "values": 6}
    assert seen == [0, 1, 2]
    left_early = timed()
    next(left_early)
    left_early.close()
    assert closed == [True, True]


def test_a_part_that_raises_ends_there():
    clock = Clock()
    watch = Stopwatch(clock)

    def fail() -> None:
        clock.work(1)
        raise ValueError

    timed = watch.timed("fails", fail)
    watch.start()
    with pytest.raises(ValueError):
        timed()
    clock.work(4)
    assert microseconds(watch.stop(steps=1)) == {SCRIPT: 4, "fails": 1}


def test_other_threads_and_a_stopped_stopwatch_count_nothing():
    clock = Clock()
    watch = Stopwatch(clock)
    timed = watch.timed("work", lambda: clock.work(1))
    timed()
    watch.start()
    thread = threading.Thread(target=timed)
    thread.start()
    thread.join()
    assert microseconds(watch.stop(steps=1)) == {SCRIPT: 1}
    timed()
    watch.start()
    assert microseconds(watch.stop(steps=1)) == {SCRIPT: 0}


def test_what_reading_the_clock_takes_is_subtracted():
    clock = Clock(per_look=700)
    watch = Stopwatch(clock)
    inner = watch.timed("inner", lambda: clock.work(3))
    outer = watch.timed("outer", inner)
    watch.calibrate()
    watch.start()
    for _ in range(1000):
        outer()
    assert microseconds(watch.stop(steps=1000)) == pytest.approx({SCRIPT: 0, "outer": 0, "inner": 3}, abs=0.01)


def test_a_function_is_wrapped_wherever_it_was_imported(monkeypatch: pytest.MonkeyPatch):
    home, user, other = map(ModuleType, ("heterotrain.home", "heterotrain.user", "other"))

    def work() -> int:
        return 1

    for module in (home, user, other):
        module.work = work  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    overhead_parts.wrap(Stopwatch(), {"work": ["heterotrain.home:work"]})
    assert home.work is user.work is not work
    assert home.work() == 1
    assert other.work is work


def test_torch_takes_the_timed_hook_for_the_hook():
    timed = Stopwatch().timed("reduction", reduction.reduce_bucket)
    assert inspect.signature(timed) == inspect.signature(reduction.reduce_bucket)


def test_parts_are_means_over_workers_and_rounds():
    blocks = [
        (PLAIN, [Part("torch: backward", 10, 1)]),
        (PLAIN, [Part("torch: backward", 14, 1)]),
        (LIBRARY, [Part("commit", 6, 1), Part("torch: backward", 13, 1)]),
        (LIBRARY, [Part("commit", 4, 1), Part("exchange", 3, 0.5), Part("torch: backward", 15, 1)]),
    ]
    found = overhead_parts.summarise(blocks)
    assert [(each.name, each.plain, each.heterotrain, each.difference, each.calls) for each in found] == [
        ("torch: backward", 12, 14, 2, 1),
        ("exchange", 0, 1.5, 1.5, 0.25),
        ("commit", 0, 5, 5, 1),
    ]
    assert overhead_parts.render(found, "").row_count == 4


def test_blocks_of_parts_are_kept_apart(tmp_path: Path):
    for rank in range(overhead.WORKERS):
        whole = {"step_seconds": [0.1, 0.3], "cpu_seconds": 0.2, "main_cpu_seconds": 0.1}
        parts = {"parts": [{"name": "commit", "microseconds": 5.0, "calls": 1.0}]}
        lines = [{"loop": loop, **each} for each in (whole, parts) for loop in (PLAIN, LIBRARY)]
        (tmp_path / f"blocks-{rank}.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    blocks, found = overhead.read_blocks(tmp_path)
    assert [block.loop for block in blocks] == [PLAIN, LIBRARY]
    assert blocks[0].cpu_seconds == pytest.approx(0.3)
    assert blocks[0].main_cpu_seconds == pytest.approx(0.15)
    assert found == [(loop, [Part("commit", 5.0, 1.0)]) for loop in (PLAIN, LIBRARY) for _ in range(overhead.WORKERS)]


def test_steps_are_small_where_parts_are_shown_unless_said_otherwise():
    assert overhead.parse([]).width > overhead.parse(["--parts"]).width
    assert overhead.parse(["--parts", "--width", "50"]).width == 50
    assert overhead.parse(["--ranks", "64,512"]).ranks == (64, 512)


@pytest.mark.parametrize(
    "wrong", [["--ranks", "64,x"], ["--ranks", "0"], ["--ranks", "2", "--parts"], ["--rounds", "2"]]
)
def test_options_that_make_no_sense_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        overhead.parse(wrong)
    assert "error: " in capsys.readouterr().err


def test_simulated_ranks_have_a_cost_for_each_number(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(overhead_ranks, "BLOCK_SECONDS", 0.0)
    costs = overhead_ranks.measure((2, 16))
    assert {cost.ranks for cost in costs} == {2, 16}
    assert [cost.what for cost in costs if cost.ranks == 2] == [cost.what for cost in costs if cost.ranks == 16]
    assert all(cost.microseconds > 0 for cost in costs)
    assert overhead_ranks.render(costs).row_count == len(costs) / 2 + 1


def test_a_step_has_its_part_of_an_exchange_and_none_of_a_plan():
    costs = [
        overhead_ranks.Cost("divide", overhead_ranks.STEP, 64, 10),
        overhead_ranks.Cost("divide", overhead_ranks.STEP, 512, 90),
        overhead_ranks.Cost("send", overhead_ranks.EXCHANGE, 64, 16 * 5),
        overhead_ranks.Cost("read a plan", overhead_ranks.PLAN, 64, 1000),
    ]
    assert overhead_ranks.per_step(costs, 64) == pytest.approx(10 + 16 * 5 / overhead_ranks.MOST_STEPS)


def test_a_simulated_exchange_has_this_workers_part():
    group = overhead_ranks.SimulatedGroup(rank=1, world_size=3)
    signals, checksums = control.Signals(samples=4.0), control.Checksums(5.0, 6.0)
    read, everybodys = control.PendingSignals(signals, checksums, group).read()  # type: ignore[arg-type]
    assert read == signals
    assert everybodys == [control.Checksums(0.0, 0.0), checksums, control.Checksums(0.0, 0.0)]


@pytest.mark.processes
def test_it_runs_and_its_parts_are_what_a_step_takes():
    command = [sys.executable, overhead.__file__, "--parts", "--rounds", "3", "--steps", "5", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [block["loop"] for block in document["blocks"]] == [PLAIN, LIBRARY, LIBRARY, PLAIN, PLAIN, LIBRARY]
    parts = {part["name"]: part for part in document["parts"]}
    # An exchange is not in every step, so its replica checksum may be in none of these.
    assert PARTS.keys() - parts.keys() <= {"replica checksum"}
    assert all(not part["plain"] for name, part in parts.items() if name in overhead_parts.HETEROTRAIN)
    assert all(part["calls"] > 0 for name, part in parts.items() if name in overhead_parts.HETEROTRAIN)
