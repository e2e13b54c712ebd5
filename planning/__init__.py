"""Predicts whether a deployment fits, its start time, its cost and its flags before it costs anything.

Pure: no network, no clock, and no I/O except its data files (planning/data/*.json), each read once at first use.
`plan(Deployment(...))` takes about a millisecond; importing this package loads nothing until a name is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from planning.errors import PlanningError
    from planning.planner import plan
    from planning.question.types import (
        CloudRunOptions,
        CostPlan,
        Deployment,
        Finding,
        MemoryPlan,
        Plan,
        Remedy,
        StartupPlan,
        StartupProbe,
        ThroughputPlan,
        TpuOptions,
        WorkloadPlan,
    )
    from planning.question.vllm_args import VllmOptions, vllm_arguments, vllm_environment
    from planning.question.workload import Workload, parse_workload

__all__ = [
    "CloudRunOptions",
    "CostPlan",
    "Deployment",
    "Finding",
    "MemoryPlan",
    "Plan",
    "PlanningError",
    "Remedy",
    "StartupPlan",
    "StartupProbe",
    "ThroughputPlan",
    "TpuOptions",
    "VllmOptions",
    "Workload",
    "WorkloadPlan",
    "parse_workload",
    "plan",
    "vllm_arguments",
    "vllm_environment",
]

_HOME: Final = {
    "PlanningError": "errors",
    "VllmOptions": "question.vllm_args",
    "Workload": "question.workload",
    "parse_workload": "question.workload",
    "plan": "planner",
    "vllm_arguments": "question.vllm_args",
    "vllm_environment": "question.vllm_args",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a lazy module attribute can be anything in __all__
    if name not in __all__:
        raise AttributeError(f"module 'planning' has no attribute {name!r}")
    return getattr(import_module(f"planning.{_HOME.get(name, 'question.types')}"), name)
