"""Read and write result files of other tools: `vllm bench serve --save-result`, and GuideLLM.

| tool | form, from its sources |
| --- | --- |
| vLLM | vllm/benchmarks/serve.py: one JSON object; the lists of one value per request only with `--save-detailed` |
| GuideLLM | guidellm/benchmark/schemas/generative (0.4 to 0.8): `benchmarks`, each with `config.strategy`, `duration` and `metrics`; a
  metric has `successful`, `incomplete`, `errored` and `total`, each with `mean`, `median`, `std_dev`, `percentiles`, `total_sum` |

vLLM's names are ours. GuideLLM's time per output token includes the first token; its inter-token latency is what vLLM and we call TPOT.
"""

import datetime as dt
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from contracts.fields import as_mapping
from scripts.bench.errors import SweepError
from scripts.bench.measure import SCHEMA_VERSION
from scripts.client.events import as_list

NEAR: Final = 0.2
"""Lengths that differ by less than this share are the same point: tools count the chat template differently."""
STATISTICS: Final = ("mean", "median", "std", "p90", "p95", "p99", "p99.9")
GUIDELLM_PERCENTILES: Final = {"p90": "p90", "p95": "p95", "p99": "p99", "p99.9": "p999"}
NAMES: Final = {"ttft": "time_to_first_token_ms", "tpot": "inter_token_latency_ms", "e2el": "request_latency"}
_EMPTY: Final[Mapping[str, Any]] = {
    "schema_version": SCHEMA_VERSION, "simulated": None, "valid": True, "invalid_reasons": (), "notes": (), "errors_by_kind": {},
    "error_examples": {}, "usd_per_million_output_tokens": None, "request_goodput": None, "ttfts": (), "e2els": (), "output_lens": (),
    "input_lens": (), "start_times": (), "vllm_command": "",
}  # fmt: skip


def read_foreign(path: Path) -> list[dict[str, Any]]:
    """Return the results in a file, or in the JSON files of a folder, in this project's form; empty if there are none.

    Raises SweepError if a file is damaged or of an unknown form.
    """
    if path.is_dir():
        files = sorted(file for file in path.glob("*.json") if file.name != "run.json")
    else:
        files = [path] if path.suffix == ".json" and path.is_file() else []
    return [result for file in files for result in _results_of(file)]


