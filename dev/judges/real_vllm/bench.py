"""Measure points with our benchmark and with vLLM's in rounds that alternate the tools, and read the results and the server's counts."""

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from dev.authors.tables import table
from dev.judges.real_vllm.environment import MODEL, ROOT, RealVllmError, RealVllmHome, print_progress
from dev.judges.real_vllm.judge import (
    FigureComparison,
    RealVllmPart,
    RealVllmRun,
    compare_point,
    count_faults,
    faults_of,
    in_terms_of_the_server,
)
from dev.judges.real_vllm.server import RealVllmCores, read_metrics, run_tool, tools_environment

SPECIAL_TAIL: Final = {"min_tokens": 20, "logit_bias": {"1": 100}}
"""Text for 20 tokens, then repeated end tokens (`ignore_eos`), which are events without text."""
TEMPLATE_TOKENS: Final = 10
"""Tokens that the chat template of the tiny model adds. vLLM adds them to the length of its random prompts."""
MOST_ROUNDS: Final = 2
"""Maximum attempts as a multiple of the rounds. A round is repeated if our benchmark reports an invalid result."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RealVllmPoint:
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
    RealVllmPoint(name="c1", concurrency=1, input_tokens=128, output_tokens=64, requests=8),
    RealVllmPoint(name="c4", concurrency=4, input_tokens=256, output_tokens=64, requests=16),
    RealVllmPoint(name="c16", concurrency=16, input_tokens=256, output_tokens=64, requests=48),
    RealVllmPoint(name="tail", concurrency=4, input_tokens=128, output_tokens=64, requests=16, extra_body=SPECIAL_TAIL),
)
OurTool = Callable[[RealVllmPoint, str], RealVllmRun]
TheirTool = Callable[[RealVllmPoint, str, str], RealVllmRun]


def measure_point(point: RealVllmPoint, rounds: int, ours: OurTool, theirs: TheirTool) -> RealVllmPart:
    """Measure a point until the given number of rounds is valid. Our first run warms up the server and is not counted.

    Each command is run once, because its seed determines the prompts, and the server keeps them in its prefix cache.
    """
    command = ours(point, f"{point.name}-0").command
    pairs: list[tuple[RealVllmRun, RealVllmRun]] = []
    left_out: list[str] = []
    for number in range(1, MOST_ROUNDS * rounds + 1):
        label = f"{point.name}-{number}"
        if number % 2:
            mine = ours(point, label)
            other = theirs(point, label, command)
        else:
            other = theirs(point, label, command)
            mine = ours(point, label)
        command = mine.command
        shares = [in_terms_of_the_server(run)["tpot"] for run in (mine, other)]
        print_progress(
            f"{label}: TPOT {shares[0]:.3f} and {shares[1]:.3f} of the server's{mine.invalid_reasons and ', excluded'}"
        )
        if mine.invalid_reasons:
            left_out.append(f"round {number}: {mine.invalid_reasons[0]}")
        else:
            pairs.append((mine, other))
        if len(pairs) == rounds:
            break
    return judged_point(point, pairs, left_out)


def judged_point(
    point: RealVllmPoint, pairs: Sequence[tuple[RealVllmRun, RealVllmRun]], left_out: Sequence[str]
) -> RealVllmPart:
    """Return the evaluation of a point's rounds. `left_out` has the reasons for excluded rounds."""
    if not pairs:
        fault = f"{point.name}: our benchmark reports no valid round: {left_out[0]}"
        return RealVllmPart(lines=(), faults=(fault,))
    compared = compare_point(point.name, pairs)
    rounds = f"{len(pairs)} rounds of {point.requests} requests, {point.input_tokens} in, {point.output_tokens} out"
    excluded = [f"- {point.name}, excluded, {reason}" for reason in left_out]
    return RealVllmPart(
        lines=(*_table(compared), "", f"- {point.name}: {rounds}", *excluded, ""),
        faults=(*count_faults(point.name, point.asked, pairs), *faults_of(compared)),
    )


