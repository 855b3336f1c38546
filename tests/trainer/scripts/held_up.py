"""Runs a script of which workers are held up for some seconds.

usage: held_up.py WORKER:KIND:SECONDS[,...] SCRIPT [ARGUMENT ...]

KIND: interpreter (an extension holds Python's lock, so that no other thread runs), step, or evaluation.
"""

import ctypes
import os
import runpy
import sys
import time
from typing import Any

from torch import nn

from heterotrain.session import Session

whom, *sys.argv = sys.argv[1:]
mine = [each.split(":") for each in whom.split(",") if each.startswith(os.environ["HETEROTRAIN_WORKER"])]
kind, seconds = (mine[0][1], float(mine[0][2])) if mine else ("", 0.0)
scale, evaluate = Session.scale, nn.Module.eval
held: set[int] = set()


def holding_scale(session: Session, *given: Any) -> Any:
    if session.step == (3 if kind == "interpreter" else 6) and session.step not in held:
        held.add(session.step)
        if kind == "interpreter":
            ctypes.PyDLL(None).usleep(int(seconds * 1e6))
        else:
            time.sleep(seconds)
    return scale(session, *given)


def slow_eval(model: nn.Module) -> nn.Module:
    time.sleep(seconds)
    return evaluate(model)


if kind == "evaluation":
    nn.Module.eval = slow_eval  # type: ignore[method-assign]
elif kind:
    Session.scale = holding_scale  # type: ignore[method-assign]
runpy.run_path(sys.argv[0], run_name="__main__")
