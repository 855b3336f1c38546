"""Other frameworks' training loops in a session. Nothing of any of them is imported before a script asks for it."""

from __future__ import annotations

from typing import Any

_ACCELERATE = (
    "was prepared by accelerate; write `accelerator = heterotrain.integrations.accelerate.Accelerator(session)`, "
    "or give session.prepare() what accelerator.prepare() was given"
)
_FABRIC = "was set up by Lightning Fabric; give session.prepare() what fabric.setup() was given, and leave Fabric out"
_PARALLEL = "sums gradients over workers by itself, as the session does; give session.prepare() the module inside it"

_REFUSED: dict[tuple[str, str], str] = {
    ("accelerate", "AcceleratedOptimizer"): _ACCELERATE,
    ("accelerate", "DataLoaderDispatcher"): _ACCELERATE,
    ("accelerate", "DataLoaderShard"): _ACCELERATE,
    ("deepspeed", "DeepSpeedEngine"): "has a training loop of its own; give session.prepare() the module inside it",
    ("lightning", "LightningOptimizer"): "is Lightning's; use heterotrain.integrations.lightning.fit(session, module)",
    ("lightning", "Trainer"): "is Lightning's; use heterotrain.integrations.lightning.fit(session, module)",
    ("lightning", "_FabricDataLoader"): _FABRIC,
    ("lightning", "_FabricModule"): _FABRIC,
    ("lightning", "_FabricOptimizer"): _FABRIC,
    ("torch", "DataParallel"): _PARALLEL,
    ("torch", "DistributedDataParallel"): _PARALLEL,
    ("torch", "FullyShardedDataParallel"): _PARALLEL,
    ("transformers", "Trainer"): "is transformers'; use heterotrain.integrations.transformers.train(session, trainer)",
}
"""By package and class, what `session.prepare()` cannot be given, and what to do instead."""

_PACKAGE_OF = {"pytorch_lightning": "lightning", "lightning_fabric": "lightning"}


def check(*given: object) -> None:
    """Raises TypeError if another framework has laid hands on what `session.prepare()` is given."""
    for each in given:
        for base in type(each).__mro__:
            package = base.__module__.partition(".")[0]
            remedy = _REFUSED.get((_PACKAGE_OF.get(package, package), base.__name__))
            if remedy:
                raise TypeError(f"{type(each).__name__} {remedy}")


def refuse_options(options: dict[str, tuple[Any, str]]) -> None:
    """Raises ValueError for options that are set: a name, its value, and what to do instead."""
    for name, (value, instead) in options.items():
        if value:
            raise ValueError(f"{name} is without effect in a session; {instead}")
