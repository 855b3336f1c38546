"""Simulated runs of a job: `simulate(scenario)` runs one to its end, and its result compares it with the oracle."""

from heterotrain_operator.experiments.simulations.result import PublishedPlan, SimulationResult
from heterotrain_operator.experiments.simulations.run import simulate

__all__ = ["PublishedPlan", "SimulationResult", "simulate"]
