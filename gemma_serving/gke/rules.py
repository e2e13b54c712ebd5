"""Rules for a server's objects: what a real control plane refuses or taught, before anything is written. No setting can accept them."""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final

from msgspec import convert

from gemma_serving.gke.objects import picker_commands
from gemma_serving.gke.server_inputs import GkeOptions, GkeServer
from gemma_serving.planning.data.tables import Table
from gemma_serving.planning.settings.finding import Finding
from gemma_serving.planning.units import duration, to_gib

_CLUSTER_USD_PER_HOUR: Final = 0.10
_BOOT_DISK_GB: Final = 100
_LONGEST_PERIOD_S: Final = 1_800
_FLEX_START_ZONES: Final = ("asia-northeast1-b", "us-east5-a", "us-east5-b")
"""Of v6e, the only TPU with objects. Cloud TPU has more."""
_DIGEST: Final = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")


def _read(name: str) -> Any:  # noqa: ANN401 - JSON
    return json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


_LIMITS: Final[Mapping[str, Mapping[str, Any]]] = Table(
    lambda: {row["name"]: row for row in _read("autopilot.json")["limits"]}
)
AUTOPILOT: Final[Mapping[str, float]] = Table(lambda: {name: row["value"] for name, row in _LIMITS.items()})
"""Published limits of Autopilot by name. The file has their units and sources, and what is unknown."""
GKE_RULES: Final[Mapping[str, Mapping[str, str]]] = Table(lambda: {row["id"]: row for row in _read("rules.json")})
"""Rows by id, blocking ones first. `message` and `advice` have the names of facts in braces."""


def findings(server: GkeServer, options: GkeOptions) -> tuple[Finding, ...]:
    """Return all findings, blocking ones first."""
    is_flex = server.form == "flex-start" and not options.compute_class
    autopilot = [*_beyond_autopilot(server)]
    least, most = options.replicas
    faster_setting, faster_load_s = server.faster_load or ("", 0)
    applies: Mapping[str, bool] = {
        "GKE01": not server.node_labels,
        "GKE02": bool(server.lacks),
        "GKE03": not _DIGEST.fullmatch(server.image),
        "GKE07": least != most and server.scaling_period_s > _LONGEST_PERIOD_S,
        "GKE08": is_flex and not {*server.zones} & {*_FLEX_START_ZONES},
        "GKE09": is_flex,
        "GKE10": least == 1 and not options.spare_node,
        "GKE11": most > 1 and not options.gateway,
        "GKE12": server.environment.get("VLLM_ENABLE_CUDA_COMPATIBILITY") == "1",
        "GKE15": server.disk_gib > _disk_left_gib(_BOOT_DISK_GB),
        "GKE13": True,
        "GKE14": True,
        "GKE04": bool(autopilot),
        "GKE05": server.graphs_s > 0,
        "GKE06": server.faster_load is not None,
    }
    words = {
        "accelerator": server.accelerator,
        "lacks": " ".join(server.lacks),
        "image": f'"{server.image}"' if server.image else "that the stack builds",
        "start": duration(server.replica_start_s),
        "period": duration(server.scaling_period_s),
        "shorten": " by tpu.compileCache: bucket" if server.is_tpu and server.programs is None else "",
        "graphs": duration(server.graphs_s),
        "load": duration(server.load_s),
        "faster_setting": faster_setting,
        "faster_load": duration(faster_load_s),
        "zones": ", ".join(server.zones),
        "flex_zones": ", ".join(_FLEX_START_ZONES),
        "disk": str(server.disk_gib),
        "disk_left": f"{_disk_left_gib(_BOOT_DISK_GB):.0f}",
        "disk_size": str(next(size for size in count(_BOOT_DISK_GB, 50) if _disk_left_gib(size) >= server.disk_gib)),
        "needs": _needs(server, options),
        "picker": _picker(server) if options.gateway else "",
        "price": _price(server, options),
        "autopilot": ", and ".join(autopilot),
    }
    texts = {
        identifier: {"message": row["message"].format_map(words), "advice": row["advice"].format_map(words)}
        for identifier, row in GKE_RULES.items()
        if applies[identifier]
    }
    return tuple(convert({**GKE_RULES[one], **texts[one], "remedies": ()}, Finding) for one in texts)


def _disk_left_gib(disk_gb: int) -> float:
    """Return what GKE leaves of a boot disk for Pods, up to 250 GB (source: GKE15)."""
    whole_gib = to_gib(disk_gb * 1e9)
    return 0.9 * whole_gib - (6 + 0.35 * whole_gib)


def _beyond_autopilot(server: GkeServer) -> Iterator[str]:
    """Yield each resource of a Pod that is above a published limit of Autopilot."""
    sidecar = server.sidecar
    requests: dict[str, tuple[float, str]] = {
        "POD_DISK_GIB": (server.disk_gib + sidecar.disk_gib, "GiB of ephemeral storage")
    }
    if not server.is_tpu:
        requests["GPU_SIDECAR_CPU"] = (sidecar.cpu, "vCPU for the FUSE driver")
        requests["GPU_SIDECAR_GIB"] = (sidecar.memory_gib, "GiB of memory for the FUSE driver")
    for name, (used, what) in requests.items():
        if used > AUTOPILOT[name]:
            doubt = _LIMITS[name]["doubt"]
            yield f"it requests {used:.3g} {what}, and the published maximum is {AUTOPILOT[name]:g} ({doubt})"


def _needs(server: GkeServer, options: GkeOptions) -> str:
    """Return the parts of the cluster that the objects use."""
    is_buffered = any(one.is_buffered for one in server.mounts)
    parts = {
        "Managed Service for Prometheus": True,
        "Custom Metrics Stackdriver Adapter": options.replicas[0] != options.replicas[1],
        "Workload Identity Federation": server.bucket or server.secrets,
        f"Cloud Storage FUSE CSI driver{' of GKE 1.34.0-gke.2011000 or newer' if is_buffered else ''}": server.mounts,
        "Secret Manager add-on": server.secrets,
        "enforcement of network policies": options.callers,
        f"Gateway {options.gateway} with an HTTPS listener named https, InferencePool {server.name} (GKE 1.34.0-gke.1626000 or newer)": options.gateway,
    }
    return ", ".join(part for part, is_used in parts.items() if is_used)


def _picker(server: GkeServer) -> str:
    install, change = picker_commands(server)
    return f"Install the pool, its picker and its policies: `{install}`. Then let answers take as long as they can: `{change}`"


def _price(server: GkeServer, options: GkeOptions) -> str:
    """Return the price of the minimum and of the maximum, each with the cluster's fee."""
    usd, fee = server.usd_per_hour, f"${_CLUSTER_USD_PER_HOUR:.2f}/h of the cluster"
    if usd is None:
        return f"The price of a replica's node is unknown. Add the {fee}."
    whole = [
        f"${number * usd + _CLUSTER_USD_PER_HOUR:.2f}/h for {number}" for number in dict.fromkeys(options.replicas)
    ]
    rest = " Add the picker's node and the load balancer." if options.gateway else ""
    return f"The node of a replica costs ${usd:.2f}/h ({server.form}). With the {fee}, that is {' and '.join(whole)}.{rest}"