def _table(rows: Sequence[FigureComparison]) -> list[str]:
    cells: list[Sequence[str]] = []
    for row in rows:
        unit = "tok/s" if row.figure == "throughput" else "ms"
        figures = row.point, row.figure, f"{row.ours:.2f} {unit}", f"{row.theirs:.2f} {unit}"
        own = f"{row.ours_of_server:.3f} | " if row.own is None else row.own.judged
        cells.append((*figures, own, f"{row.theirs_of_server:.3f}", row.relative.judged))
    head = "point | metric | ours: | vllm bench serve: | ours / server | verdict | theirs / server: | relative to the server | verdict"
    return table(head, cells).splitlines()


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchMeasurement:
    """Location and settings of a measurement."""

    home: RealVllmHome
    url: str
    cores: RealVllmCores

    def ours(self, point: RealVllmPoint, label: str) -> RealVllmRun:
        """Measure a point with `scripts.bench`."""
        out = self.home.results / f"{label}-ours"
        command = [sys.executable, "-m", "scripts.bench", "--url", self.url, "--model", MODEL]
        command += ["--concurrency", str(point.concurrency), "--requests", str(point.requests)]
        command += ["--input-tokens", str(point.input_tokens), "--output-tokens", str(point.output_tokens)]
        # Without requests before the point, the server's counters are the point's.
        command += ["--warm-up", "0", "--out", str(out), "--json"]
        if point.extra_body:
            command += ["--extra-body", json.dumps(point.extra_body)]
        before = read_metrics(self.url)
        text = run_tool(command, ROOT, os.environ, out.with_suffix(".log"), self.cores, allowed=(0, 1))
        try:
            found = json.loads(text)["points"][0]
        except (ValueError, KeyError, IndexError) as error:
            raise RealVllmError(
                f"scripts.bench printed no result ({error!r}). See {out.with_suffix('.log')}."
            ) from None
        command = vllm_command(self.url, point, seed=int(found["point"]["seed"]))
        return our_run(found, settled_increase(before, self.url, point.requests), command)

    def theirs(self, point: RealVllmPoint, label: str, command: str) -> RealVllmRun:
        """Run vLLM's benchmark, with an output path."""
        path = self.home.results / f"{label}-theirs.json"
        program, *words = shlex.split(command)
        words += ["--save-result", "--save-detailed", "--result-dir", str(path.parent), "--result-filename", path.name]
        log = path.with_suffix(".log")
        before = read_metrics(self.url)
        environment = tools_environment(self.home, os.environ)
        started = [str(self.home.programs / program), *words]
        said = run_tool(started, self.home.models, environment, log, self.cores)
        server = settled_increase(before, self.url, point.requests)
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise RealVllmError(f"vllm bench serve wrote no result ({error}). See {log}.") from None
        return their_run(found, said + log.read_text(encoding="utf-8", errors="replace"), server)


def settled_increase(before: Mapping[str, float], url: str, requests: int) -> dict[str, float]:
    """Return the increase of the counters once they include all requests, because the engine counts shortly after it responds."""
    began_s = time.monotonic()
    while True:
        after = read_metrics(url)
        increase = {key: after.get(name, 0.0) - before.get(name, 0.0) for key, name in _COUNTERS.items()}
        if increase["requests"] >= requests or time.monotonic() - began_s > _SETTLE_LIMIT_S:
            if increase["requests"] <= 0:
                raise RealVllmError("The server counted no request. It is another server, or its metrics are disabled.")
            return increase
        time.sleep(0.2)


def vllm_command(url: str, point: RealVllmPoint, *, seed: int) -> str:
    """Return the `vllm bench serve` command line for the same point. The seed determines the prompts."""
    words = (
        f"vllm bench serve --backend openai-chat --base-url {url} --endpoint /v1/chat/completions --model {MODEL}"
        f" --dataset-name random --random-input-len {point.input_tokens - TEMPLATE_TOKENS} --random-output-len {point.output_tokens}"
        f" --ignore-eos --num-prompts {point.requests} --num-warmups 0 --temperature 0 --seed {seed % (1 << 32)}"
        f" --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 90,99 --max-concurrency {point.concurrency}"
    )
    return words + (f" --extra-body {shlex.quote(json.dumps(point.extra_body))}" if point.extra_body else "")


def our_run(found: Mapping[str, Any], server: Mapping[str, float], command: str = "") -> RealVllmRun:
    """Read a point of `scripts.bench --json`. `command` measures the same point with vLLM's benchmark."""
    notes = cast("Sequence[str]", found.get("notes") or ())
    return _run(
        found,
        server,
        command=command,
        invalid_reasons=tuple(found.get("invalid_reasons") or ()),
        marks=tuple(note for note in notes if "time to first token" in note),
    )


def their_run(found: Mapping[str, Any], log: str, server: Mapping[str, float]) -> RealVllmRun:
    """Read a file of `vllm bench serve --save-result`, and from its output the difference from the requested lengths.

    vLLM's random prompts are drawn as token ids. Re-encoded text may have a few tokens more or fewer, which vLLM reports.
    """
    surplus = _SURPLUS.search(log)
    count = 0 if surplus is None else int(surplus.group(1)) * (1 if surplus.group(2) == "more" else -1)
    return _run(found, server, surplus_tokens=count)


def _run(found: Mapping[str, Any], server: Mapping[str, float], **own: Any) -> RealVllmRun:  # noqa: ANN401  its fields
    """Read what both results have, and add a tool's own fields. Raises RealVllmError if the result has another format."""
    try:
        means = {key: float(found[f"mean_{key}_ms"]) for key in ("ttft", "tpot", "itl", "e2el")}
        return RealVllmRun(
            requests=int(found["completed"]),
            failed=int(found["failed"]),
            input_tokens=int(found["total_input_tokens"]),
            output_tokens=int(found["total_output_tokens"]),
            figures={**means, "throughput": float(found["output_throughput"])},
            server=server,
            **own,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RealVllmError(f"The result of a benchmark does not have the format of vLLM 0.32: {error!r}.") from None
