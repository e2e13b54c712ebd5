"""Predicts whether a deployment fits, its start time, its cost and its flags before it costs anything.

Pure: without network, clock or I/O except its data files (gemma_serving/planning/data/*.json), each read once at first use.
`plan(Deployment(...))` takes about a millisecond; importing this package loads nothing until a name is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gemma_serving.planning.errors import PlanningError
    from gemma_serving.planning.planner import plan
    from gemma_serving.planning.question.types import NO_SERVICE, NO_TPU, Deployment, Finding, Plan
    from gemma_serving.planning.question.vllm_args import VllmOptions
    from gemma_serving.planning.question.workload import Workload
    from gemma_serving.planning.settings.cloud_run import ProbeSettings

__all__ = [
    "NO_SERVICE",
    "NO_TPU",
    "Deployment",
    "Finding",
    "Plan",
    "PlanningError",
    "ProbeSettings",
    "VllmOptions",
    "Workload",
    "plan",
]

_HOME: Final = {
    "PlanningError": "errors",
    "ProbeSettings": "settings.cloud_run",
    "VllmOptions": "question.vllm_args",
    "Workload": "question.workload",
    "plan": "planner",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a lazy module attribute can be anything in __all__
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME.get(name, 'question.types')}"), name)
