"""What other frameworks have wrapped or prepared, which `session.prepare()` refuses with a way round.

None of these frameworks is imported: their objects are known by the names of their classes.
"""

from __future__ import annotations

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
    """Raises TypeError for an object that another framework has wrapped or prepared."""
    for each in given:
        for base in type(each).__mro__:
            package = base.__module__.partition(".")[0]
            remedy = _REFUSED.get((_PACKAGE_OF.get(package, package), base.__name__))
            if remedy:
                raise TypeError(f"{type(each).__name__} {remedy}")
