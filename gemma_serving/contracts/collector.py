"""The collector of metrics next to a server: Google's build of the OpenTelemetry collector."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from gemma_serving.contracts.path_guard import API_KEY_VARIABLE

COLLECTOR_REPOSITORY: Final = (
    "us-docker.pkg.dev/cloud-ops-agents-artifacts/google-cloud-opentelemetry-collector/otelcol-google"
)
COLLECTOR_DIGEST: Final = "sha256:90c2bab052e6c9da37efb6e7181b0cbb99562b9b39096dce895c7afe957b3b02"
"""Digest of version 0.135.0 in Google's signed attestation (GoogleCloudPlatform/opentelemetry-operations-collector d4e7e50,
google-built-opentelemetry-collector/VSA/0.135.0). No registry was read (ledger `image-of-the-collector`)."""
COLLECTOR_IMAGE: Final = f"{COLLECTOR_REPOSITORY}@{COLLECTOR_DIGEST}"

COLLECTOR_CONTAINER: Final = "collector"
CONFIG_VARIABLE: Final = "COLLECTOR_CONFIG"
CONFIG_ARGUMENT: Final = f"--config=env:{CONFIG_VARIABLE}"
COLLECTOR_METADATA_KEY: Final = "gemma-serving-collector"
"""Metadata key of a TPU VM. Absent without metrics. A change of it does not restart the server."""
AGENT_METRICS_PORT: Final = 8001
AGENT_JOB: Final = "agent"
_CREDENTIALS: Final = {"authorization": {"credentials": f"${{env:{API_KEY_VARIABLE}}}"}}

COLLECTOR_VCPU: Final = 2
"""A container has 1, 2, 4, 6 or 8 vCPU, and the sum is assumed to need such a value too (ledger `run-collector-share`)."""
COLLECTOR_MIN_GIB: Final = 0.5
GIB_PER_VCPU: Final = 4
"""Cloud Run's maximum memory of a container per vCPU."""

SCRAPE_INTERVAL_S: Final = 30
"""Time between two scrapes. Alerts are evaluated as often. Google accepts multiples of 30 s (discovery: monitoring.v3).

Windows of 5 minutes need two scrapes: with 3 minutes or more, some alerts do not fire."""
MOST_SAMPLES: Final = 120
"""Samples of one scrape and engine, at most: speculative decoding, all buckets filled, and the agent's."""


def server_share(vcpu: float, memory_gib: float) -> "tuple[float, float]":
    """Return vCPU and memory of the server in an instance that it shares with the collector."""
    own = vcpu - COLLECTOR_VCPU
    return own, min(memory_gib - COLLECTOR_MIN_GIB, own * GIB_PER_VCPU)


@dataclass(frozen=True)
class CollectorSettings:
    """A collector on a TPU VM."""

    image: str
    config: str
    key: "str | None" = None
    """Version in Secret Manager with the server's API key; None for a server without one."""

    def text(self) -> str:
        """Return the metadata value."""
        value = {name: text for name, text in asdict(self).items() if text is not None}
        return json.dumps(value, sort_keys=True, separators=(",", ":"))


def parse_collector(text: str) -> CollectorSettings:
    """Parse the metadata value, which the stack wrote. Raises ValueError, KeyError or TypeError."""
    raw = json.loads(text)
    return CollectorSettings(raw["image"], raw["config"], raw.get("key"))


def collector_config(
    *, project: str, namespace: str, cluster: str, ports: Sequence[int], has_api_key: bool = False
) -> str:
    """Return the configuration as JSON, which is YAML too.

    Args:
        project: project that stores the metrics. A TPU VM may be in Google's project.
        namespace: name of the service or the queued resource; alerts select by this label.
        cluster: another label of each series; Google requires one.
        ports: loopback ports whose /metrics is scraped.
        has_api_key: True if the server requires its API key at /metrics (contracts.path_guard).
    """
    config = json.loads(Path(__file__).with_name("collector.json").read_text(encoding="utf-8"))
    scraped = config["receivers"]["prometheus"]["config"]
    template = scraped["scrape_configs"][0]
    # Google bills samples, so metrics that no alert and no tile reads are dropped.
    kept = template["metric_relabel_configs"][0]
    kept["regex"] = "|".join(kept["regex"])
    scraped["scrape_configs"] = [
        {
            "job_name": "vllm" if port != AGENT_METRICS_PORT else AGENT_JOB,
            **(_CREDENTIALS if has_api_key and port != AGENT_METRICS_PORT else {}),
            **template,
            "scrape_interval": f"{SCRAPE_INTERVAL_S}s",
            "static_configs": [
                {"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": namespace, "cluster": cluster}}
            ],
        }
        for port in ports
    ]
    config["processors"]["resource"]["attributes"][1]["value"] = project
    return json.dumps(config, separators=(",", ":"))
