"""The checksum of a replica depends on its numbers alone, and on each of their bits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from heterotrain.state.replica_check import WINDOW, ReplicaChecksum, bits_of

TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.complex64]
TYPES += [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64]


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 1001])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_checksum_of_bits_is_the_same_wherever_the_numbers_lie(dtype: torch.dtype, length: int) -> None:
    there = (torch.randn(length + 3, generator=torch.Generator().manual_seed(1)) * 50).to(dtype)
    numbers = there[3:]
    apart = torch.stack([there, there], dim=1).reshape(-1)[6::2]
    assert bits_of(numbers) == bits_of(numbers.clone()) == bits_of(apart)


@pytest.mark.parametrize("width", [3, 400])
@pytest.mark.parametrize("exact", [True, False])
def test_a_checksum_of_a_replica_sees_parameters_and_what_the_optimizer_keeps(width: int, exact: bool) -> None:
    def replica() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        module = nn.Sequential(nn.Linear(width, width), nn.Linear(width, 2))
        optimizer = torch.optim.Adam(module.parameters())
        module(torch.ones(1, width)).sum().backward()
        optimizer.step()
        return module, optimizer

    (one, first), (other, second) = replica(), replica()
    expected = ReplicaChecksum(one, first).whole(exact=exact)
    assert ReplicaChecksum(other, second).whole(exact=exact) == expected
    for parameter in other.parameters():
        for tensor in (parameter.detach(), second.state[parameter]["exp_avg"]):
            last = tensor.reshape(-1)[-1:]
            kept = last.clone()
            last += 1.0
            assert ReplicaChecksum(other, second).whole(exact=exact) != expected
            last.copy_(kept)
    assert ReplicaChecksum(other, second).whole(exact=exact) == expected


class Numbers(nn.Module):
    """A module of one tensor, with whatever type."""

    def __init__(self, numbers: torch.Tensor) -> None:
        super().__init__()
        self.numbers = nn.Parameter(numbers, requires_grad=numbers.is_floating_point() or numbers.is_complex())


@pytest.mark.parametrize("length", [40, 10_000])
@pytest.mark.parametrize("dtype", TYPES)
def test_the_checksum_of_a_window_sees_each_bit_wherever_it_lies_in_a_word(dtype: torch.dtype, length: int) -> None:
    numbers = (torch.randn(length, generator=torch.Generator().manual_seed(1)) * 50).to(dtype)
    module = Numbers(numbers)
    checksum = ReplicaChecksum(module, torch.optim.SGD([nn.Parameter(torch.zeros(1))]))
    raw = module.numbers.detach().view(torch.uint8)
    assert math.isfinite(checksum.at(0, exact=False))
    before = checksum.at(0, exact=True)
    for place in range(16):
        for bit in range(8):
            raw[place] ^= 1 << bit
            assert checksum.at(0, exact=True) != before
            raw[place] ^= 1 << bit
    assert checksum.at(0, exact=True) == before


def test_signs_of_all_numbers_that_share_a_place_in_their_words_do_not_cancel_out() -> None:
    module = Numbers(torch.ones(10_000))
    checksum = ReplicaChecksum(module, torch.optim.SGD([nn.Parameter(torch.zeros(1))]))
    before = checksum.at(0, exact=True)
    for first in (0, 1):
        module.numbers.detach()[first::2] *= -1
        assert checksum.at(0, exact=True) != before
        module.numbers.detach()[first::2] *= -1


def test_a_checksum_covers_all_numbers_after_a_while_and_sees_a_single_bit() -> None:
    model = nn.Sequential(nn.Linear(600, 600), nn.Linear(600, 5))
    adam = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 600)).sum().backward()
    adam.step()
    checksum = ReplicaChecksum(model, adam)
    windows = -(-sum(each.numel() for each in model.parameters()) // WINDOW)
    assert windows > 1
    known = [checksum.at(number, exact=True) for number in range(windows)]
    assert known == [checksum.at(number, exact=True) for number in range(windows, 2 * windows)]
    for tensor in (model[0].weight.data, model[1].bias.data, adam.state[model[0].weight]["exp_avg"]):
        for place in (0, -1):
            before = tensor.flatten()[place].item()
            tensor.view(-1)[place] = before * (1 + 2**-23) + 1e-30
            assert [checksum.at(number, exact=True) for number in range(windows)] != known
            tensor.view(-1)[place] = before
    assert [checksum.at(number, exact=True) for number in range(windows)] == known
