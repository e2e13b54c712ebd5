"""Run our benchmark and vLLM's on the same point, and read the results and the server's counts."""

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from authors.oracle.copies import VllmCopies
from authors.oracle.environment import MODEL, ROOT, OracleError, OracleHome
from authors.oracle.judge import OracleRun
from authors.oracle.programs import run_tool
from authors.oracle.server import OracleCores, read_metrics, tools_environment

SPECIAL_TAIL: Final = {"min_tokens": 20, "logit_bias": {"1": 100}}
"""Text for 20 tokens, then repeated end tokens (`ignore_eos`), which are events without text."""
TEMPLATE_TOKENS: Final = 10
"""Tokens that the chat template of the oracle's model adds. vLLM adds them to the length of its random prompts."""
_LIMIT_S: Final = 900.0
_SETTLE_LIMIT_S: Final = 30.0
_COUNTERS: Final = {
    "requests": "vllm:e2e_request_latency_seconds_count",
    "e2el": "vllm:e2e_request_latency_seconds_sum",
    "ttft": "vllm:time_to_first_token_seconds_sum",
    "decode": "vllm:request_decode_time_seconds_sum",
    "input_tokens": "vllm:prompt_tokens_total",
    "output_tokens": "vllm:generation_tokens_total",
}
_SURPLUS: Final = re.compile(r"there were (\d+) (more|fewer) tokens than expected")
_MARK: Final = "time to first token"
"""Words of a note about the time to first token."""
_KEYS: Final = ("ttft", "tpot", "itl", "e2el")

