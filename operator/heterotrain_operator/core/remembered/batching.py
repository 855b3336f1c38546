"""What the active plan's batches came from, what plans promised, and how well that was kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from heterotrain_operator.core.fields import MEASURED, Kept
from heterotrain_operator.core.prediction.step_time import ABSURD_SECONDS


@dataclass(frozen=True, slots=True)
class Batching:
    """The estimates that chose the batches `rested_on` so many steps, counted as independent ones
    (`batching/rebalance.py`). `gathered`: windows were closed for a decision that waits for workers which were not read
    (`batching/quorum.py`). `stage` counts the plans of the Profile policy, `adjustments` the plans that changed batches
    only. Of the caution that workers' noise calls for (`split/expected.py`), `noise_caution_weight` is the part
    that splits which rested on it leave.
    """

    rested_on: Annotated[float, MEASURED] = 0.0
    gathered: Annotated[bool, MEASURED] = False
    noise_caution_weight: Annotated[float, Kept(measured=True, most=1.0)] = 1.0
    stage: int = 0
    adjustments: int = 0


_GAP = Kept(measured=True, least=-ABSURD_SECONDS, most=ABSURD_SECONDS)


@dataclass(frozen=True, slots=True)
class Promises:
    """What the active plan promised, what the one before it took, and what one took that was taken back by half: own
    seconds of a step, with noise where `expected_steps` says so; 0: nothing to compare with. At so many looks
    (`kept_looks`) the promise was kept. `doubt` is that about such promises, a share of the step, after
    `missed_promises` of them. All of it is about the present workers at their present speeds.

    A split for noise is on trial (`batching/rollback.py`) while `trial_steps` are not 0: so many whole steps of the
    plan before took `trial_seconds`, and `trial_gap` longer than expected. After half of it was taken back,
    `back_steps` under it had taken `back_gap` longer.
    """

    promised_seconds: Annotated[float, MEASURED] = 0.0
    replaced_seconds: Annotated[float, MEASURED] = 0.0
    retreated_seconds: Annotated[float, MEASURED] = 0.0
    kept_looks: Annotated[int, MEASURED] = 0
    expected_steps: Annotated[bool, MEASURED] = False
    doubt: Annotated[float, Kept(measured=True, most=1.0)] = 0.0
    missed_promises: int = 0
    trial_seconds: Annotated[float, MEASURED] = 0.0
    trial_gap: Annotated[float, _GAP] = 0.0
    trial_steps: Annotated[float, MEASURED] = 0.0
    back_gap: Annotated[float, _GAP] = 0.0
    back_steps: Annotated[float, MEASURED] = 0.0

    def without_promise(self) -> Promises:
        """Without a promise to compare with, but with the doubt."""
        return Promises(doubt=self.doubt, missed_promises=self.missed_promises)

    def without_comparison(self) -> Promises:
        """The same, but what is on trial stays there."""
        return replace(
            self.without_promise(),
            trial_seconds=self.trial_seconds,
            trial_gap=self.trial_gap,
            trial_steps=self.trial_steps,
            back_gap=self.back_gap,
            back_steps=self.back_steps,
        )

    def without_trial(self) -> Promises:
        """With nothing on trial."""
        return replace(self, trial_seconds=0.0, trial_gap=0.0, trial_steps=0.0, back_gap=0.0, back_steps=0.0)

    def scaled(self, ratio: float) -> Promises:
        """Where all workers' steps take so many times as long whatever their batches: communication does not, and what
        was expected wrongly stays what it was.
        """
        expected = self.trial_seconds - self.trial_gap
        return replace(
            self,
            promised_seconds=self.promised_seconds * ratio,
            replaced_seconds=self.replaced_seconds * ratio,
            retreated_seconds=self.retreated_seconds * ratio,
            trial_seconds=max(expected * ratio + self.trial_gap, 0.0) if self.trial_steps > 0 else self.trial_seconds,
        )
