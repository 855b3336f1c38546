"""Run another script unchanged, with something happening to it, or to one worker.

usage: disturbed.py WHAT [ARGUMENT...] SCRIPT [ARGUMENT...], where SCRIPT may be this one again, and WHAT is one of:

collective WORKER KIND NUMBER: one collective fails. KIND `before`: the NUMBERth gradient collective raises before
    anything was sent; `after`: it completes for the others, but reports an error here; `control`: the NUMBERth exchange
    raises; `gather`: the NUMBERth gathering of documents.
first-groups WORKER KIND: while the first groups are made, it is killed (`dies`) or does nothing more (`hangs`), after
    it has said that it is there. Making groups takes two seconds at most then.
transition WORKER KIND: something happens while members change. `dies-preparing`: it is killed when it makes the groups
    of generation 2. `breaks-preparing`: its present groups break when it learns of the next generation, once.
    `breaks-prepared`: they break when these are made, once. `misses-the-end`: it takes the collective that ends a
    generation for failed, after the others have learnt by it that all go over. `dies-handing-over`: it is killed in the
    midst of handing its state over.
held-up WORKER:KIND:SECONDS[,...]: workers are held up: their interpreter (an extension holds Python's lock, so that no
    other thread runs), a step, or each evaluation.
late-copy: checkpoints are copied as late as can be: once the training waits for it.
slow-disk FIFO: each checkpoint that the leader writes takes until the test lets it go on: what is written to the FIFO
    lets one go on for each byte. FREEZES="WORKER STEP" in the environment freezes a worker in a step.
library WORKER KIND: it says that its library is another one (`other`), or is from before workers said so (`older`).
short-stop: who is asked to stop waits no longer than three seconds for the others to end the step.
nccl: groups of gloo's say of themselves that they are nccl's. What is decided over nccl is decided here; what a GPU
    does is not shown.
"""

import ctypes
import os
import runpy
import signal
import stat
import sys
import threading
import time
from typing import Any

import torch
from torch import nn

from heterotrain.groups import control
from heterotrain.groups import generation as generations
from heterotrain.groups.control import Signals, packs
from heterotrain.groups.generation import Collective, CollectiveError, Generation
from heterotrain.session import Session
from heterotrain.state.snapshot import Snapshots
from heterotrain.state.state_copy import StateCopy
from heterotrain.training import agreeing, collectives, group, membership, traits
from heterotrain.training.group import Group
from heterotrain.training.membership import GoingOver

NAME = os.environ["HETEROTRAIN_WORKER"]
happened: list[str] = []


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Failing:
    """A collective that ends well for the others."""

    def __init__(self, collective: Any) -> None:
        self.collective = collective

    def wait(self) -> None:
        """Wait until it has ended, and fail."""
        self.collective.wait()
        raise RuntimeError("injected: connection closed by gloo")


def break_collective(worker: str, kind: str, number: str) -> None:
    broken = {"control": (torch.float64,), "gather": (torch.uint8,)}
    method = "sum" if kind in broken else "sum_gradients"
    original = getattr(Generation, method)

    def break_one(generation: Generation, tensor: torch.Tensor) -> Any:
        if tensor.dtype in broken.get(kind, (tensor.dtype,)):
            happened.append(kind)
            if len(happened) == int(number):
                if kind == "after":
                    return Failing(original(generation, tensor))
                raise RuntimeError("injected: connection closed by gloo")
        return original(generation, tensor)

    if worker == NAME:
        setattr(Generation, method, break_one)


def break_first_groups(worker: str, kind: str) -> None:
    def make_groups(_own: Generation, _store: Any) -> None:
        if kind == "dies":
            die()
        time.sleep(3600)

    generations.GROUP_SECONDS = 2.0
    if worker == NAME:
        Generation.make_groups = make_groups


def break_transition(worker: str, kind: str) -> None:
    hand_over, broadcast, make_groups = agreeing.hand_over, Generation.broadcast, Generation.make_groups
    begin_exchange, receive = Group.begin_exchange, Group.receive
    sum_over_ranks, part = membership.sum_over_ranks, GoingOver.part

    def once() -> bool:
        happened.append(kind)
        return len(happened) == 1

    def dying_make_groups(own: Generation, *arguments: Any) -> None:
        if own.number.generation == 2:
            die()
        make_groups(own, *arguments)

    def breaking_begin_exchange(own: Group, step_seconds: float) -> None:
        if own.exchange.transition.prepared and once():
            own.fail(CollectiveError(f"injected: {kind}"))
        begin_exchange(own, step_seconds)

    def breaking_receive(own: Group) -> Signals | None:
        signals = receive(own)
        if own.exchange.transition.succession is not None and once():
            own.fail(CollectiveError(f"injected: {kind}"))
        return signals

    def missing_part(own: GoingOver) -> bool:
        def missing_sum(tensor: torch.Tensor, generation: Generation) -> None:
            sum_over_ranks(tensor, generation)
            if once():
                raise CollectiveError(f"injected: {kind}")

        membership.sum_over_ranks = missing_sum
        try:
            return part(own)
        finally:
            membership.sum_over_ranks = sum_over_ranks

    def dying_hand_over(*arguments: Any, **more: Any) -> Any:
        Generation.broadcast = dying_broadcast
        return hand_over(*arguments, **more)

    def dying_broadcast(own: Generation, *arguments: Any) -> Collective:
        happened.append(kind)
        if len(happened) > 3:
            die()
        return broadcast(own, *arguments)

    if kind == "dies-handing-over":
        # On all workers, so that the others have a part of the state by then.
        control.packs = lambda tensors: packs(tensors, most_bytes=1)
    if worker == NAME:
        place, name, made = {
            "dies-preparing": (Generation, "make_groups", dying_make_groups),
            "dies-handing-over": (agreeing, "hand_over", dying_hand_over),
            "misses-the-end": (GoingOver, "part", missing_part),
            "breaks-preparing": (Group, "receive", breaking_receive),
            "breaks-prepared": (Group, "begin_exchange", breaking_begin_exchange),
        }[kind]
        setattr(place, name, made)


