"""The bundled models: as large as published, independent of the split with GroupNorm, and able to learn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from heterotrain.workloads.digits import DigitsCNN
from heterotrain.workloads.gpt import GPT, next_token_loss
from heterotrain.workloads.normalization import NORMS, Norm, normalization
from heterotrain.workloads.plain_convolutions import alexnet, vgg11
from heterotrain.workloads.resnet import resnet18, resnet50
from heterotrain.workloads.svm import LinearSVM, hinge_loss

IMAGE_MODELS: list[Callable[..., nn.Module]] = [resnet18, resnet50, alexnet, vgg11]
NORM_LAYERS = (nn.BatchNorm2d, nn.GroupNorm)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def small(make: Callable[..., nn.Module], norm: Norm) -> nn.Module:
    torch.manual_seed(0)
    return make(norm=norm, width=4)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("make", "published"),
    [(resnet18, 11_173_962), (resnet50, 23_520_842), (vgg11, 9_231_114)],
)
def test_model_has_the_published_number_of_parameters(
    make: Callable[..., nn.Module], published: int, norm: Norm
) -> None:
    with torch.device("meta"):
        assert parameters(make(norm=norm)) == published


@pytest.mark.parametrize("norm", NORMS)
def test_alexnet_has_the_published_parameters_beside_those_of_its_norms(norm: Norm) -> None:
    with torch.device("meta"):
        model = alexnet(norm=norm)
    norms = sum(parameters(layer) for layer in model.modules() if isinstance(layer, NORM_LAYERS))
    assert parameters(model) - norms == 2_472_266


def test_gpt_of_the_published_sizes_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        model = GPT(50_257, context=1024, width=768, depth=12, heads=12)
    assert parameters(model) == 124_439_808


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("make", IMAGE_MODELS)
def test_image_model_gives_a_logit_per_class(make: Callable[..., nn.Module], norm: Norm) -> None:
    with torch.device("meta"):
        logits = make(norm=norm, channels=1, classes=7)(torch.empty(2, 1, 32, 32))
    assert logits.shape == (2, 7)


@pytest.mark.parametrize("make", [*IMAGE_MODELS, DigitsCNN])
def test_group_norm_variant_holds_no_batch_statistics(make: Callable[..., nn.Module]) -> None:
    assert list(small(make, "group").buffers()) == []
    assert any(name.endswith("running_mean") for name, _ in small(make, "batch").named_buffers())


@pytest.mark.parametrize("make", IMAGE_MODELS)
def test_group_norm_variant_treats_a_sample_alike_in_any_batch(make: Callable[..., nn.Module]) -> None:
    model = small(make, "group").double()
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(torch.cat([model(images[:1]), model(images[1:])]), model(images), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("channels", [2, 6, 8, 24, 64, 100, 512])
def test_no_group_is_of_one_channel(channels: int) -> None:
    layer = normalization(channels, "group")
    assert isinstance(layer, nn.GroupNorm)
    assert channels // layer.num_groups >= 2
    assert layer.num_groups <= 32


def test_unknown_norm_is_refused() -> None:
    with pytest.raises(ValueError, match="norm: expected one of batch, group, found 'layer'"):
        normalization(8, "layer")  # type: ignore[arg-type]  # what a user may type


@pytest.mark.parametrize("make", [alexnet, vgg11])
def test_images_too_small_for_the_poolings_are_refused(make: Callable[..., nn.Module]) -> None:
    with pytest.raises(ValueError, match="at least 32x32 pixels, found 8x16"):
        small(make, "group")(torch.zeros(2, 3, 8, 16))


def test_digits_model_takes_images_of_other_sizes() -> None:
    model = DigitsCNN(4, channels=3, size=32, classes=5)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 5)


def test_gpt_sees_no_token_before_its_time() -> None:
    torch.manual_seed(0)
    model = GPT(16, context=8, width=8, heads=2)
    tokens = torch.arange(8).unsqueeze(0)
    other = tokens.clone()
    other[0, 5] = 15
    before, after = model(tokens), model(other)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_untrained_gpt_knows_nothing() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(64, (4, 17))
    loss = next_token_loss(GPT(64, context=16)(tokens[:, :-1]), tokens[:, 1:])
    torch.testing.assert_close(loss, torch.tensor(64.0).log(), rtol=0.02, atol=0)


def test_gpt_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="width: must be a multiple of the 4 heads, found 10"):
        GPT(width=10)
    with pytest.raises(ValueError, match="sequences of at most 4, found 5"):
        GPT(8, context=4)(torch.zeros(1, 5, dtype=torch.int64))


def test_hinge_loss_counts_only_what_is_within_the_margin() -> None:
    distances = torch.tensor([2.0, 0.5, -1.0, -3.0])
    sides = torch.tensor([1.0, 1.0, 1.0, -1.0])
    torch.testing.assert_close(hinge_loss(distances, sides), torch.tensor((0.0 + 0.5 + 2.0 + 0.0) / 4))


def test_svm_gives_a_distance_per_sample() -> None:
    assert LinearSVM(3)(torch.zeros(5, 3)).shape == (5,)
