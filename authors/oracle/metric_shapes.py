"""Shapes of metrics: type, labels and buckets of each name, compared between the simulated server and a real vLLM.

The simulated server may lack names, but one that it has must be in vLLM, with the same type, labels and buckets.
"""

import json
import re
import subprocess
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from authors.oracle.environment import MODEL, ROOT, OracleHome, OracleSay
from authors.oracle.server import (
    DIRECT,
    HOST,
    MAX_MODEL_LEN,
    OracleCores,
    end_group,
    free_port,
    metrics_text,
    running_server,
    wait_until_ready,
)
from planning.question.vllm_args import VllmOptions, vllm_arguments

_SIMULATED_MODEL: Final = "simulated/tiny"
_REQUEST_LIMIT_S: Final = 60.0
_OPTIONS: Final = VllmOptions(
    max_model_len=MAX_MODEL_LEN,
    speculative_config={"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3},
)
"""N-grams are the one method without a second model. vLLM has the counters of drafts only with speculative decoding."""
_TYPE: Final = re.compile(r"# TYPE (\S+) (\w+)")
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? \S+")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
CONFIG: Final = "vllm:cache_config_info"
"""Its labels are the fields of a release's configuration. Only those in `_READ` have a reader in this project."""
_READ: Final = frozenset({"block_size", "cache_dtype", "gpu_memory_utilization", "num_gpu_blocks"})
_PARTS: Final = ("_bucket", "_count", "_sum", "_total")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricShape:
    """What a reader of a metric relies on. `labels` and `buckets` are empty without a sample."""

    kind: str
    labels: frozenset[str]
    buckets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeComparison:
    """Names that both servers have, names that only vLLM has, and the differences as sentences."""

    compared: tuple[str, ...]
    missing: tuple[str, ...]
    faults: tuple[str, ...]


def shapes_of(text: str) -> Mapping[str, MetricShape]:
    """Return the shape of each metric in Prometheus text, by the name of its `# TYPE` line without `_total`."""
    kinds = {name.removesuffix("_total"): kind for name, kind in _TYPE.findall(text)}
    labels: dict[str, set[str]] = defaultdict(set)
    buckets: dict[str, dict[str, None]] = defaultdict(dict)
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line)
        if match is None:
            continue
        name = _family(match[1], kinds)
        found = dict(_LABEL.findall(match[2] or ""))
        if bound := found.pop("le", None):
            buckets[name][bound] = None
        labels[name].update(found)
    return {
        name: MetricShape(kind=kind, labels=frozenset(labels[name]), buckets=tuple(buckets[name]))
        for name, kind in kinds.items()
    }


def _family(sample: str, kinds: Mapping[str, str]) -> str:
    if sample in kinds:
        return sample
    return next((sample.removesuffix(part) for part in _PARTS if sample.removesuffix(part) in kinds), sample)


def compare_shapes(simulated: Mapping[str, MetricShape], real: Mapping[str, MetricShape]) -> ShapeComparison:
    """Compare every metric of the simulated server with vLLM's. One without a sample on either side has only its type compared."""
    faults: list[str] = []
    for name, ours in simulated.items():
        theirs = real.get(name)
        if theirs is None:
            faults.append(f"metrics: vLLM has no {name}")
            continue
        if ours.kind != theirs.kind:
            faults.append(f"metrics: {name} is a {ours.kind} in the simulated server, and a {theirs.kind} in vLLM")
        if name == CONFIG:
            faults += [f"metrics: {name} has no label {label} in vLLM" for label in sorted(_READ - theirs.labels)]
        elif ours.labels and theirs.labels and ours.labels != theirs.labels:
            faults.append(
                f"metrics: {name} has the labels {', '.join(sorted(ours.labels))} in the simulated server, and "
                f"{', '.join(sorted(theirs.labels))} in vLLM"
            )
        if ours.buckets and theirs.buckets and ours.buckets != theirs.buckets:
            faults.append(f"metrics: {name} has other buckets in the simulated server than in vLLM")
    return ShapeComparison(
        compared=tuple(sorted(simulated.keys() & real.keys())),
        missing=tuple(sorted(real.keys() - simulated.keys())),
        faults=tuple(faults),
    )


def check_metrics(home: OracleHome, cores: OracleCores, say: OracleSay) -> ShapeComparison:
    """Send the same requests to a real vLLM and to the simulated server, and compare their metrics. Raises OracleError."""
    port = free_port(0)
    _, *arguments = vllm_arguments(_OPTIONS, model_or_path=MODEL, host=HOST, port=port)
    with running_server(home, port, cores, say, name="metrics", arguments=arguments) as url:
        real = _after_requests(url, MODEL)
    simulated = _simulated_metrics(home, say)
    (home.results / "metrics-vllm.txt").write_text(real, encoding="utf-8")
    (home.results / "metrics-simulated.txt").write_text(simulated, encoding="utf-8")
    compared = compare_shapes(shapes_of(simulated), shapes_of(real))
    say(f"metrics: {len(compared.compared)} names compared, {len(compared.faults)} differ")
    return compared


def _simulated_metrics(home: OracleHome, say: OracleSay) -> str:
    port = free_port(0)
    log = home.results / "metrics-simulated.log"
    arguments = vllm_arguments(_OPTIONS, model_or_path=_SIMULATED_MODEL, host=HOST, port=port)
    command = [sys.executable, "-m", "localcloud.vllm", "vllm", "serve", *arguments]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        )
    url = f"http://{HOST}:{port}"
    try:
        wait_until_ready(process, url, log, say)
        return _after_requests(url, _SIMULATED_MODEL)
    finally:
        end_group(process)


def _after_requests(url: str, model: str) -> str:
    """Return the metrics after one whole and one streamed completion, so that every series has a sample."""
    for stream in (False, True):
        body = {"model": model, "prompt": "one two three one two three", "max_tokens": 16, "stream": stream}
        request = urllib.request.Request(  # noqa: S310 - a server on this machine
            f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with DIRECT.open(request, timeout=_REQUEST_LIMIT_S) as answer:
            answer.read()
    return metrics_text(url)