MetricsReader = Callable[[], Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OraclePoint:
    """One load."""

    name: str
    concurrency: int
    input_tokens: int
    output_tokens: int
    requests: int
    extra_body: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def asked(self) -> dict[str, int]:
        """Requests and tokens of the whole point."""
        return {
            "requests": self.requests,
            "input_tokens": self.requests * self.input_tokens,
            "output_tokens": self.requests * self.output_tokens,
        }


POINTS: Final = (
    OraclePoint(name="c1", concurrency=1, input_tokens=128, output_tokens=64, requests=8),
    OraclePoint(name="c4", concurrency=4, input_tokens=256, output_tokens=64, requests=16),
    OraclePoint(name="c16", concurrency=16, input_tokens=256, output_tokens=64, requests=48),
    OraclePoint(name="tail", concurrency=4, input_tokens=128, output_tokens=64, requests=16, extra_body=SPECIAL_TAIL),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Location and settings of a measurement."""

    home: OracleHome
    url: str
    cores: OracleCores
    copies: VllmCopies | None = None
    """Runner of vLLM's benchmark without reloading; None runs the program."""

    def ours(self, point: OraclePoint, label: str, *, through: str | None = None) -> OracleRun:
        """Measure a point with `scripts.bench`. `through` is another address of the same server."""
        out = self.home.results / f"{label}-ours"
        command = [sys.executable, "-m", "scripts.bench", "--url", through or self.url, "--model", MODEL]
        command += ["--concurrency", str(point.concurrency), "--requests", str(point.requests)]
        command += ["--input-tokens", str(point.input_tokens), "--output-tokens", str(point.output_tokens)]
        # Without requests before the point, the server's counters are those of the point.
        command += ["--warm-up", "0", "--out", str(out), "--json"]
        if point.extra_body:
            command += ["--extra-body", json.dumps(point.extra_body)]
        before = read_metrics(self.url)
        text = run_tool(command, ROOT, os.environ, out.with_suffix(".log"), self.cores, allowed=(0, 1))
        try:
            found = json.loads(text)["points"][0]
        except (ValueError, KeyError, IndexError) as error:
            raise OracleError(f"scripts.bench printed no result ({error!r}). See {out.with_suffix('.log')}.") from None
        command = vllm_command(self.url, point, seed=int(found["point"]["seed"]))
        return our_run(found, self._increase(before, point), command)

    def theirs(self, point: OraclePoint, label: str, command: str) -> OracleRun:
        """Run vLLM's benchmark, with an output path."""
        path = self.home.results / f"{label}-theirs.json"
        path.unlink(missing_ok=True)
        words = shlex.split(command)
        words += ["--save-result", "--save-detailed", "--result-dir", str(path.parent), "--result-filename", path.name]
        log = path.with_suffix(".log")
        before = read_metrics(self.url)
        if self.copies is not None:
            said = self.copies.run(words, log, _LIMIT_S)
        else:
            program = [str(self.home.programs / words[0]), *words[1:]]
            environment = tools_environment(self.home, os.environ)
            said = run_tool(program, self.home.models, environment, log, self.cores, allowed=(0,))
        server = self._increase(before, point)
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise OracleError(f"vllm bench serve wrote no result ({error}). See {log}.") from None
        return their_run(found, said + log.read_text(encoding="utf-8", errors="replace"), server)

    def _increase(self, before: Mapping[str, float], point: OraclePoint) -> dict[str, float]:
        return settled_increase(before, lambda: read_metrics(self.url), point.requests)


def settled_increase(
    before: Mapping[str, float],
    read: MetricsReader,
    requests: int,
    *,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> dict[str, float]:
    """Return the increase of the counters once they include all requests, because the engine counts shortly after it responds."""
    began_s = clock()
    while True:
        after = read()
        increase = {key: after.get(name, 0.0) - before.get(name, 0.0) for key, name in _COUNTERS.items()}
        if increase["requests"] >= requests or clock() - began_s > _SETTLE_LIMIT_S:
            if increase["requests"] <= 0:
                raise OracleError("The server counted no request. It is another server, or its metrics are disabled.")
            return increase
        wait(0.2)


def vllm_command(url: str, point: OraclePoint, *, seed: int) -> str:
    """Return the `vllm bench serve` command line for the same point. The seed determines the prompts."""
    words = [
        "vllm", "bench", "serve",
        "--backend", "openai-chat",
        "--base-url", url,
        "--endpoint", "/v1/chat/completions",
        "--model", MODEL,
        "--dataset-name", "random",
        "--random-input-len", str(point.input_tokens - TEMPLATE_TOKENS),
        "--random-output-len", str(point.output_tokens),
        "--ignore-eos",
        "--num-prompts", str(point.requests),
        "--num-warmups", "0",
        "--temperature", "0",
        "--seed", str(seed % (1 << 32)),
        "--percentile-metrics", "ttft,tpot,itl,e2el",
        "--metric-percentiles", "90,99",
        "--max-concurrency", str(point.concurrency),
    ]  # fmt: skip
    return shlex.join([*words, *(["--extra-body", json.dumps(point.extra_body)] if point.extra_body else [])])


def our_run(found: Mapping[str, Any], server: Mapping[str, float], command: str = "") -> OracleRun:
    """Read a point of `scripts.bench --json`. `command` measures the same point with vLLM's benchmark."""
    return OracleRun(
        requests=int(found["completed"]),
        failed=int(found["failed"]),
        input_tokens=int(found["total_input_tokens"]),
        output_tokens=int(found["total_output_tokens"]),
        figures=_figures(found),
        server=server,
        command=command,
        invalid_reasons=_texts(found, "invalid_reasons"),
        marks=tuple(note for note in _texts(found, "notes") if _MARK in note),
    )


def _texts(found: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(str(text) for text in cast("list[object]", found.get(key) or []))


def their_run(found: Mapping[str, Any], log: str, server: Mapping[str, float]) -> OracleRun:
    """Read a file of `vllm bench serve --save-result`, and from its output the difference from the requested lengths.

    vLLM's random prompts are drawn as token ids. Re-encoded text may have a few tokens more or fewer, which vLLM reports.
    """
    surplus = _SURPLUS.search(log)
    count = 0 if surplus is None else int(surplus.group(1)) * (1 if surplus.group(2) == "more" else -1)
    try:
        return OracleRun(
            requests=int(found["completed"]),
            failed=int(found["failed"]),
            input_tokens=int(found["total_input_tokens"]),
            output_tokens=int(found["total_output_tokens"]),
            surplus_tokens=count,
            figures=_figures(found),
            server=server,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise OracleError(f"The result of vllm bench serve does not have the format of vLLM 0.32: {error!r}.") from None


def _figures(found: Mapping[str, Any]) -> dict[str, float]:
    means = {key: float(found[f"mean_{key}_ms"]) for key in _KEYS}
    return {**means, "throughput": float(found["output_throughput"])}