def _results_of(path: Path) -> list[dict[str, Any]]:
    try:
        found = as_mapping(json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise SweepError(f"{path} cannot be read as JSON: {error}.") from None
    if "benchmarks" in found:
        return _from_guidellm(path, found)
    if "mean_ttft_ms" in found and "request_throughput" in found:
        try:
            return [_from_vllm(found)]
        except (KeyError, TypeError, ValueError) as error:
            raise SweepError(
                f"{path} is not in the form of vllm bench serve ({error!r}); save the result again."
            ) from None
    raise SweepError(
        f"{path} is no result of vllm bench serve or GuideLLM; give such a file, or the folder of a sweep."
    )


def _number(value: object) -> float:
    """Return a number. Raises TypeError if the value is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _point(mode: str, level: float, lengths: tuple[float, float], key: str) -> dict[str, Any]:
    return {
        "mode": mode,
        "level": level,
        "input_tokens": max(1, round(lengths[0])),
        "output_tokens": max(1, round(lengths[1])),
        "requests": None,
        "duration_s": None,
        "seed": 0,
        "repeat": 0,
        "requested_input_tokens": None,
        "traffic": "",
        "key": key,
    }


def _from_vllm(found: Mapping[str, Any]) -> dict[str, Any]:
    done = max(1, int(found.get("completed") or 0))
    rate, users = found.get("request_rate", "inf"), found.get("max_concurrency")
    is_open = users is None and rate != "inf"
    level = float(rate) if is_open else float(users or found.get("num_prompts") or 1)
    lengths = (float(found["total_input_tokens"]) / done, float(found["total_output_tokens"]) / done)
    ttfts, itls = [_number(ttft) for ttft in as_list(found.get("ttfts"))], as_list(found.get("itls"))
    e2els = [ttft + math.fsum(map(_number, as_list(gaps))) for ttft, gaps in zip(ttfts, itls, strict=False)]
    detailed = len(ttfts) == len(e2els) == len(as_list(found.get("output_lens")))
    key = f"{'open-r' if is_open else 'closed-c'}{level:g}-i{lengths[0]:.0f}-o{lengths[1]:.0f}-n0"
    return {
        **_EMPTY,
        **found,
        "tool": "vllm",
        "failed": int(found.get("failed") or max(0, int(found.get("num_prompts") or 0) - done)),
        "point": _point("open" if is_open else "closed", level, lengths, key),
        "start_times": list(range(len(ttfts))) if detailed else [],
        "ttfts": ttfts if detailed else [],
        "e2els": e2els if detailed else [],
        "output_lens": as_list(found.get("output_lens")) if detailed else [],
    }


def _from_guidellm(path: Path, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    arguments = as_mapping(found.get("args"))
    results: list[dict[str, Any]] = []
    for number, item in enumerate(as_list(found.get("benchmarks"))):
        benchmark = as_mapping(item)
        try:
            results.append(_one_of_guidellm(benchmark, arguments, number))
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise SweepError(
                f"{path}: benchmark {number + 1} is not in GuideLLM's form of 0.4 to 0.8 ({error!r}); export it again with such a version."
            ) from None
    return results


def _one_of_guidellm(benchmark: Mapping[str, Any], arguments: Mapping[str, Any], number: int) -> dict[str, Any]:
    metrics = as_mapping(benchmark["metrics"])

    def good(name: str) -> Mapping[str, Any]:
        return as_mapping(as_mapping(metrics.get(name)).get("successful"))

    totals = as_mapping(metrics.get("request_totals") or benchmark.get("request_totals"))
    done = int(_number(totals["successful"]))
    mode, level = _strategy(benchmark, arguments, number)
    lengths = (_number(good("prompt_token_count")["mean"]), _number(good("output_token_count")["mean"]))
    duration = _number(benchmark["duration"])
    tokens = (lengths[0] * done, lengths[1] * done)
    requests = [as_mapping(item) for item in as_list(as_mapping(benchmark.get("requests")).get("successful"))]
    columns = [
        (request.get("time_to_first_token_ms"), request.get("request_latency"), request.get("output_tokens"))
        for request in requests
    ]
    whole = [row for row in columns if all(isinstance(value, (int, float)) for value in row)]
    figures: dict[str, Any] = {}
    for name, theirs in NAMES.items():
        scale = 1000 if name == "e2el" else 1
        summary = good(theirs)
        percentiles = as_mapping(summary.get("percentiles"))
        values = (
            summary.get("mean"), summary.get("median"), summary.get("std_dev"),
            *(percentiles.get(name) for name in GUIDELLM_PERCENTILES.values()),
        )  # fmt: skip
        figures |= {
            f"{key}_{name}_ms": value * scale if isinstance(value, (int, float)) else None
            for key, value in zip(STATISTICS, values, strict=True)
        }
    return {
        **_EMPTY,
        **figures,
        "tool": "guidellm",
        "point": _point(mode, level, lengths, f"guidellm-{number}"),
        "completed": done,
        "failed": int(_number(totals.get("errored") or 0)),
        "duration": duration,
        "total_input_tokens": round(tokens[0]),
        "total_output_tokens": round(tokens[1]),
        "request_throughput": done / duration,
        "output_throughput": tokens[1] / duration,
        "total_token_throughput": sum(tokens) / duration,
        "start_times": list(range(len(whole))),
        "ttfts": [_number(row[0]) / 1000 for row in whole],
        "e2els": [_number(row[1]) for row in whole],
        "output_lens": [int(_number(row[2])) for row in whole],
    }


def _strategy(benchmark: Mapping[str, Any], arguments: Mapping[str, Any], number: int) -> tuple[str, float]:
    strategy = as_mapping(as_mapping(benchmark.get("config")).get("strategy"))
    rates = as_list(arguments.get("rate"))
    given = rates[min(number, len(rates) - 1)] if rates else None
    kind = str(strategy.get("type_") or arguments.get("profile"))
    if kind in {"constant", "poisson", "async"}:
        return "open", _number(strategy.get("rate") or given or 0.0)
    if kind == "synchronous":
        return "closed", 1.0
    streams = strategy.get("streams") or strategy.get("max_concurrency") or given
    if streams is None:
        raise ValueError(f"strategy {kind!r} without a number of streams")
    return "closed", _number(streams)


Groups = dict[str, list[dict[str, Any]]]


def aligned(first: Groups, second: Groups, name_of: Callable[[dict[str, Any]], str]) -> tuple[Groups, Groups]:
    """Give the points of another tool the lengths of the point that they match: the same load, and lengths within NEAR."""
    return _aligned(first, second, name_of), _aligned(second, first, name_of)


def _aligned(mine: Groups, others: Groups, name_of: Callable[[dict[str, Any]], str]) -> Groups:
    found: Groups = {}
    for name, results in mine.items():
        matches = [group[0]["point"] for group in others.values() if "tool" not in group[0]]
        near = [point for point in matches if _is_near(results[0]["point"], point)]
        if "tool" in results[0] and name not in others and near:
            lengths = {key: near[0][key] for key in ("input_tokens", "output_tokens", "requested_input_tokens")}
            changed = [result | {"point": result["point"] | lengths} for result in results]
            found.setdefault(name_of(changed[0]), []).extend(changed)
        else:
            found.setdefault(name, []).extend(results)
    return found


def _is_near(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return (one["mode"], one["level"]) == (other["mode"], other["level"]) and all(
        abs(one[name] - other[name]) <= NEAR * other[name] for name in ("input_tokens", "output_tokens")
    )


def export_vllm(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point as `vllm bench serve --save-result --save-detailed` writes it."""
    left_out = {
        "point", "server", "client", "traffic", "search", "ramp", "sessions", "notes", "invalid_reasons", "valid", "vllm_command",
        "schema_version", "error_examples", "e2els", "image_tokens", "simulated", "tool", "input_lens_source",
        "timeline", "itl_quantiles_ms",
    }  # fmt: skip
    moment = dt.datetime.fromisoformat(str(result["date"]))
    # Mean gaps: a result keeps no time of every event. Their sum is the request's time after its first token.
    itls: list[list[float]] = [
        [(e2e - ttft) / (tokens - 1)] * (tokens - 1) if tokens > 1 else []
        for ttft, e2e, tokens in zip(result["ttfts"], result["e2els"], result["output_lens"], strict=True)
    ]
    return {
        **{
            key: value
            for key, value in result.items()
            if key not in left_out and not _is_missing_percentile(key, value)
        },
        "date": moment.strftime("%Y%m%d-%H%M%S"),
        "label": None,
        "itls": itls,
        "errors": [""] * int(result["completed"]),
    }


def _is_missing_percentile(key: str, value: object) -> bool:
    """Whether a field is a percentile that the number of requests does not support: vLLM's file has a number or no field."""
    return value is None and key.startswith(("p95_", "p99.9_"))


def export_guidellm(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a sweep in the form of GuideLLM's JSON file: the fields that its metrics have a counterpart for."""
    return {
        "metadata": {"version": 1, "guidellm_version": None, "exported_by": "gemma-serving scripts.bench"},
        "args": {"rate": [result["point"]["level"] for result in results]},
        "benchmarks": [_guidellm_benchmark(result) for result in results],
    }


def _guidellm_benchmark(result: Mapping[str, Any]) -> dict[str, Any]:
    point, done, failed = result["point"], int(result["completed"]), int(result["failed"])
    is_open = point["mode"] == "open"
    strategy = (
        {"type_": "poisson" if result.get("burstiness") == 1.0 else "constant", "rate": point["level"]}
        if is_open
        else {"type_": "concurrent", "streams": int(point["level"])}
    )

    def summary(mean: float | None, **more: object) -> dict[str, Any]:
        total = None if mean is None else mean * done
        return {"successful": {"count": done, "mean": mean, "total_sum": total, **more}}

    metrics: dict[str, Any] = {
        "request_totals": {"successful": done, "incomplete": 0, "errored": failed, "total": done + failed},
        "requests_per_second": summary(result["request_throughput"]),
        "output_tokens_per_second": summary(result["output_throughput"]),
        "tokens_per_second": summary(result["total_token_throughput"]),
        "prompt_token_count": summary(result["total_input_tokens"] / done if done else None),
        "output_token_count": summary(result["total_output_tokens"] / done if done else None),
    }
    for name, theirs in NAMES.items():
        values = {key: result.get(f"{key}_{name}_ms") for key in STATISTICS}
        if name == "e2el":
            values = {key: None if value is None else value / 1000 for key, value in values.items()}
        metrics[theirs] = summary(
            values["mean"],
            median=values["median"],
            std_dev=values["std"],
            percentiles={"p50": values["median"]} | {name: values[key] for key, name in GUIDELLM_PERCENTILES.items()},
        )
    rows = zip(result["ttfts"], result["e2els"], result["input_lens"], result["output_lens"], strict=True)
    return {
        "type_": "generative_benchmark",
        "config": {"strategy": strategy},
        "duration": result["duration"],
        "metrics": metrics,
        "requests": {
            "successful": [
                {
                    "time_to_first_token_ms": ttft * 1000,
                    "request_latency": e2e,
                    "prompt_tokens": given,
                    "output_tokens": made,
                }
                for ttft, e2e, given, made in rows
            ],
            "incomplete": [],
            "errored": [],
        },
    }


def export_folder(results: Sequence[Mapping[str, Any]], form: str, out: Path) -> list[Path]:
    """Write the points of a sweep as files of another tool, and return their paths."""
    out.mkdir(parents=True, exist_ok=True)
    if form == "guidellm":
        path = out / "authors.benchmarks.json"
        path.write_text(json.dumps(export_guidellm(results), indent=1) + "\n", encoding="utf-8")
        return [path]
    paths: list[Path] = []
    for result in results:
        path = out / f"{result['point']['key']}.json"
        path.write_text(json.dumps(export_vllm(result)) + "\n", encoding="utf-8")
        paths.append(path)
    return paths
