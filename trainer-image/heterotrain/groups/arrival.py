"""Waits until the sums that a worker has committed are there, before anything else relies on them.

Over nccl a sum counts as completed once it is enqueued, and the steps that use it are enqueued behind it. Before a
checkpoint, an evaluation and the job's end a worker waits for an event behind the newest step. It looks at the event
now and then instead of waiting inside the driver: what a member that died should have sent never comes, and only who
looks around meanwhile learns that the groups are broken.

No GPU has confirmed this yet.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from heterotrain.groups.generation import Generation

_LOOK_SECONDS = 0.002


def await_arrival(generation: Generation, device: torch.device) -> None:
    """Wait until the device has come to the end of all that it was given, where sums are only enqueued.

    Raises RuntimeError if the groups break meanwhile, and as `Generation.check_others`.
    """
    if generation.repeats or device.type != "cuda":
        return
    reached: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    reached.record(torch.cuda.current_stream(device))
    while not reached.query():
        generation.check_others()
        time.sleep(_LOOK_SECONDS)
    generation.check()  # a sum that was aborted lets the device go on, too
