"""Dashboard of a server in Cloud Monitoring (dashboard.toml)."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_COLUMNS: Final = 48
_WIDTH: Final = 24
_HEIGHT: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A chart. `lines`: PromQL by legend, with `$server` for the server's label."""

    title: str
    unit: str
    """Unit of the axis (UCUM), such as `s`."""
    lines: Mapping[str, str]


@cache
def tiles() -> Sequence[Tile]:
    """Return the charts of dashboard.toml, in its order."""
    table = tomllib.loads(Path(__file__).with_name("dashboard.toml").read_text(encoding="utf-8"))
    return tuple(Tile(**row) for row in table["tiles"])


def dashboard_json(*, title: str, namespace: str, labels: Mapping[str, str]) -> str:
    """Return the dashboard as the API accepts it."""
    placed = [_tile(number, tile, f'namespace="{namespace}"') for number, tile in enumerate(tiles())]
    layout = {"columns": _COLUMNS, "tiles": placed}
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
