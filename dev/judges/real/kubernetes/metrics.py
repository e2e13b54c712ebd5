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
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from dev.judges.real.kubernetes.api import Object
from dev.judges.real.kubernetes.cluster import Cluster
from dev.judges.real.kubernetes.kubelet import TinyKubelet

_WAITING, _RUNNING = (f"prometheus.googleapis.com|vllm:num_requests_{one}|gauge" for one in ("waiting", "running"))
"""vLLM's gauges under the names that the adapter gives them."""
_VERSION: Final = "custom.metrics.k8s.io/v1beta2"
_QUESTION: Final = re.compile(rf"/apis/{re.escape(_VERSION)}/namespaces/([^/]+)/pods/\*/(.+)")


def answer_of(cluster: Cluster, kubelet: TinyKubelet, address: str) -> Object:
    """Return the answer to a path with its query, empty if nothing is there."""
    path, query = unquote(urlsplit(address).path), parse_qs(urlsplit(address).query)
    if path == f"/apis/{_VERSION}":
        common = {"namespaced": True, "kind": "MetricValueList", "verbs": ["get"]}
        resources = [{"name": f"pods/{name}", **common} for name in (_WAITING, _RUNNING)]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": _VERSION, "resources": resources}
    asked = _QUESTION.fullmatch(path)
    if asked is None or asked[2] not in (_WAITING, _RUNNING):
        return {}
    pods = cluster.api.items("Pod", asked[1], f"?labelSelector={query['labelSelector'][0]}")
    rules = [one["spec"] for one in cluster.api.items("PodMonitoring", asked[1])]
    names = [pod["metadata"]["name"] for pod in pods if any(_scrapes(rule, pod) for rule in rules)]
    servers = {name: kubelet.servers.get(f"{asked[1]}/{name}") for name in names}
    ready = [name for name, server in servers.items() if server and server.ready]
    serving = kubelet.servings[asked[1]]
    running = min(serving.offered, serving.concurrent * len(ready))
    total = running if asked[2] == _RUNNING else serving.offered - running
    common = {"metric": {"name": asked[2]}, "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    items = [
        {"describedObject": {"kind": "Pod", "name": name}, "value": f"{1000 * total // len(ready)}m", **common}
        for name in ready
    ]
    now_s = time.monotonic()
    seen = kubelet.seen.setdefault(address, [])
    seen.append((now_s, items))
    old = [found for at_s, found in seen if at_s <= now_s - serving.metric_age_s / serving.speed]
    return {"kind": "MetricValueList", "apiVersion": _VERSION, "metadata": {}, "items": old[-1] if old else []}


@contextmanager
def running_adapter(cluster: Cluster, kubelet: TinyKubelet) -> Generator[None]:
    """Serve the metrics API, and stop at the end."""

    class Handler(BaseHTTPRequestHandler):
        """Answers the API server, which sends the autoscaler's requests here."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """Answer. With anything but 404 on other paths, discovery is stale and the autoscaler has no metric."""
            found = answer_of(cluster, kubelet, self.path)
            body = json.dumps(found).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", cluster.adapter_port), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cluster.folder / "adapter.crt", cluster.folder / "adapter.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _scrapes(rule: Object, pod: Object) -> bool:
    """Return whether a PodMonitoring scrapes the server of a Pod."""
    ports = {one["name"] for one in pod["spec"]["containers"][0]["ports"]}
    is_selected = rule["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    return is_selected and any(one["port"] in ports and one["path"] == "/metrics" for one in rule["endpoints"])
