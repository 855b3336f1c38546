"""Stories of one job: real workers to whom one thing after the other happens, and the one check at their end.

What a job must end with is computed by a plain PyTorch loop in the test's own process, without the library.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import nn

from heterotrain import contract
from heterotrain import worker_metrics as table
from heterotrain.contract import TrainingConfig
from heterotrain.data.sampler import epoch_order
from heterotrain.workloads.digits import DigitsCNN, digits
from heterotrain_operator.clusters.local.partition import Partition
from trainer.gang import PATIENCE_SECONDS, Gang, with_children

SCRIPT = "tests/trainer/scripts/train.py"
DISTURBED = "tests/trainer/scripts/disturbed.py"
BREAK = (DISTURBED, "collective")
BREAK_TRANSITION = (DISTURBED, "transition")
EPOCHS, SEED, BATCH = 13, 7, 96
CONFIG = TrainingConfig(epochs=EPOCHS, seed=SEED)
IMPATIENT = replace(CONFIG, heartbeat_timeout_seconds=2.0)
EXACT = 1e-10
"""How far losses and weights in float64 may be from a plain loop's."""


@contextlib.contextmanager
def in_double() -> Iterator[None]:
    """In float64, and by one thread as workers do, for several would wait for one another beside other processes."""
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Undisturbed:
    """The losses by step, and the final weights."""

    losses: dict[int, float]
    weights: dict[str, torch.Tensor]


@cache
def undisturbed(batch: int = BATCH, epochs: int = EPOCHS, optimizer: str = "adam") -> Undisturbed:
    """What `scripts/train.py` trains, by a plain loop over whole global batches."""
    return in_plain_loop([(batch, 1.0)] * epochs * -(-len(digits()) // batch), epochs, optimizer)


def optimizer_of(model: nn.Module, name: str) -> torch.optim.Optimizer:
    """That of `scripts/train.py`."""
    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=0.005)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9 if name == "sgd" else 0.0)


