"""Samples of the Prometheus text that a vLLM server exports at /metrics.

Names differ between vLLM versions. The first existing name of a list counts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

KV_USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
RUNNING: Final = ("vllm:num_requests_running",)
WAITING: Final = ("vllm:num_requests_waiting",)
PROMPT_TOKENS: Final = ("vllm:prompt_tokens_total", "vllm:prompt_tokens")
GENERATION_TOKENS: Final = ("vllm:generation_tokens_total", "vllm:generation_tokens")
PREEMPTIONS: Final = ("vllm:num_preemptions_total", "vllm:num_preemptions")
PREFIX_QUERIES: Final = (
    "vllm:prefix_cache_queries_total",
    "vllm:gpu_prefix_cache_queries_total",
    "vllm:prefix_cache_queries",
)
PREFIX_HITS: Final = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits")
TTFT_SUM: Final = ("vllm:time_to_first_token_seconds_sum",)
TTFT_COUNT: Final = ("vllm:time_to_first_token_seconds_count",)
GAPS_SUM: Final = ("vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum")
"""Seconds between tokens, over all requests. vLLM renamed the histogram; the old name is deprecated."""
METRICS_PATH: Final = "/metrics"
CACHE_CONFIG: Final = ("vllm:cache_config_info",)


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a scrape."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Scrape:
    """Samples of one scrape, by metric name."""

    samples: Mapping[str, tuple[Sample, ...]]

    def total(self, names: tuple[str, ...]) -> float | None:
        """Return the sum over all label sets of the first existing name (data-parallel engines export one each), or None."""
        found = self._first(names)
        return math.fsum(sample.value for sample in found) if found else None

    def highest(self, names: tuple[str, ...]) -> float | None:
        """Return the largest value over all label sets of the first existing name, or None. For ratios such as KV cache usage."""
        return max((sample.value for sample in self._first(names)), default=None)

    def series(self, names: tuple[str, ...]) -> int:
        """Return the number of label sets of the first existing name. For `..._info` metrics, the engines that export one."""
        return len(self._first(names))

    def labels(self, names: tuple[str, ...]) -> Mapping[str, str] | None:
        """Return the labels of the first sample, or None. For `..._info` metrics, whose labels contain the information."""
        found = self._first(names)
        return found[0].labels if found else None

    def _first(self, names: tuple[str, ...]) -> tuple[Sample, ...]:
        return next((self.samples[name] for name in names if self.samples.get(name)), ())


def parse_metrics(text: str) -> Scrape:
    """Parse the text format. Skip lines that are not samples and values that are not numbers."""
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - takes 0.1 s

    samples: dict[str, list[Sample]] = {}
    for line in text.splitlines():
        # Without its types, the parser keeps the name of each sample. Buckets are most of the lines, and nothing reads them.
        if line.startswith("#") or "_bucket{" in line:
            continue
        try:
            found = [sample for family in text_string_to_metric_families(line) for sample in family.samples]
        except ValueError:
            continue
        for sample in found:
            if not math.isnan(sample.value):
                samples.setdefault(sample.name, []).append(Sample(sample.labels, sample.value))
    return Scrape({name: tuple(each) for name, each in samples.items()})
