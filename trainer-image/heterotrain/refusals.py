"""Refuses what a session cannot train before it starts, with the reason and a way round."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from heterotrain.data.loading import MAIN_GUARD

_NAMED = 5  # names that a message lists before it only counts them


def check_process(*, is_in_job: bool) -> None:
    """Raises RuntimeError in a process that multiprocessing has started: in a job it is none of the workers, and alone
    it would train, too, if it only imports the script."""
    process = multiprocessing.current_process()
    # While it imports the script it does not know its parent yet; multiprocessing itself looks at this.
    imports_script = getattr(process, "_inheriting", False)
    if imports_script or (is_in_job and multiprocessing.parent_process() is not None):
        raise RuntimeError(
            f"heterotrain.join() was called in {process.name}, a process that multiprocessing has started, and only "
            f"the first process of a worker joins; {MAIN_GUARD}"
        )


def check_modules(modules: Sequence[nn.Module]) -> None:
    """Raises TypeError for modules that cannot be trained on several workers here."""
    for module in modules:
        check(module)
        if not isinstance(module, nn.Module):
            raise TypeError(f"model: expected a torch.nn.Module, or a list of them, found {type(module).__name__}")
        for name, layer in module.named_modules():
            where = name or "the model"
            check(layer)
            if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.sparse:
                raise TypeError(
                    f"{where}: its gradients are sparse, and only dense ones are summed over the workers; leave "
                    "sparse=True out"
                )
            if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.max_norm is not None:
                raise TypeError(
                    f"{where}: max_norm changes weights in forward, on workers with samples only; normalise what is "
                    "looked up instead"
                )
        check_tensors(module)


def check_tensors(module: nn.Module, prefix: str = "") -> None:
    """Raises TypeError for parameters and buffers that cannot be brought to other workers, by name."""
    for name, tensor in (*module.named_parameters(prefix), *module.named_buffers(prefix)):
        if hindrance := _hindrance(tensor):
            raise TypeError(f"{name}: {hindrance}")


def check_registered(given: object, name: str) -> None:
    """Raises TypeError for an object that checkpoints cannot hold."""
    if not (hasattr(given, "state_dict") and hasattr(given, "load_state_dict")):
        raise TypeError(f"{name}: has no state_dict() and load_state_dict()")
    if isinstance(given, nn.Module):
        check_tensors(given, name)


def _hindrance(tensor: torch.Tensor) -> str:
    """Why a tensor cannot be copied byte by byte, and what to do instead; empty if it can."""
    if is_lazy(tensor):
        return "has no shape yet, as lazy modules' until their first forward; run one before prepare()"
    if tensor.is_meta:
        return "is on the meta device, without content; load or initialise it before prepare()"
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else "nested" if tensor.is_nested else "sparse"
        return (
            f"is {kind}, and only dense tensors reach other workers; keep its parts (such as indices and values, or "
            "int_repr() and scales) as buffers, and put them together in forward"
        )
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        return "its elements lie in the same memory, as expand() leaves them, so nothing can be loaded; clone() it"
    if tensor.is_inference():
        return "was made under torch.inference_mode(), so nothing can be loaded into it; make it under torch.no_grad()"
    try:
        torch.empty(1, dtype=tensor.dtype).clone()
    except (RuntimeError, NotImplementedError):
        return f"is of {tensor.dtype}, which torch cannot copy; keep it as torch.uint8, and view it in forward"
    return ""


def check_optimizer(optimizer: object, modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    """Trainable parameters of the modules that the optimizer lacks.

    Raises TypeError for an optimizer that needs more than one gradient a step, or sparse ones, ValueError if it holds
    parameters that are none of the modules'.
    """
    check(optimizer)
    if isinstance(optimizer, (list, tuple, dict)):
        raise TypeError(
            "optimizer: expected one, found several. One that holds them and steps them all takes 15 lines (Several "
            "optimizers in docs/training-script.md); learning rates of their own need parameter groups alone. Two "
            "networks that train against each other add their losses up; if their steps must alternate, a session "
            "cannot train them"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer: expected a torch.optim.Optimizer, found {type(optimizer).__name__}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("optimizer: LBFGS computes the loss several times a step; use one that does once, such as Adam")
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise TypeError("optimizer: SparseAdam needs sparse gradients, and only dense ones are summed over the workers")
    held = {id(each): each for group in optimizer.param_groups for each in group["params"]}
    known = {id(each) for module in modules for each in module.parameters()}
    foreign = [each for key, each in held.items() if key not in known]
    if foreign:
        shapes = ", ".join(str(tuple(each.shape)) for each in foreign[:_NAMED])
        raise ValueError(
            f"the optimizer holds {len(foreign)} parameters that the model does not (of shapes {shapes}), whose "
            "gradients nobody would sum over the workers. Give all modules: session.prepare([model, criterion], ...); "
            "a single parameter, such as a temperature, is best an attribute of one of them"
        )
    return [each for module in modules for each in module.parameters() if each.requires_grad and id(each) not in held]


def check_loss(reduction: str, *, counted: bool, backward_passes: int) -> None:
    """Raises ValueError for a loss that cannot be weighted."""
    if reduction not in ("mean", "sum"):
        raise ValueError(f"loss: expected 'mean' or 'sum', found {reduction!r}")
    if backward_passes < 1:
        raise ValueError(f"backward_passes: must be at least 1, found {backward_passes}")
    if counted and backward_passes > 1:
        raise ValueError("counted: has one count for each batch, so it takes one backward pass; add the losses up")


def remark_on_lacking(modules: Sequence[nn.Module], lacking: Sequence[nn.Parameter]) -> str:
    """A warning that the optimizer lacks parameters; empty if it has all."""
    if not lacking:
        return ""
    wanted = {id(each) for each in lacking}
    names = [name for module in modules for name, each in module.named_parameters() if id(each) in wanted]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"the optimizer has not {', '.join(names[:_NAMED])}{more}, which the model would train: they stay as they are, "
        "and their gradients are dropped after each step; set requires_grad to False where that is meant"
    )


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
