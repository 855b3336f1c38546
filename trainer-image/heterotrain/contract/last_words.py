"""A worker's last words: how it ended. They travel as its termination message."""

from __future__ import annotations

import json
from dataclasses import dataclass

from heterotrain.contract.evaluated import Evaluated
from heterotrain.foreign import as_text, is_whole, parse_object

_TERMINATION_BYTES = 4096

ERROR_MISSING_DEVICE = "MissingDeviceError"
ERRORS_THAT_PASS = frozenset({"MembershipError", "ServerLostError", "CollectiveError", "CheckpointError"})
"""Last words of a worker that an error ended begin with the name of its class, and a colon. The first of these stays as
long as the worker's place has no such device, the others speak of other workers, the network and storage.
"""

OUT_OF_MEMORY = "out of memory: "
"""So begin last words of a worker in which an allocation failed; the error follows."""


@dataclass(frozen=True, slots=True)
class Termination:
    """A worker's last words; Kubernetes shows at most 4096 bytes of them in the pod's status.

    `finished` is true only if the job's last step was committed: exit code 0 alone says nothing. It is written at that
    moment, so it also speaks of a worker that was killed afterwards. `leader`: whether that worker was the leader then,
    and so did what one worker alone does after the loop; None if it has not finished, or its version does not say.
    `asked_to_stop`:
    all workers left in order between two steps, because one of them, not necessarily this one, got SIGTERM.
    `out_of_memory`: an allocation failed, so the batch was too large; a worker that the kernel kills for that has
    no last words. `left`: a plan goes on without this worker, which left in order. `script_error`: the script
    itself raised, after `step` committed steps, which the same step will likely do again. `fatal`: whatever the
    reason, another try from the newest checkpoint would do harm or is sure to fail. `evaluated`: what was measured
    last; the leader alone has it.
    """

    finished: bool
    step: int = 0
    message: str = ""
    asked_to_stop: bool = False
    out_of_memory: bool = False
    script_error: bool = False
    fatal: bool = False
    evaluated: Evaluated | None = None
    left: bool = False
    leader: bool | None = None

    def to_json(self) -> str:
        """At most 4096 bytes; a long message is cut."""
        message = self.message
        while True:
            document = {"finished": self.finished, "step": self.step, "message": message}
            document |= {"askedToStop": True} if self.asked_to_stop else {}
            document |= {"outOfMemory": True} if self.out_of_memory else {}
            document |= {"scriptError": True} if self.script_error else {}
            document |= {"fatal": True} if self.fatal else {}
            document |= {"left": True} if self.left else {}
            document |= {"leader": self.leader} if self.leader is not None else {}
            document |= {"evaluated": self.evaluated.to_document()} if self.evaluated is not None else {}
            text = json.dumps(document)
            excess = len(text) - _TERMINATION_BYTES  # JSON is ASCII here, so characters are bytes
            if excess <= 0:
                return text
            message = message[: -max(1, excess // 6)]  # an escaped character takes six bytes

    @classmethod
    def from_text(cls, text: str) -> Termination:
        """Read last words. Text that the library did not write (a crash before it was imported) becomes the message, of
        which the end is kept. A malformed field counts as absent.
        """
        text = text.strip()
        try:
            document = parse_object(text, _TERMINATION_BYTES)
        except ValueError:
            return cls(finished=False, message=as_text(text[-_TERMINATION_BYTES:], _TERMINATION_BYTES))
        step, message = document.get("step"), document.get("message")
        return cls(
            finished=document.get("finished") is True,
            step=step if is_whole(step) else 0,
            message=as_text(message, _TERMINATION_BYTES) if isinstance(message, str) else "",
            asked_to_stop=document.get("askedToStop") is True,
            out_of_memory=document.get("outOfMemory") is True,
            script_error=document.get("scriptError") is True,
            fatal=document.get("fatal") is True,
            evaluated=Evaluated.from_document(document.get("evaluated")),
            left=document.get("left") is True,
            leader=leader if isinstance(leader := document.get("leader"), bool) else None,
        )
