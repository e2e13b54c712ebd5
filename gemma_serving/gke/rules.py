"""Rules for a server's objects: what a real control plane refuses or taught, before anything is written. No setting can accept them."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from gemma_serving.contracts.verdicts import Severity
from gemma_serving.gke.objects import KubernetesObject, objects
from gemma_serving.gke.server import GkeOptions, GkeServer
from gemma_serving.planning.data.tables import Table, row_of
from gemma_serving.planning.question.extra_arguments import plain_secrets
from gemma_serving.planning.settings.finding import Finding
from gemma_serving.planning.units import duration

_CLUSTER_USD_PER_HOUR: Final = 0.10
_LONGEST_PERIOD_S: Final = 1_800
_FLEX_START_ZONES: Final = ("asia-northeast1-b", "us-east5-a", "us-east5-b")
"""Of v6e, the only TPU with objects. Cloud TPU has more."""
_DIGEST: Final = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")


class GkeRule(Struct, frozen=True, kw_only=True):
    """A row of rules.json. `message` and `advice` have names of `_words` in braces."""

    id: str
    severities: tuple[Severity, ...]
    what: str
    source: str
    message: str
    advice: str


GKE_RULES: Final = Table(
    lambda: {
        row["id"]: row_of(GkeRule, row)
        for row in json.loads(Path(__file__).with_name("rules.json").read_text(encoding="utf-8"))
    }
)
"""By id, in the order of their findings: blocking ones first."""


def findings(
    server: GkeServer, options: GkeOptions, found: Sequence[KubernetesObject] | None = None
) -> tuple[Finding, ...]:
    """Return all findings, blocking ones first. `found`: the objects to judge; None for those that `objects` returns."""
    judged = objects(server, options) if found is None else found
    deployments = [one["spec"] for one in judged if one["kind"] == "Deployment"]
    containers = [one for each in deployments for one in each["template"]["spec"]["containers"]]
    scales = any(one["kind"] == "HorizontalPodAutoscaler" for one in judged)
    images = [one["image"] for one in containers if not _DIGEST.fullmatch(one["image"])]
    secrets = list(_secrets(containers))
    probe_s = min(
        each["periodSeconds"] * each["failureThreshold"] for each in (one["startupProbe"] for one in containers)
    )
    is_flex = server.form == "flex-start" and not options.compute_class
    least, most = options.replicas
    applies: Mapping[str, bool] = {
        "GKE01": not server.node_labels,
        "GKE02": bool(server.lacks),
        "GKE03": bool(images),
        "GKE04": bool(secrets),
        "GKE05": scales and any("replicas" in one for one in deployments),
        "GKE06": probe_s < server.container_start_s,
        "GKE07": scales and server.replica_start_s > _LONGEST_PERIOD_S,
        "GKE08": is_flex and not {*server.zones} & {*_FLEX_START_ZONES},
        "GKE09": is_flex,
        "GKE10": least == 1 and not options.spare_node,
        "GKE11": most > 1 and not options.gateway,
        "GKE12": server.environment.get("VLLM_ENABLE_CUDA_COMPATIBILITY") == "1",
        "GKE13": True,
        "GKE14": True,
    }
    words = {
        "accelerator": server.accelerator,
        "lacks": " ".join(server.lacks),
        "image": f'"{images[0]}"' if any(images) else "that the stack builds",
        "secrets": ", ".join(secrets),
        "probe": duration(probe_s),
        "container_start": duration(server.container_start_s),
        "start": duration(server.replica_start_s),
        "zones": ", ".join(server.zones),
        "flex_zones": ", ".join(_FLEX_START_ZONES),
        "needs": ", ".join(_needs(server, options)),
        "price": _price(server, options),
    }
    return tuple(
        Finding(
            id=one.id,
            severity=one.severities[0],
            message=one.message.format_map(words),
            remedies=(),
            advice=one.advice.format_map(words),
            source=one.source,
        )
        for one in GKE_RULES.values()
        if applies[one.id]
    )


def _secrets(containers: Sequence[KubernetesObject]) -> Iterator[str]:
    for one in containers:
        environment = {each["name"]: each["value"] for each in one["env"] if "value" in each}
        yield from plain_secrets(one["args"], environment)


def _needs(server: GkeServer, options: GkeOptions) -> Iterator[str]:
    """Yield what the cluster must have in addition to nodes."""
    yield from ("Workload Identity Federation", "Managed Service for Prometheus")
    if options.replicas[0] < options.replicas[1]:
        yield "the Custom Metrics Stackdriver Adapter"
    if server.mount is not None:
        yield "the Cloud Storage FUSE CSI driver"
    if server.token_secret:
        yield "the Secret Manager add-on"
    if options.gateway:
        yield f"the endpoint picker {server.name}-epp"


def _price(server: GkeServer, options: GkeOptions) -> str:
    """Return the price of the minimum and of the maximum, each with the cluster's fee."""
    usd, fee = server.usd_per_hour, f"${_CLUSTER_USD_PER_HOUR:.2f}/h of the cluster"
    if usd is None:
        return f"The price of a replica's node is unknown. Add the {fee}."
    whole = [f"${count * usd + _CLUSTER_USD_PER_HOUR:.2f}/h for {count}" for count in dict.fromkeys(options.replicas)]
    return f"The node of a replica costs ${usd:.2f}/h ({server.form}). With the {fee}, that is {' and '.join(whole)}."
