"""The resource HeteroTrainingJob: its models are the one source of the CRD, its reference and every check."""

from heterotrain_operator.api.job import API_VERSION, KIND, HeteroTrainingJob
from heterotrain_operator.api.manifest import load_manifest, parse_manifest, parse_simulated, parse_stored
from heterotrain_operator.api.problems import ManifestError, Problem
from heterotrain_operator.api.resolve import checkpoint_folder, global_batch_variable, to_core, training_config
from heterotrain_operator.api.spec.worker_groups import WorkerGroup

__all__ = [
    "API_VERSION",
    "KIND",
    "HeteroTrainingJob",
    "ManifestError",
    "Problem",
    "WorkerGroup",
    "checkpoint_folder",
    "global_batch_variable",
    "load_manifest",
    "parse_manifest",
    "parse_simulated",
    "parse_stored",
    "to_core",
    "training_config",
]
