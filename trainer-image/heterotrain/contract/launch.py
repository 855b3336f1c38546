"""What rank 0 of workers that a launcher has started says to the process that balances them (`balancer.py`)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from heterotrain.contract.plan import MAX_NAME_LENGTH
from heterotrain.foreign import is_text, is_whole, parse_object, shown

_MAX_WORKER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class LaunchedWorker:
    """A worker as it describes itself; `address` and `metrics_address` are `host:port`."""

    name: str
    uid: str
    group: str
    index: int
    device: str
    address: str
    metrics_address: str

    def to_json(self) -> str:
        """One document."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> LaunchedWorker:
        """Read what another worker wrote. Raises ValueError, which names the field."""
        document = parse_object(text, _MAX_WORKER_BYTES)
        index = document.get("index")
        if not is_whole(index):
            raise ValueError(f"index: expected a whole number, found {shown(index)}")
        texts = {}
        for name in ("name", "uid", "group", "device", "address", "metrics_address"):
            if not is_text(document.get(name), MAX_NAME_LENGTH):
                raise ValueError(f"{name}: expected text, found {shown(document.get(name))}")
            texts[name] = document[name]
        return cls(index=index, **texts)


@dataclass(frozen=True, slots=True)
class Launch:
    """All workers by rank, with the samples of a step in all, and the folder in which rank 0 finds its plans."""

    plan_dir: str
    global_batch_size: int
    workers: tuple[LaunchedWorker, ...]

    def to_json(self) -> str:
        """One line, without the newline."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Launch:
        """Read what rank 0 of this machine wrote."""
        document = json.loads(text)
        workers = tuple(LaunchedWorker(**each) for each in document["workers"])
        return cls(document["plan_dir"], document["global_batch_size"], workers)
