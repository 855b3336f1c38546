"""What is said of a job's samples before its first step: how many steps are smaller, and what cures that."""

from __future__ import annotations

import pytest

from heterotrain.contract import Member, Plan
from heterotrain.data.sampler import CARRY, DROP, PARTIAL, Rules
from heterotrain.training.remarks import remarks_on_division


def plan(*batches: int) -> Plan:
    members = tuple(Member(f"w-{rank}", f"u-{rank}", "", "cpu", batch) for rank, batch in enumerate(batches))
    return Plan(1, 1, "step", members)


@pytest.mark.parametrize(
    ("length", "batch", "remark"),
    [
        (1500, 1400, "1 of 2 steps of each epoch is smaller, of 100 samples instead of 1400"),
        (2801, 1400, "1 of 3 steps of each epoch is smaller, of 1 samples instead of 1400"),
        (900, 1400, "each epoch is one step of its 900 samples, which are fewer than the global batch of 1400"),
    ],
)
def test_where_many_steps_are_smaller_it_is_said_how_many_and_what_cures_it(
    length: int, batch: int, remark: str
) -> None:
    [found] = remarks_on_division(Rules(length), plan(batch - 10, 10))
    assert found.startswith(remark)
    assert "training.lastStep: Carry" in found


def test_with_batch_norm_two_steps_may_be_smaller() -> None:
    [found, _] = remarks_on_division(Rules(21, least=2), plan(6, 4))
    assert found.startswith("2 of 3 steps of each epoch are smaller, of 9 and 2 samples instead of 10")


def test_a_smaller_step_is_the_last_of_its_epoch_or_one_of_the_last_two() -> None:
    assert Rules(25, last_step=PARTIAL).smaller_steps(10) == (5,)
    assert Rules(21, least=2).smaller_steps(10) == (9, 2)
    assert Rules(5, least=2).smaller_steps(2) == ()
    assert Rules(7, last_step=DROP).smaller_steps(10) == (7,)
    assert Rules(7, last_step=CARRY).smaller_steps(10) == ()
