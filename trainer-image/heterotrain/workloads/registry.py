"""The workloads by name: which model goes with which data, loss and optimizer.

A model is made to fit the data (channels, classes, vocabulary), so that each model runs on all data of its form, and
a manifest needs to name no more than the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, Subset

from heterotrain.workloads.array_files import ArrayFiles
from heterotrain.workloads.digits import DigitsCNN, digits
from heterotrain.workloads.gpt import GPT, next_token_loss
from heterotrain.workloads.image_folder import ImageFolder
from heterotrain.workloads.normalization import Norm
from heterotrain.workloads.plain_convolutions import alexnet, vgg11
from heterotrain.workloads.regression import LinearRegression, linear_data
from heterotrain.workloads.resnet import resnet18, resnet50
from heterotrain.workloads.svm import LinearSVM, hinge_loss, labelled_points
from heterotrain.workloads.synthetic import SyntheticImages, SyntheticTokens
from heterotrain.workloads.text_file import TextFile

DEFAULT_SAMPLES: Final = 2000


@dataclass(frozen=True, slots=True)
class Images:
    """Samples are images (channels, size, size) with one of `classes` labels."""

    channels: int
    size: int
    classes: int


@dataclass(frozen=True, slots=True)
class Numbers:
    """Samples are `features` numbers with a number to predict."""

    features: int


@dataclass(frozen=True, slots=True)
class Sides:
    """Samples are `features` numbers with a side, -1 or 1."""

    features: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """Samples are `length` tokens with those that follow them."""

    vocabulary: int
    length: int


Form = Images | Numbers | Sides | Tokens


@dataclass(frozen=True, slots=True)
class Data:
    """A map-style data set and what a model must know of it."""

    dataset: Dataset[Any]
    form: Form


@dataclass(frozen=True, slots=True)
class Workload:
    """What a training loop needs beside the data; `criterion` is a mean over samples."""

    model: nn.Module
    criterion: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True, slots=True)
class _Model:
    form: type[Form]
    data: str  # what it trains on by default
    make: Callable[..., nn.Module]  # of a form, and `norm` and `width` where it has them
    criterion: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    learning_rate: float
    adaptive: bool = False
    has_norm: bool = False
    has_width: bool = False


def _of_images(make: Callable[..., nn.Module], data: str, learning_rate: float) -> _Model:
    def fitting(form: Images, **options: Any) -> nn.Module:
        return make(channels=form.channels, classes=form.classes, **options)

    return _Model(
        Images, data, fitting, functional.cross_entropy, learning_rate=learning_rate, has_norm=True, has_width=True
    )


def _cnn(form: Images, **options: Any) -> nn.Module:
    return DigitsCNN(channels=form.channels, size=form.size, classes=form.classes, **options)


def _linear(form: Numbers) -> nn.Module:
    return LinearRegression(form.features)


def _svm(form: Sides) -> nn.Module:
    return LinearSVM(form.features)


def _gpt(form: Tokens, **options: Any) -> nn.Module:
    return GPT(form.vocabulary, context=form.length, **options)


def _squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    # Flat, because arrays may hold targets as (n,) and as (n, 1).
    return functional.mse_loss(outputs.flatten(), targets.flatten())


_MODELS: Final = {
    "cnn": _Model(Images, "digits", _cnn, functional.cross_entropy, 0.02, has_norm=True, has_width=True),
    "resnet18": _of_images(resnet18, "images", 0.02),
    "resnet50": _of_images(resnet50, "images", 0.02),
    "alexnet": _of_images(alexnet, "images", 0.01),
    "vgg11": _of_images(vgg11, "images", 0.01),
    "linear": _Model(Numbers, "linear", _linear, _squared_error, 0.01),
    "svm": _Model(Sides, "points", _svm, hinge_loss, 0.02),
    "gpt": _Model(Tokens, "tokens", _gpt, next_token_loss, 0.003, adaptive=True, has_width=True),
}
MODELS: Final = tuple(_MODELS)


def default_data(model: str) -> str:
    """The name of the data that a model trains on by default."""
    return _MODELS[model].data


def build(
    model: str, data: Data, *, norm: Norm = "group", width: int | None = None, learning_rate: float | None = None
) -> Workload:
    """A model that fits `data`, with its loss and optimizer: SGD with momentum 0.9, AdamW for the GPT.

    `width` is the size of its smallest layer (see each model), `norm` the image models'; without a `width` or
    `learning_rate` they are the workload's own. Raises ValueError if the model does not go with the data, or has no
    width.
    """
    entry = _MODELS[model]
    if not isinstance(data.form, entry.form):
        raise ValueError(
            f"{model} trains on data in the form of {entry.form.__name__}, and these are {type(data.form).__name__}"
        )
    options: dict[str, Any] = {"norm": norm} if entry.has_norm else {}
    if width is not None:
        if not entry.has_width:
            raise ValueError(f"width: {model} has none")
        options["width"] = width
    made = entry.make(data.form, **options)
    rate = entry.learning_rate if learning_rate is None else learning_rate
    optimizer: torch.optim.Optimizer = (
        torch.optim.AdamW(made.parameters(), lr=rate)
        if entry.adaptive
        else torch.optim.SGD(made.parameters(), lr=rate, momentum=0.9)
    )
    return Workload(made, entry.criterion, optimizer)


def _digits(_samples: int, _seed: int) -> Data:
    return Data(digits(), Images(1, 8, 10))


def _images(samples: int, seed: int) -> Data:
    images = SyntheticImages(samples, seed=seed)
    return Data(images, Images(images.channels, images.size, images.classes))


def _tokens(samples: int, seed: int) -> Data:
    tokens = SyntheticTokens(samples, seed=seed)
    return Data(tokens, Tokens(tokens.vocabulary, tokens.length))


def _line(samples: int, seed: int) -> Data:
    line = linear_data(samples, seed=seed)
    return Data(line, Numbers(line.tensors[0].shape[1]))


def _points(samples: int, seed: int) -> Data:
    points = labelled_points(samples, seed=seed)
    return Data(points, Sides(points.tensors[0].shape[1]))


def _folder(path: Path) -> Data:
    folder = ImageFolder(path)
    return Data(folder, Images(3, folder.size, len(folder.class_names)))


def _arrays(path: Path) -> Data:
    arrays = ArrayFiles(path)
    shape = arrays.inputs.shape
    if len(shape) == 4:
        return Data(arrays, Images(shape[1], shape[2], int(arrays.targets.max()) + 1))
    if len(shape) == 2:
        sides = bool((abs(arrays.targets) == 1).all())
        return Data(arrays, Sides(shape[1]) if sides else Numbers(shape[1]))
    raise ValueError(f"{path}: inputs must be images (n, channels, height, width) or rows (n, features), found {shape}")


def _text(path: Path) -> Data:
    text = TextFile(path)
    return Data(text, Tokens(text.vocabulary, text.length))


_MADE: Final[dict[str, Callable[[int, int], Data]]] = {
    "digits": _digits,
    "images": _images,
    "tokens": _tokens,
    "linear": _line,
    "points": _points,
}
_READ: Final[dict[str, Callable[[Path], Data]]] = {"folder": _folder, "arrays": _arrays, "text": _text}
DATA: Final = (*_MADE, *_READ)


def load(name: str, *, samples: int | None = None, path: Path | None = None, seed: int = 0) -> Data:
    """Data by name: `samples` of them (2,000 where there is no natural number), or the first of what there is.

    `path` is the folder or file for data that are read from one. Raises ValueError if it is missing or superfluous,
    and whatever the data set raises.
    """
    if (path is not None) != (name in _READ):
        raise ValueError(f"data {name}: " + ("is made, not read; give no path" if path else "needs a path"))
    data = _MADE[name](samples or DEFAULT_SAMPLES, seed) if path is None else _READ[name](path)
    length = len(data.dataset)  # type: ignore[arg-type]  # all of them have one; torch's base class declares none
    if samples is not None and samples < length:
        return Data(Subset(data.dataset, range(samples)), data.form)
    return data
