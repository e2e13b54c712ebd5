"""The server to check with its thresholds, and the state of one run of the checks."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from gemma_serving.contracts.features import ServedFeatures
from gemma_serving.contracts.outputs import MemorySummary, SmokeThresholds, StackOutputs
from gemma_serving.planning.speed.residuals import SmokeFigures
from gemma_serving.scripts.cli.check_result import Values
from gemma_serving.scripts.smoke.results import Outcome
from gemma_serving.scripts.stack.access import ServerAccess
from loadtest.client.openai import OpenAIClient

_CACHE_CONFIG_LABELS: Final = {
    "blockSize": "block_size",
    "gpuMemoryUtilization": "gpu_memory_utilization",
    "kvCacheDtype": "cache_dtype",
}
"""`cache_config_info` labels by vLLM settings key."""

Failure = Callable[[], str | None]
"""Return why the server will not become ready, to stop waiting early."""
ReportProgress = Callable[[str], None]
"""Show one line of progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeTarget:
    """A server and its thresholds. A metric whose threshold is None is reported but not checked."""

    model: str
    """The name to send as `model`. Empty: the first that the server lists."""
    thresholds: SmokeThresholds
    memory: MemorySummary | None = None
    """Planned memory and KV cache; None without a stack."""
    cache_options: Mapping[str, str] = field(default_factory=dict[str, str])
    """Expected options, by `cache_config_info` label."""
    replicas: int = 1
    """Expected engines: `vllm.dataParallelSize`."""
    features: ServedFeatures | None = None
    """Features from the stack's settings; None without a stack."""
    stack: str | None = None
    opens_origins: bool = False
    """True if the stack's extra arguments allow other web origins."""
    planned: SmokeFigures | None = None
    """Planned speed for the requests of these checks; None without a stack."""
    failure: Failure | None = None


def stack_target(
    stack: str, outputs: StackOutputs, planned: SmokeFigures | None = None, failure: Failure | None = None
) -> SmokeTarget:
    """Return the target for a stack's outputs and plan."""
    options = {label: str(outputs.vllm[key]) for key, label in _CACHE_CONFIG_LABELS.items() if key in outputs.vllm}
    given = outputs.vllm.get("extraArgs")
    extra = cast("Sequence[object]", given) if isinstance(given, list | tuple) else ()
    return SmokeTarget(
        stack=stack,
        model=outputs.served_model,
        thresholds=outputs.smoke,
        memory=outputs.plan.memory,
        cache_options=options,
        replicas=outputs.engines,
        features=outputs.features,
        opens_origins=any("allowed-origins" in str(word).replace("_", "-") for word in extra),
        planned=planned,
        failure=failure,
    )


class NotApplicableError(Exception):
    """A check that does not apply to the server. The message is the reason."""


@dataclass(slots=True, kw_only=True)
class CheckContext:
    """State of one run. Checks set the mutable fields for later checks."""

    client: OpenAIClient
    access: ServerAccess
    target: SmokeTarget
    report_progress: ReportProgress
    wanted: str = ""
    """The expectation of the current check, which sets it. The runner puts it next to the result."""
    simulated: str | None = None
    max_model_len: int | None = None
    """max-model-len that the server reports."""
    release: str | None = None
    """Release that the server reports; empty if it reports none, None before the first check that names it."""
    values: dict[str, Values] = field(default_factory=dict[str, Values])
    """Values of the finished checks, by name."""

    def features(self) -> ServedFeatures:
        """Return the features of the server. Raises NotApplicableError if they are unknown."""
        if self.target.features is None:
            fix = f"run `gemma up {self.target.stack}`" if self.target.stack else "pass --features"
            raise NotApplicableError(f"the server's features are unknown: {fix}")
        return self.target.features

    @property
    def length(self) -> int | None:
        """max-model-len that the server reports, else the settings'."""
        return self.max_model_len or self.target.thresholds.max_model_len

    @property
    def without_thinking(self) -> Mapping[str, object]:
        """Fields of a request that turn thinking off, because a short response ends in its reasoning."""
        features = self.target.features
        on = features is not None and features.thinks_by_default
        return {"chat_template_kwargs": {"enable_thinking": False}} if on else {}


@dataclass(frozen=True, slots=True)
class SmokeCheck:
    """A check: its name, function and time limit."""

    name: str
    run: Callable[[CheckContext], Awaitable[Outcome]]
    limit_s: Callable[[SmokeTarget], float] = lambda _: 200.0
    needed: bool = False
    """True if later checks require it to pass."""


def percent_over(measured: float, limit: float) -> str:
    """Return how far `measured` is from `limit`, as a percentage of the limit."""
    return f"{abs(measured / limit - 1):.0%}" if limit else "∞"
