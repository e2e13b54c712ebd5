"""Result files of `vllm bench serve --save-result` (vllm/benchmarks/serve.py), for comparison with a sweep.

Such a file is one JSON object with the same names as ours. It has per-request lists only with `--save-detailed`.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from loadtest.client.json_values import as_list, as_mapping
from loadtest.errors import SweepError
from loadtest.measure import SCHEMA_VERSION

NEAR: Final = 0.2
"""Lengths within this relative difference are the same point, because tools count the chat template differently."""
_EMPTY: Final[Mapping[str, Any]] = {
    "schema_version": SCHEMA_VERSION, "simulated": None, "valid": True, "invalid_reasons": (), "notes": (), "errors_by_kind": {},
    "error_examples": {}, "usd_per_million_output_tokens": None, "request_goodput": None, "ttfts": (), "e2els": (), "output_lens": (),
    "input_lens": (), "start_times": (), "vllm_command": "",
}  # fmt: skip


def read_foreign(path: Path) -> list[dict[str, Any]]:
    """Return the results in a file, or in the JSON files of a folder, in this project's form. Empty without any.

    Raises SweepError if a file is damaged or has an unknown form.
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
        raise SweepError(f"Cannot read {path} as JSON: {error}.") from None
    if "mean_ttft_ms" in found and "request_throughput" in found:
        try:
            return [_from_vllm(found)]
        except (KeyError, TypeError, ValueError) as error:
            raise SweepError(
                f"{path} is not in the format of vllm bench serve ({error!r}). Save the result again."
            ) from None
    raise SweepError(f"{path} is not a result of vllm bench serve. Pass such a file or the folder of a sweep.")


def _number(value: object) -> float:
    """Return a number. Raises TypeError for any other value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
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


Groups = dict[str, list[dict[str, Any]]]


def aligned(first: Groups, second: Groups, name_of: Callable[[dict[str, Any]], str]) -> tuple[Groups, Groups]:
    """Set the points of another tool to the lengths of the matching point: the same load, and lengths within NEAR."""
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
