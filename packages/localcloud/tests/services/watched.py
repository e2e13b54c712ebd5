"""A local cloud with the evaluator, and a server whose metrics a test sets."""

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from localcloud.services.evaluating import Monitor
from localcloud.tests import idle_cloud
from localcloud.tests.conftest import PROJECT, SCENARIO, Client
from localcloud.tests.rules.built import evaluator_program
from localcloud.world.runtime import RevisionSpec, RunningInstance

V3 = f"/monitoring/v3/projects/{PROJECT}"
QUERY = f"/monitoring/v1/projects/{PROJECT}/location/global/prometheus/api/v1/query"
SERVICES = f"/run/v2/projects/{PROJECT}/locations/us-east4/services"
CONFIG = """
receivers:
  prometheus:
    config:
      scrape_configs:
        - job_name: vllm
          scrape_interval: 30s
          static_configs:
            - targets: ["127.0.0.1:8000"]
              labels: {namespace: gemma, cluster: __run__, service_name: "${env:K_SERVICE}", revision_name: "${env:K_REVISION}"}
          metric_relabel_configs:
            - {source_labels: [__name__], regex: "vllm:.*|process_start_time_seconds", action: keep}
processors:
  resourcedetection: {detectors: [gcp]}
  resource:
    attributes: [{key: service.instance.id, from_attribute: faas.instance, action: upsert}]
  transform:
    metric_statements:
      - context: datapoint
        statements: ['set(attributes["instanceId"], resource.attributes["faas.instance"])']
  groupbyattrs: {keys: [namespace, cluster]}
  batch: {}
exporters:
  googlemanagedprometheus: {}
service:
  pipelines:
    metrics:
      receivers: [prometheus]
      processors: [resourcedetection, resource, transform, groupbyattrs, batch]
      exporters: [googlemanagedprometheus]
"""
"""A collector's configuration for a service on Cloud Run, in the image's own format."""
COLLECTOR = "us-docker.pkg.dev/cloud-ops-agents-artifacts/google-cloud-opentelemetry-collector/otelcol-google:0.135.0"


def sidecar(config: str = CONFIG, **changes: Any) -> dict[str, Any]:
    return {
        "name": "collector",
        "image": COLLECTOR,
        "args": ["--config=env:COLLECTOR_CONFIG"],
        "env": [{"name": "COLLECTOR_CONFIG", "value": config}],
        "dependsOn": ["vllm"],
        **changes,
    }


def template(*sidecars: dict[str, Any]) -> dict[str, Any]:
    server = {"name": "vllm", "image": "docker.io/x", "ports": [{"containerPort": 8000}]}
    return {"containers": [server, *sidecars]}


def promql(expression: str, **changes: Any) -> dict[str, Any]:
    """A policy with one PromQL condition. Values of `changes` whose name is that of a condition's field replace it."""
    condition = {"query": expression, "duration": "0s", "disableMetricValidation": True}
    for key in ("duration", "evaluationInterval", "disableMetricValidation", "labels"):
        if key in changes:
            condition[key] = changes.pop(key)
    return {
        "displayName": "policy",
        "combiner": "OR",
        "severity": "WARNING",
        "userLabels": {"stack": "s"},
        "documentation": {"content": "what to do", "mimeType": "text/markdown"},
        "conditions": [{"displayName": "rings", "conditionPrometheusQueryLanguage": condition}],
        **changes,
    }


@dataclass
class Server:
    """An HTTP server: answers `text` (or `status`) at /metrics and keeps the bodies of POST requests."""

    port: int = 0
    text: str = ""
    status: int = 200
    token: str = ""
    """Bearer token that /metrics requires; empty for none."""
    posted: list[dict[str, Any]] = field(default_factory=list)
    reads: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.reads += 1
            known = self.path == "/metrics"
            allowed = not server.token or self.headers.get("Authorization") == f"Bearer {server.token}"
            self.send_response((server.status if allowed else 401) if known else 404)
            self.end_headers()
            if known:
                self.wfile.write(server.text.encode())

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            server.posted.append(json.loads(self.rfile.read(length)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.port = http.server_address[1]
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


@dataclass
class Watched:
    """A cloud whose one service answers with the metrics of `server`."""

    cloud: idle_cloud.Started
    client: Client
    server: Server
    readable: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Payload by secret and version, as the service's account can read them."""

    @property
    def revisions(self) -> idle_cloud.IdleRevisions:
        found = self.cloud.cloud.runtimes.revisions
        assert isinstance(found, idle_cloud.IdleRevisions)
        return found

    @property
    def monitor(self) -> Monitor:
        return self.cloud.monitor

    def deploy(self, *sidecars: dict[str, Any], identity: str = "0a1b") -> None:
        """Deploy the service through Cloud Run's API, and let its instance run."""
        operation = self.client.ok("POST", SERVICES, {"template": template(*sidecars)}, serviceId="gemma")
        self.client.ok("POST", f"/run/v2/{operation['name']}:wait", {"timeout": "20s"})
        (name, document), *_ = self.cloud.cloud.store.under("run.revisions")
        self.run(name, document, identity)

    def run(self, name: str, document: dict[str, Any], identity: str) -> None:
        """Replace the service's instance."""
        spec = RevisionSpec(name=name, service=name.partition("/revisions/")[0], template=document)
        self.revisions.serving = [self._instance(spec, identity)]

    def _instance(self, spec: RevisionSpec, identity: str) -> RunningInstance:
        return RunningInstance(
            revision=spec, url=self.server.url, identity=identity, read_secret=lambda *named: self.readable[named]
        )

    def replace_instance(self, identity: str) -> None:
        """Let another instance of the same revision run."""
        spec = self.revisions.serving[0].revision
        self.revisions.serving = [self._instance(spec, identity)]

    def advance(self, minutes: float) -> None:
        self.client.ok("POST", "/admin/advance", {"seconds": minutes * 60})

    def policy(self, expression: str, **changes: Any) -> str:
        return self.client.ok("POST", f"{V3}/alertPolicies", promql(expression, **changes))["name"]

    def channel(self, kind: str, **labels: str) -> str:
        return self.client.ok("POST", f"{V3}/notificationChannels", {"type": kind, "labels": labels})["name"]

    def alerts(self, **query: Any) -> list[dict[str, Any]]:
        return self.client.ok("GET", f"{V3}/alerts", **query).get("alerts", [])

    def states(self) -> list[str]:
        return [alert["state"] for alert in self.alerts()]

    def value(self, expression: str) -> list[dict[str, Any]]:
        return self.client.ok("POST", QUERY, {"query": expression})["data"]["result"]


@contextlib.contextmanager
def watched(**options: Any) -> Iterator[Watched]:
    """Run a cloud with the evaluator. Skips without Go."""
    options = {"evaluator": evaluator_program(), "scenario": SCENARIO, **options}
    with serving() as server, idle_cloud.start(**options) as cloud:
        yield Watched(cloud=cloud, client=Client(cloud.base_url, cloud.token), server=server)
