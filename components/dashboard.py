"""Dashboard of a server in Cloud Monitoring: tiles as data."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_COLUMNS: Final = 48
_WIDTH: Final = 24
_HEIGHT: Final = 16
_QUANTILES: Final = (0.5, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A chart. `lines`: PromQL by legend, with `$server` for the server's label."""

    title: str
    unit: str
    """Unit of the axis (UCUM), such as `s`."""
    lines: Mapping[str, str]


def _quantiles(histogram: str) -> Mapping[str, str]:
    return {
        f"p{round(share * 100)}": f"histogram_quantile({share}, sum by (le) (rate({histogram}_bucket{{$server}}[5m])))"
        for share in _QUANTILES
    }


def _rate(metric: str, **labels: str) -> str:
    more = "".join(f',{name}="{value}"' for name, value in labels.items())
    return f"sum(rate({metric}{{$server{more}}}[5m]))"


TILES: Final[Sequence[Tile]] = (
    Tile(title="Up", unit="1", lines={"server": 'max(up{$server,job!="agent"})'}),
    Tile(
        title="Hours until the run of a TPU expires",
        unit="h",
        lines={"hours": "(min(gemma_serving_deadline_timestamp_seconds{$server}) - time()) / 3600"},
    ),
    Tile(
        title="Requests",
        unit="1",
        lines={
            "running": "sum(vllm:num_requests_running{$server})",
            "waiting": "sum(vllm:num_requests_waiting{$server})",
        },
    ),
    Tile(title="KV cache", unit="10^2.%", lines={"used": "max(vllm:kv_cache_usage_perc{$server})"}),
    Tile(
        title="Tokens per second",
        unit="1/s",
        lines={
            "prompt": _rate("vllm:prompt_tokens_total"),
            "generated": _rate("vllm:generation_tokens_total"),
        },
    ),
    Tile(
        title="Ended requests per minute",
        unit="1",
        lines={
            "all": f"60 * {_rate('vllm:request_success_total')}",
            "errors": f"60 * {_rate('vllm:request_success_total', finished_reason='error')}",
            "HTTP 5xx": f"60 * {_rate('http_requests_total', status='5xx')}",
        },
    ),
    Tile(title="Time to first token", unit="s", lines=_quantiles("vllm:time_to_first_token_seconds")),
    Tile(title="Time between tokens", unit="s", lines=_quantiles("vllm:inter_token_latency_seconds")),
    Tile(title="Request latency", unit="s", lines=_quantiles("vllm:e2e_request_latency_seconds")),
    Tile(
        title="Preemptions per minute",
        unit="1",
        lines={"preemptions": f"60 * {_rate('vllm:num_preemptions_total')}"},
    ),
    Tile(
        title="Prefix cache hits",
        unit="10^2.%",
        lines={"hits": f"{_rate('vllm:prefix_cache_hits_total')} / {_rate('vllm:prefix_cache_queries_total')}"},
    ),
    Tile(
        title="Accepted draft tokens",
        unit="10^2.%",
        lines={
            "accepted": f"{_rate('vllm:spec_decode_num_accepted_tokens_total')} / "
            f"{_rate('vllm:spec_decode_num_draft_tokens_total')}"
        },
    ),
)


def dashboard_json(*, title: str, namespace: str, labels: Mapping[str, str]) -> str:
    """Return the dashboard as the API accepts it."""
    tiles = [_tile(number, tile, f'namespace="{namespace}"') for number, tile in enumerate(TILES)]
    layout = {"columns": _COLUMNS, "tiles": tiles}
    return json.dumps({"displayName": title, "labels": {**labels}, "mosaicLayout": layout}, sort_keys=True)


def _tile(number: int, tile: Tile, server: str) -> Mapping[str, object]:
    row, column = divmod(number, _COLUMNS // _WIDTH)
    sets = [
        {
            "legendTemplate": legend,
            "plotType": "LINE",
            "timeSeriesQuery": {"prometheusQuery": query.replace("$server", server), "unitOverride": tile.unit},
        }
        for legend, query in tile.lines.items()
    ]
    place = {"height": _HEIGHT, "width": _WIDTH, **({"xPos": column * _WIDTH} if column else {})}
    return {
        **place,
        **({"yPos": row * _HEIGHT} if row else {}),
        "widget": {"title": tile.title, "xyChart": {"dataSets": sets}},
    }