def in_plain_loop(steps: Sequence[tuple[int, float]], epochs: int, optimizer: str) -> Undisturbed:
    """The same with a global batch for each step, of which an epoch's last has what is left, and a factor of its
    learning rate."""
    with in_double():
        data = digits()
        torch.manual_seed(1)
        model = DigitsCNN(8)
        made = optimizer_of(model, optimizer)
        losses: list[float] = []
        [rate] = {group["lr"] for group in made.param_groups}
        for epoch in range(epochs):
            rest = epoch_order(len(data), SEED, epoch)
            while len(rest):
                batch, factor = steps[len(losses)]
                images, labels = data[rest[:batch]]
                rest = rest[batch:]
                made.param_groups[0]["lr"] = rate * factor
                loss = nn.functional.cross_entropy(model(images), labels)
                losses.append(loss.item())
                made.zero_grad()
                loss.backward()
                made.step()
        return Undisturbed(dict(enumerate(losses)), dict(model.state_dict()))


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The most by which two states differ."""
    assert one.keys() == other.keys()
    return max((one[key] - other[key]).abs().max().item() for key in one)


def command(folder: Path, *options: str, breaking: Sequence[str] = ()) -> list[str]:
    """The script whose workers take long until the story ends; `breaking` are a script and arguments before it."""
    return [*breaking, SCRIPT, "--out", str(folder), "--optimizer", "adam", "--lasting", *options]


def story(
    folder: Path,
    batches: Sequence[int],
    config: TrainingConfig = CONFIG,
    *options: str,
    breaking: Sequence[str] = (),
    apply_at: str = "step",
    environment: dict[str, str] | None = None,
    generation: int = 1,
) -> Gang:
    """A job that lasts until `end_as_undisturbed`."""
    made = command(folder, *options, breaking=breaking)
    return Gang(folder, made, batches, config, apply_at=apply_at, environment=environment, generation=generation)


# --- what happens -----------------------------------------------------------------------------------------------------


def send(gang: Gang, sent: signal.Signals, *numbers: int) -> None:
    """Send a signal to some workers."""
    for number in numbers:
        gang.processes[number].send_signal(sent)


def formed(gang: Gang, *left: int, times: int = 1) -> None:
    """Wait until just these workers have formed their group again."""
    for number in left:
        gang.await_log(number, f"group of {len(left)} workers formed again", times=times)


def formed_at(gang: Gang) -> int:
    """The step at which the members formed their last attempt, 0 if they never did."""
    return max((int(found) for found in re.findall(r"formed again at step (\d+)", gang.logs())), default=0)


def stop_for_long(gang: Gang, *numbers: int) -> None:
    """Stop workers for longer than the heartbeat timeout, and let them go on."""
    send(gang, signal.SIGSTOP, *numbers)
    time.sleep(2 * IMPATIENT.heartbeat_timeout_seconds)
    send(gang, signal.SIGCONT, *numbers)


@contextlib.contextmanager
def cut_off(gang: Gang, number: int) -> Iterator[None]:
    """Keep one worker apart from all others, as `heterotrain chaos` does it."""
    pids = [process.pid for process in gang.processes]
    names = [member.name for member in gang.members]
    partition = Partition(lambda: {name: with_children(pid) for name, pid in zip(names, pids, strict=True)})
    partition.cut(names[number])
    try:
        yield
    finally:
        partition.heal(names[number])


# --- what must hold meanwhile -----------------------------------------------------------------------------------------


def assert_hold(gang: Gang, *numbers: int) -> None:
    """None of these takes a step, and all are at the same one."""
    for number in numbers:
        gang.await_phase(number, contract.PHASE_HOLDING)
    before = [gang.metric(number, table.STEP.name) for number in numbers]
    assert None not in before
    time.sleep(0.5)  # a step takes some milliseconds
    after = [gang.metric(number, table.STEP.name) for number in numbers]
    assert after == before, "members of a plan that holds take no step"
    assert len(set(before)) == 1, "all hold at the same step"


def assert_replayed(gang: Gang, at_most: int, *numbers: int) -> None:
    """No worker has done more steps again than so many."""
    found = [gang.metric(number, table.STEPS_REPLAYED.name) for number in numbers]
    assert all(each is not None and each <= at_most for each in found), f"steps were done again: {found}"


def assert_left(gang: Gang, *numbers: int) -> None:
    """These end in order, because a plan went on without them."""
    for number in numbers:
        assert gang.wait_for(number) == 0, "who leaves in order ends well"
        ending = gang.ending(number)
        assert ending.left and not ending.finished and not ending.asked_to_stop, "its last words say that it left"
        assert ending.step == gang.series(number)[-1].step + 1, "and after which step"
        assert not (gang.folder / f"w-{number}.pt").exists(), "the end of the script is for workers that reach it"


def assert_preempted(gang: Gang, *numbers: int) -> None:
    """These end because they were asked to stop."""
    for number in numbers:
        assert gang.wait_for(number) == contract.EXIT_PREEMPTED
        ending = gang.ending(number)
        assert ending.asked_to_stop and not ending.finished, "its last words say that it was asked to stop"


def assert_went_on_without(gang: Gang, number: int) -> None:
    """This one ends, since the others have gone on without it, and has written nothing of what they trained since."""
    assert gang.wait_for(number) == 1
    assert "has formed without this worker" in gang.ending(number).message
    assert gang.series(number)[-1].step <= formed_at(gang), "at most the step that was under way is done twice"


# --- the end ----------------------------------------------------------------------------------------------------------


def samples_in(paths: Iterable[Path]) -> dict[int, list[tuple[int, int]]]:
    """Step -> (epoch, index) of the samples that workers were given in it."""
    found: dict[int, list[tuple[int, int]]] = {}
    for path in paths:
        for line in path.read_text().splitlines():
            step, epoch, indices = line.split(" ")
            found.setdefault(int(step), []).extend((int(epoch), int(index)) for index in indices.split(","))
    return found


def samples_seen(folder: Path) -> dict[int, list[tuple[int, int]]]:
    """The same of a gang. Of a job that was resumed, what came after the checkpoint counts in the later generation
    alone."""
    seen: dict[int, list[tuple[int, int]]] = {}
    for generation in sorted({path.name.split("-")[1] for path in folder.glob("uid-*.samples")}, key=int):
        found = samples_in(folder.glob(f"uid-{generation}-*.samples"))
        seen = {step: samples for step, samples in seen.items() if step < min(found, default=step + 1)} | found
    return seen


def assert_each_sample_once_per_epoch(
    seen: dict[int, list[tuple[int, int]]], epochs: int, *, steps_done_again: bool = False
) -> None:
    """`steps_done_again`: what such a step saw twice counts once."""
    counts: Counter[tuple[int, int]] = Counter()
    for samples in seen.values():
        counts.update(dict.fromkeys(samples, 1) if steps_done_again else samples)
    assert set(counts.values()) == {1}, "no sample is seen twice in an epoch"
    expected = {(epoch, index) for epoch in range(epochs) for index in range(len(digits()))}
    assert set(counts) == expected, "every sample is seen in each epoch"


def users_of(folder: Path) -> set[int]:
    """The processes that have files of a folder open: each worker has its log, and whatever it started has it, too."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            if any(os.readlink(each).startswith(f"{folder}/") for each in path.iterdir()):  # noqa: PTH115 - may be gone
                found.add(int(path.parent.name))
    return found - {os.getpid()}


