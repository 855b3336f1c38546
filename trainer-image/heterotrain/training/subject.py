"""What is trained: the script's modules and its optimizer, and what the session keeps of them and does after a step."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from heterotrain.data.order import Order
from heterotrain.gradients.accumulation import Accumulator
from heterotrain.gradients.counting import LossKind
from heterotrain.gradients.passes import Passes
from heterotrain.state.hyperparameters import Hyperparameters
from heterotrain.state.structure import Structure, structure_of
from heterotrain.training.places import Places, check_held
from heterotrain.training.rate_scaling import RateScaling, rates
from heterotrain.training.schedules import Schedules

_requires_grad = attrgetter("requires_grad")

REPLACED = "of a module that was replaced"


@dataclass(slots=True)
class Subject:
    """`module` is the script's model, or holds its models, and `handle` is what the script holds of it. `lacking` are
    trainable parameters that `optimizer` has not; `order` is that of an epoch's samples. `find_unused_parameters`: each
    forward may leave other parameters out. After each committed step the registered `schedules` are stepped and the
    functions `after_step` are called."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    device: torch.device
    order: Order
    handle: Any = None
    loss: LossKind = field(default_factory=LossKind)
    lacking: Sequence[nn.Parameter] = ()
    backward_passes: int = 1
    find_unused_parameters: bool = False
    rate_scaling: RateScaling = field(default_factory=RateScaling)
    samples: dict[str, str] = field(init=False, default_factory=dict)  # a few of them, as traits
    schedules: Schedules = field(init=False, default_factory=Schedules)
    after_step: list[Callable[[], object]] = field(init=False, default_factory=list)
    accumulator: Accumulator = field(init=False)
    passes: Passes = field(init=False)
    hyperparameters: Hyperparameters = field(init=False)
    trained: list[nn.Parameter] = field(init=False)
    _names: dict[nn.Parameter, str] = field(init=False)
    _places: Places | None = field(init=False, default=None)
    structure: Structure = field(init=False, default_factory=dict)
    _frozen: list[nn.Parameter] = field(init=False, default_factory=list)
    _free: list[nn.Parameter] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.accumulator = Accumulator(self.module)
        self.passes = Passes(self.module, self.accumulator, self.backward_passes)
        self.hyperparameters = Hyperparameters(self.optimizer)
        self._names = {each: name for name, each in self.module.named_parameters()}
        self.trained = [each for each in self.module.parameters() if each.requires_grad]

    def settle(self) -> None:
        """The script has made everything; from here on it is to stay as it is. Raises RuntimeError if parameters that
        the optimizer holds are the model's no more."""
        check_held(self.optimizer, self.module, self._names)
        self._places = Places(self.module)
        self.passes.settle()
        self.hyperparameters.settle()
        self.trained = [each for each in self.module.parameters() if each.requires_grad]
        self._frozen = [each for each in self.module.parameters() if not each.requires_grad]
        self._free = list(self.trained)
        self.structure = structure_of(self.module, self.optimizer)

    def take_changes(self) -> bool:
        """An epoch begins, before which the script may have frozen parameters, made some trainable, or added parameter
        groups; whether it has. What sums gradients is then to be made again.

        Raises RuntimeError if the model has other parameters than when the training began, or the optimizer has some
        that the model has not.
        """
        if structure_of(self.module, self.optimizer) == self.structure:
            return False
        known = {id(each) for each in (*self._free, *self._frozen)}
        added = [name for name, each in self.module.named_parameters() if id(each) not in known]
        if added:
            raise RuntimeError(
                f"parameter {added[0]!r} was added to the model since the loop began, and other workers may have "
                "another one there; make all parameters before session.prepare(), frozen until they are to be trained"
            )
        self.settle()
        held = {id(each) for group in self.optimizer.param_groups for each in group["params"]}
        self.lacking = [each for each in self.trained if id(each) not in held]
        self.passes.gradients = None
        return True

    def check_frozen(self) -> None:
        """Raises RuntimeError if the script has frozen parameters, made some trainable, or put others in their place,
        since `settle`."""
        if self._places is not None:
            self._places.check()
        # Every step does this, for up to hundreds of parameters, so `all` and `any` do the looping.
        if all(map(_requires_grad, self._free)) and not any(map(_requires_grad, self._frozen)):
            return
        names = {each: name for name, each in self.module.named_parameters()}
        for parameter in self._free:
            if not parameter.requires_grad:
                raise _changed(names.get(parameter, REPLACED), "frozen")
        for parameter in self._frozen:
            if parameter.requires_grad:
                raise _changed(names.get(parameter, REPLACED), "made trainable")

    def marks_of_frozen(self) -> list[tuple[int, int]]:
        """Other ones as soon as a parameter that is not trained has changed, as a teacher in `after_step`; a change in
        place through `.data` does not show."""
        return [(each.data_ptr(), each._version) for each in self._frozen]

    def step_optimizer(self, global_batch_size: int) -> None:
        """Step the optimizer with the gradient of a step of a plan with so many samples: an epoch's last step, which
        may be smaller, has the rates of the others."""
        with rates(self.optimizer, self.rate_scaling.factor(global_batch_size)):
            self.optimizer.step()

    def drop_gradients_of_lacking(self) -> None:
        """Nobody else clears these gradients, and they would be summed over the workers once more in each step."""
        for parameter in self.lacking:
            parameter.grad = None

    def give_unreached_zeros(self) -> None:
        """Alone, as in a job, a parameter that no loss reached has a gradient of zero."""
        for parameter in self.trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def tensors(self) -> list[torch.Tensor]:
        """All parameters and buffers, also those that are in no state_dict."""
        return [*self.module.parameters(), *self.module.buffers()]

    def tensors_apart(self) -> list[torch.Tensor]:
        """Those of them that are in no state_dict: buffers that are not persistent, for the most part."""
        kept = {id(each) for each in self.module.state_dict(keep_vars=True).values()}
        return [each for each in self.tensors() if id(each) not in kept]

    def traits(self) -> dict[str, Any]:
        """What must be the same on all workers, under names that a user understands."""
        tensors = [*self.module.named_parameters(), *self.module.named_buffers()]
        described = [f"{name} {tuple(each.shape)} {each.dtype} {each.requires_grad}" for name, each in tensors]
        return {
            "model": f"{len(tensors)} tensors, checksum {zlib.crc32(chr(10).join(described).encode()):08x}",
            "optimizer": f"{type(self.optimizer).__name__} with {','.join(self.hyperparameters.names)}",
            "number of samples": self.order.length,
            "order of samples": self.order.checksum(0),
            **self.samples,
            "number of backward passes": self.backward_passes,
            "learning rate scaling": self.rate_scaling,
        }


def _changed(name: str, how: str) -> RuntimeError:
    return RuntimeError(
        f"parameter {name!r} was {how} in the loop over the batches; a worker without samples in this step would not "
        "know of it. Set requires_grad before the loop, or between two epochs of session.epochs(), and change learning "
        "rates in it"
    )
