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
    from gemma_serving.planning.question.types import Plan
    from gemma_serving.planning.settings.cloud_run import ProbeSettings
    from gemma_serving.planning.settings.deployment import NO_SERVICE, NO_TPU, Deployment
    from gemma_serving.planning.settings.finding import Finding
    from gemma_serving.planning.settings.vllm_args import VllmOptions
    from gemma_serving.planning.settings.workload import Workload

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
    "VllmOptions": "settings.vllm_args",
    "Workload": "settings.workload",
    "Finding": "settings.finding",
    "Plan": "question.types",
    "plan": "planner",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a lazy module attribute can be anything in __all__
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME.get(name, 'settings.deployment')}"), name)