def hold_up(whom: str) -> None:
    scale, evaluate = Session.scale, nn.Module.eval
    kind, seconds = "", 0.0
    for each in whom.split(","):
        if each.startswith(f"{NAME}:"):
            kind, seconds = each.split(":")[1], float(each.split(":")[2])

    def holding_scale(session: Session, *given: Any) -> Any:
        if session.step == (3 if kind == "interpreter" else 6) and kind not in happened:
            happened.append(kind)
            if kind == "interpreter":
                ctypes.PyDLL(None).usleep(int(seconds * 1e6))
            else:
                time.sleep(seconds)
        return scale(session, *given)

    def slow_eval(model: nn.Module) -> nn.Module:
        time.sleep(seconds)
        return evaluate(model)

    if kind == "evaluation":
        nn.Module.eval = slow_eval
    elif kind:
        Session.scale = holding_scale


def stop_soon() -> None:
    generations.STOP_SECONDS = membership.STOP_SECONDS = 3.0


def copy_late() -> None:
    fill, before_change = StateCopy.fill, Snapshots.before_change
    waited_for = threading.Event()

    def late_fill(copy: StateCopy) -> None:
        assert waited_for.wait(60), "nobody waits for the copy"
        waited_for.clear()
        fill(copy)

    def noted_before_change(snapshots: Snapshots) -> None:
        if snapshots.under_way:
            waited_for.set()
        before_change(snapshots)

    StateCopy.fill, Snapshots.before_change = late_fill, noted_before_change


def slow_down_disk(fifo: str) -> None:
    sync, scale = os.fsync, Session.scale
    frozen, _, step = os.environ.get("FREEZES", "").partition(" ")

    def slow_sync(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # folders are synced, too
            with open(fifo, "rb", buffering=0) as allowed:  # noqa: PTH123
                assert allowed.read(1)
        sync(descriptor)

    def freezing_scale(session: Session, *given: Any) -> Any:
        if frozen == NAME and session.step == int(step):
            os.kill(os.getpid(), signal.SIGSTOP)
        return scale(session, *given)

    os.fsync, Session.scale = slow_sync, freezing_scale


def other_library(worker: str, kind: str) -> None:
    traits_of = group.traits_of

    def older_traits_of(*arguments: Any) -> dict[str, str]:
        return {name: value for name, value in traits_of(*arguments).items() if name != traits.LIBRARY}

    if worker == NAME and kind == "other":
        traits.library_of = lambda folder: "heterotrain, checksum 01234567"
    elif worker == NAME:
        group.traits_of = older_traits_of


def as_nccl() -> None:
    original = Generation.make_groups

    def make_groups(generation: Generation, store: Any, prefix: str = "", _: Any = None) -> None:
        original(generation, store, prefix)
        generation.backend = "nccl"

    def sum_gradients(generation: Generation, tensor: torch.Tensor) -> Collective:
        return generation._watched(generation.gradients.allreduce([tensor], generation._sum), "gloo")

    def await_arrival(*_: Any) -> None:
        print("waits for what is enqueued", flush=True)

    Generation.make_groups = make_groups
    Generation.sum_gradients = sum_gradients
    Generation._abort_nccl = lambda _: None
    collectives.await_arrival = await_arrival


WHAT = {
    "collective": (break_collective, 3),
    "first-groups": (break_first_groups, 2),
    "transition": (break_transition, 2),
    "held-up": (hold_up, 1),
    "late-copy": (copy_late, 0),
    "short-stop": (stop_soon, 0),
    "slow-disk": (slow_down_disk, 1),
    "library": (other_library, 2),
    "nccl": (as_nccl, 0),
}
disturb, arguments = WHAT[sys.argv[1]]
disturb(*sys.argv[2 : 2 + arguments])
sys.argv = sys.argv[2 + arguments :]
runpy.run_path(sys.argv[0], run_name="__main__")
