"""The metrics API that the autoscaler reads, as Google's adapter answers from Managed Service for Prometheus."""

import json
import re
import ssl
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple, cast
from urllib.parse import parse_qs, unquote, urlsplit

from judges.real.kubernetes.api import Api, Object
from judges.real.kubernetes.cluster import Cluster
from judges.real.kubernetes.kubelet import TinyKubelet

_METRICS: Final = tuple(f"prometheus.googleapis.com|vllm:num_requests_{name}|gauge" for name in ("waiting", "running"))
"""vLLM's gauges under the names that the adapter gives them."""
_VERSION: Final = "custom.metrics.k8s.io/v1beta2"
_PATH: Final = re.compile(rf"/apis/{re.escape(_VERSION)}/namespaces/(?P<namespace>[^/]+)/pods/\*/(?P<metric>.+)")


class Question(NamedTuple):
    """A metric of the Pods that match a selector."""

    namespace: str
    metric: str
    selector: str


def requests_of(api: Api, kubelet: TinyKubelet, question: Question) -> list[Object]:
    """Return the waiting or running requests of each Pod that is scraped and serves, as items of a MetricValueList."""
    query = f"?labelSelector={question.selector}"
    pods = [pod for pod in api.items("Pod", question.namespace, query) if _is_scraped(api, pod)]
    serving = kubelet.servings[question.namespace]
    found = [(pod, kubelet.servers.get(f"{question.namespace}/{pod['metadata']['name']}")) for pod in pods]
    ready = [pod["metadata"]["name"] for pod, server in found if server is not None and server.ready]
    running = min(serving.offered, serving.concurrent * len(ready))
    total = running if question.metric == _METRICS[1] else serving.offered - running
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return [
        {
            "describedObject": {"kind": "Pod", "namespace": question.namespace, "name": name, "apiVersion": "/v1"},
            "metric": {"name": question.metric},
            "timestamp": now,
            "value": f"{1000 * total // len(ready)}m",
        }
        for name in ready
    ]


@contextmanager
def running_adapter(cluster: Cluster, kubelet: TinyKubelet) -> Generator[None]:
    """Serve the metrics API, and stop at the end."""
    port, certificate, key = cluster.adapter

    class Handler(BaseHTTPRequestHandler):
        """Answers the API server, which sends the autoscaler's requests here."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """Answer."""
            split = urlsplit(self.path)
            path = unquote(split.path)
            found: Object = {}
            if match := _PATH.fullmatch(path):
                if match["metric"] in _METRICS:
                    selector = parse_qs(split.query).get("labelSelector", [""])[0]
                    items = requests_of(cluster.api, kubelet, Question(match["namespace"], match["metric"], selector))
                    found = {"kind": "MetricValueList", "apiVersion": _VERSION, "metadata": {}, "items": items}
            elif path == f"/apis/{_VERSION}":
                common = {"namespaced": True, "kind": "MetricValueList", "verbs": ["get"]}
                resources = [{"name": f"pods/{name}", **common} for name in _METRICS]
                found = {
                    "kind": "APIResourceList",
                    "apiVersion": "v1",
                    "groupVersion": _VERSION,
                    "resources": resources,
                }
            body = json.dumps(found).encode()
            # Other paths must not be found: with any other answer discovery is stale, and the autoscaler has no metric.
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def wait_for_metrics(api: Api, limit_s: float = 60) -> None:
    """Wait until the API server has found the adapter."""
    end_s = time.monotonic() + limit_s
    while True:
        services = api.call("GET", "apis/apiregistration.k8s.io/v1/apiservices/v1beta2.custom.metrics.k8s.io")
        conditions = cast("list[Object]", services.get("status", {}).get("conditions", []))
        if any(one["type"] == "Available" and one["status"] == "True" for one in conditions):
            return
        assert time.monotonic() < end_s, f"the metrics API is not available: {conditions}"
        time.sleep(0.5)


def _is_scraped(api: Api, pod: Object) -> bool:
    """Return whether a PodMonitoring of the namespace scrapes the server of a Pod."""
    container = pod["spec"]["containers"][0]
    ports = {one.get("name"): one["containerPort"] for one in container.get("ports", [])}
    labels = pod["metadata"].get("labels", {})
    return any(
        one["spec"]["selector"].get("matchLabels", {}).items() <= labels.items()
        and any(end["port"] in ports or end["port"] in ports.values() for end in one["spec"]["endpoints"])
        for one in api.items("PodMonitoring", pod["metadata"]["namespace"])
    )
