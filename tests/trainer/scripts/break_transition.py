"""Run another script unchanged, with something happening to one worker while members change.

usage: break_transition.py WORKER KIND SCRIPT [ARGUMENT...]

KIND `dies-preparing`: it is killed when it makes the groups of generation 2. `breaks-preparing`: its present groups
break when it learns of the next generation, once. `breaks-prepared`: they break when these are made, once.
`misses-the-end`: it takes the collective that ends a generation for failed, after the others have learnt by it that
all go over. `dies-handing-over`: it is killed in the midst of handing its state over.
"""

import os
import runpy
import signal
import sys
from typing import Any

import torch

from heterotrain.groups import control
from heterotrain.groups.control import Signals, packs
from heterotrain.groups.generation import Collective, CollectiveError, Generation
from heterotrain.training import agreeing
from heterotrain.training.group import Group
from heterotrain.training.membership import GoingOver, going_over

worker, kind = sys.argv[1], sys.argv[2]
hand_over, broadcast = agreeing.hand_over, Generation.broadcast
make_groups, sum_over_ranks, part = Generation.make_groups, going_over.sum_over_ranks, GoingOver.part
begin_exchange, receive = Group.begin_exchange, Group.receive
happened = []


def dying_make_groups(own: Generation, *arguments: Any) -> None:
    if own.number.generation == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    make_groups(own, *arguments)


def break_once(group: Group) -> None:
    if not happened:
        happened.append(kind)
        group.fail(CollectiveError(f"injected: {kind}"))


def breaking_begin_exchange(own: Group, step_seconds: float) -> None:
    if own.exchange.transition.prepared:
        break_once(own)
    begin_exchange(own, step_seconds)


def breaking_receive(own: Group) -> Signals | None:
    signals = receive(own)
    if own.exchange.transition.succession is not None:
        break_once(own)
    return signals


def missing_part(own: GoingOver) -> bool:
    def missing_sum(tensor: torch.Tensor, generation: Generation) -> None:
        sum_over_ranks(tensor, generation)
        if not happened:
            happened.append(kind)
            raise CollectiveError(f"injected: {kind}")

    going_over.sum_over_ranks = missing_sum
    try:
        return part(own)
    finally:
        going_over.sum_over_ranks = sum_over_ranks


def dying_hand_over(*arguments: Any, **more: Any) -> Any:
    Generation.broadcast = dying_broadcast
    return hand_over(*arguments, **more)


def dying_broadcast(own: Generation, *arguments: Any) -> Collective:
    happened.append(kind)
    if len(happened) > 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return broadcast(own, *arguments)


if kind == "dies-handing-over":
    # On all workers, so that the others have a part of the state by then.
    control.packs = lambda tensors: packs(tensors, most_bytes=1)
if os.environ["HETEROTRAIN_WORKER"] == worker:
    if kind == "dies-preparing":
        Generation.make_groups = dying_make_groups
    elif kind == "dies-handing-over":
        agreeing.hand_over = dying_hand_over
    elif kind == "misses-the-end":
        GoingOver.part = missing_part
    elif kind == "breaks-preparing":
        Group.receive = breaking_receive
    else:
        Group.begin_exchange = breaking_begin_exchange
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
