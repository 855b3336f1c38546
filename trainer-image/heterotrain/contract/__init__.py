"""What the operator and the trainers agree on; imports neither torch nor kopf, so both sides can share it.

The plan travels as one JSON document; metrics travel as Prometheus series, whose table is `heterotrain.worker_metrics`;
the end of a worker travels as its termination message. A change of any name here is a change of the protocol.
"""

from heterotrain.contract.config import ASP as ASP
from heterotrain.contract.config import BSP as BSP
from heterotrain.contract.config import PUSH_MODEL as PUSH_MODEL
from heterotrain.contract.config import TRAINING_LOSS as TRAINING_LOSS
from heterotrain.contract.config import TrainingConfig as TrainingConfig
from heterotrain.contract.evaluated import MAX_METRIC_NAME as MAX_METRIC_NAME
from heterotrain.contract.evaluated import MAX_METRICS as MAX_METRICS
from heterotrain.contract.evaluated import Evaluated as Evaluated
from heterotrain.contract.last_words import ERROR_MISSING_DEVICE as ERROR_MISSING_DEVICE
from heterotrain.contract.last_words import ERRORS_THAT_PASS as ERRORS_THAT_PASS
from heterotrain.contract.last_words import OUT_OF_MEMORY as OUT_OF_MEMORY
from heterotrain.contract.last_words import Termination as Termination
from heterotrain.contract.launch import Launch as Launch
from heterotrain.contract.launch import LaunchedWorker as LaunchedWorker
from heterotrain.contract.names import *  # noqa: F403 - holds names of the contract and nothing else
from heterotrain.contract.plan import MAX_EVICTED as MAX_EVICTED
from heterotrain.contract.plan import MAX_NAME_LENGTH as MAX_NAME_LENGTH
from heterotrain.contract.plan import MAX_PLAN_BYTES as MAX_PLAN_BYTES
from heterotrain.contract.plan import PLAN_FILE as PLAN_FILE
from heterotrain.contract.plan import PLAN_SCHEMA as PLAN_SCHEMA
from heterotrain.contract.plan import Member as Member
from heterotrain.contract.plan import Plan as Plan
from heterotrain.contract.plan import PlanError as PlanError
from heterotrain.contract.plan import Server as Server
from heterotrain.contract.plan import parse_plan as parse_plan
from heterotrain.contract.records import EvaluationRecord as EvaluationRecord
from heterotrain.contract.records import StepRecord as StepRecord
from heterotrain.contract.records import UpdateRecord as UpdateRecord