def assert_nothing_is_left(gang: Gang) -> None:
    """No process of the job runs any more, and no file is half written."""
    for number in range(len(gang.processes)):
        gang.wait_for(number)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (left := users_of(gang.folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, f"processes are left behind: {left}"
    assert not list(gang.folder.rglob("*.partial")), "files are left half written"


def end_as_undisturbed(
    gang: Gang,
    *numbers: int,
    optimizer: str = "adam",
    batch: int = BATCH,
    epochs: int = EPOCHS,
    steps_of: Callable[[], Sequence[tuple[int, float]]] | None = None,
) -> None:
    """Let these workers come to the end of their scripts. The job must have ended as if nothing had happened to it:
    with the losses and the weights of a plain loop, every sample seen once per epoch, and nothing left behind.

    With `steps_of` the loop has the global batches and factors that it gives at the end.

    A worker that was killed takes along what it has not written of its part of the losses, so if one was, losses count
    from the step on at which the others formed their last group."""
    (gang.folder / "go").touch()
    gang.succeed(*numbers)
    assert_nothing_is_left(gang)
    expected = in_plain_loop(steps_of(), epochs, optimizer) if steps_of else undisturbed(batch, epochs, optimizer)
    ended_well = {0, contract.EXIT_PREEMPTED}
    killed = any(process.poll() not in ended_well for process in gang.processes)
    first = min(record.step for number in numbers for record in gang.series(number)[:1])
    losses = gang.losses()
    since = max(first, formed_at(gang)) if killed else 0 if gang.generation == 1 else min(losses)
    steps = [step for step in expected.losses if step >= since]
    assert steps and losses.keys() >= set(steps), "every step has a loss"
    assert killed or losses.keys() == set(steps), "no step is beyond the job's end"
    worst = max(abs(losses[step] - expected.losses[step]) for step in steps)
    assert worst < EXACT, f"losses differ by {worst:.1e} from those of a plain loop"
    for number in numbers:
        worst = difference(gang.saved(number), expected.weights)
        assert worst < EXACT, f"w-{number}'s weights differ by {worst:.1e} from those of a plain loop"
    assert_each_sample_once_per_epoch(samples_seen(gang.folder), epochs, steps_done_again="formed again" in gang.logs())
