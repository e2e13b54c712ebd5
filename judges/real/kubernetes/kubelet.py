"""A kubelet without containers: it probes model servers that exist only in time, and writes the status of their Pods."""

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import requests
import yaml

from judges.real.kubernetes.api import Api, Object, RefusedError

_TICK_S: Final = 0.2
_LEASE_S: Final = 10.0
_PATHS: Final = ("/health", "/metrics", "/v1/models")
"""Paths of a vLLM server that answer without an API key."""
_GKE_SECRETS: Final = "secrets-store-gke.csi.k8s.io"
_FUSE: Final = "gcsfuse.csi.storage.gke.io"


@dataclass(kw_only=True)
class Serving:
    """How the model servers of a namespace behave."""

    start_s: float
    """From the container's start until the server answers."""
    node_s: float = 0
    """From the Pod's start until its container starts, as if its node had to be made."""
    speed: float = 1.0
    """Seconds of a Pod (start, probes, drain) that pass in one second."""
    concurrent: int = 16
    """Requests that a server runs at a time; others wait in its queue."""
    offered: int = 0
    """Requests that callers have open, spread evenly over the servers that are ready."""


@dataclass(kw_only=True)
class Server:
    """The server of one Pod."""

    address: str
    port: int
    began_s: float
    due_node_s: float
    ready: bool = False
    started: bool = False
    restarts: int = 0
    failures: dict[str, int] = field(default_factory=dict[str, int])
    due_s: dict[str, float] = field(default_factory=dict[str, float])
    ends_s: float | None = None
    problem: str = ""
    """Why the container does not start."""
    last_failure: str = ""
    written: str = ""


class TinyKubelet:
    """The kubelet of all nodes. `servings`: by namespace."""

    def __init__(self, api: Api, nodes: Sequence[str]) -> None:
        self.servings: dict[str, Serving] = {}
        self.servers: dict[str, Server] = {}
        """By namespace/name of the Pod."""
        self._api, self._nodes = api, nodes
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._addresses = 0
        self._renewed_s = 0.0
        self.errors: list[str] = []

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def stop(self) -> None:
        """Stop."""
        self._end.set()
        self._thread.join()

    def answers(self, namespace: str, address: str, port: int, now_s: float) -> bool:
        """Return whether a server at an address answers a request now."""
        serving = self.servings[namespace]
        return any(
            self._serves(server, serving, now_s)
            for server in list(self.servers.values())
            if (server.address, server.port) == (address, port)
        )

    def _run(self) -> None:
        while not self._end.wait(_TICK_S):
            try:
                self._tick()
            except (RefusedError, requests.RequestException) as error:
                self.errors.append(str(error))

    def _tick(self) -> None:
        if time.monotonic() - self._renewed_s > _LEASE_S:
            self._renewed_s = time.monotonic()
            for name in self._nodes:
                status = {
                    "conditions": [
                        {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": _stamp()}
                    ]
                }
                self._patch(f"api/v1/nodes/{name}/status", {"status": status})
        pods = [pod for pod in self._api.items("Pod", query="?resourceVersion=0") if pod["spec"].get("nodeName")]
        for pod in pods:
            self._look_after(pod)
        present = {_key(pod) for pod in pods}
        for key in [key for key in self.servers if key not in present]:
            del self.servers[key]

    def _look_after(self, pod: Object) -> None:
        key, now_s = _key(pod), time.monotonic()
        serving = self.servings.get(pod["metadata"]["namespace"])
        if serving is None:
            return
        server = self.servers.get(key)
        if server is None:
            self._addresses += 1
            address = f"10.4.{self._addresses // 250}.{self._addresses % 250 + 1}"
            node_s = now_s + serving.node_s / serving.speed
            server = self.servers[key] = Server(address=address, port=_port(pod), began_s=now_s, due_node_s=node_s)
        if "deletionTimestamp" in pod["metadata"]:
            self._finish(pod, server, now_s)
            return
        if not server.started and not server.restarts:
            problem = self._mount_problem(pod) if now_s >= server.due_node_s else "the node starts"
            if problem or server.problem:
                server.problem, server.began_s = problem, now_s
        if not server.problem:
            self._probe(pod, server, serving, now_s)
        self._write(pod, server)

    def _finish(self, pod: Object, server: Server, now_s: float) -> None:
        """Let a Pod serve during its preStop hook, then delete it. The hook takes its own time, as the change of endpoints does."""
        grace_s: float = pod["metadata"].get("deletionGracePeriodSeconds", 0)
        if server.ends_s is None:
            server.ends_s = now_s + min(_pre_stop_s(pod), grace_s)
        elif now_s >= server.ends_s:
            path = f"api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
            self._api.call("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}})

    def _probe(self, pod: Object, server: Server, serving: Serving, now_s: float) -> None:
        """Run the probes that are due: the startup probe until it succeeds, then the others. A failed one restarts the container."""
        container = pod["spec"]["containers"][0]
        has_startup = "startupProbe" in container
        if not has_startup:
            server.started = True
        names = ("readinessProbe", "livenessProbe") if server.started else ("startupProbe",)
        for name in names:
            probe = container.get(name)
            if probe is None:
                server.ready = server.ready or (name == "readinessProbe" and self._serves(server, serving, now_s))
                continue
            first_s: float = server.began_s + probe.get("initialDelaySeconds", 0) / serving.speed
            due_s = server.due_s.get(name, first_s)
            if now_s < due_s:
                continue
            # All probes since the last look count, because a period can be shorter than the time between two looks.
            period_s: float = probe.get("periodSeconds", 10) / serving.speed
            probes = 1 + int((now_s - due_s) / period_s)
            server.due_s[name] = due_s + probes * period_s
            succeeded = _reaches(probe, container, server) and self._serves(server, serving, now_s)
            server.failures[name] = 0 if succeeded else server.failures.get(name, 0) + probes
            failed = server.failures[name] >= probe.get("failureThreshold", 3)
            if name == "readinessProbe":
                server.ready = succeeded or (server.ready and not failed)
            elif name == "startupProbe" and succeeded:
                server.started = True
            elif failed:
                ran_s = (now_s - server.began_s) * serving.speed
                server.last_failure = (
                    f"{name} failed {server.failures[name]} times in {ran_s:.0f} s: container restarted"
                )
                server.restarts += 1
                server.began_s, server.started, server.ready = now_s, False, False
                server.failures.clear()
                server.due_s.clear()
                return

    def _serves(self, server: Server, serving: Serving, now_s: float) -> bool:
        ended = server.ends_s is not None and now_s >= server.ends_s
        return not ended and not server.problem and now_s >= server.began_s + serving.start_s / serving.speed

    def _mount_problem(self, pod: Object) -> str:
        """Return why a volume of a Pod cannot be mounted, empty if all can."""
        metadata, container = pod["metadata"], pod["spec"]["containers"][0]
        token = next((one["value"] for one in container.get("env", []) if one["name"] == "HF_TOKEN_PATH"), "")
        if token and not any(token.startswith(f"{one['mountPath']}/") for one in container.get("volumeMounts", [])):
            return f"HF_TOKEN_PATH={token} is in no volume"
        for volume in pod["spec"].get("volumes", []):
            csi = volume.get("csi")
            if csi is None:
                continue
            given = csi.get("volumeAttributes", {})
            if csi["driver"] == _FUSE:
                if metadata.get("annotations", {}).get("gke-gcsfuse/volumes") != "true":
                    return f"volume {volume['name']}: no annotation gke-gcsfuse/volumes, so GKE adds no side car for Cloud Storage FUSE"
                if not given.get("bucketName"):
                    return f"volume {volume['name']}: no bucketName"
            elif csi["driver"] == _GKE_SECRETS:
                problem = self._secret_problem(metadata["namespace"], given.get("secretProviderClass", ""))
                if problem:
                    return f"volume {volume['name']}: {problem}"
            else:
                return f"driver name {csi['driver']} not found in the list of registered CSI drivers"
        return ""

    def _secret_problem(self, namespace: str, name: str) -> str:
        found = [one for one in self._api.items("SecretProviderClass", namespace) if one["metadata"]["name"] == name]
        if not found:
            return f"SecretProviderClass {name} not found"
        spec = found[0]["spec"]
        secrets: list[dict[str, str]] = yaml.safe_load(spec.get("parameters", {}).get("secrets", "")) or []
        if spec.get("provider") != "gke" or not all("resourceName" in one and "path" in one for one in secrets):
            return f"SecretProviderClass {name}: provider is not gke, or a secret has no resourceName and path"
        return ""

    def _write(self, pod: Object, server: Server) -> None:
        """Write the status if it changed."""
        state = {"running": {"startedAt": _stamp()}}
        if server.problem:
            state = {"waiting": {"reason": "ContainerCreating", "message": server.problem}}
        shown = f"{server.problem}{server.ready}{server.started}{server.restarts}"
        if shown == server.written:
            return
        true, now = "True" if server.ready else "False", _stamp()
        conditions = [
            {"type": kind, "status": status, "lastTransitionTime": now}
            for kind, status in (("Initialized", "True"), ("ContainersReady", true), ("Ready", true))
        ]
        statuses = [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": container["image"],
                "ready": server.ready,
                "started": server.started,
                "restartCount": server.restarts,
                "state": state,
            }
            for container in pod["spec"]["containers"]
        ]
        status: Object = {
            "phase": "Pending" if server.problem else "Running",
            "conditions": conditions,
            "containerStatuses": statuses,
        }
        status |= {
            "podIP": server.address,
            "podIPs": [{"ip": server.address}],
            "startTime": pod["metadata"]["creationTimestamp"],
        }
        self._patch(
            f"api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/status",
            {"status": status},
        )
        server.written = shown

    def _patch(self, path: str, body: Object) -> None:
        self._api.call("PATCH", path, body, patch="strategic-merge-patch")


def _key(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _port(pod: Object) -> int:
    """Return the port that the command line gives vLLM; its own default is 8000."""
    container = pod["spec"]["containers"][0]
    words = " ".join([*container.get("command", []), *container.get("args", [])])
    found = re.search(r"--port[= ](\d+)", words)
    return int(found[1]) if found else 8000


def _reaches(probe: Object, container: Object, server: Server) -> bool:
    """Return whether a probe asks the server's port for a path that it has."""
    asked = probe.get("httpGet", {})
    names = {one.get("name"): one["containerPort"] for one in container.get("ports", [])}
    return names.get(asked.get("port"), asked.get("port")) == server.port and asked.get("path") in _PATHS


def _pre_stop_s(pod: Object) -> float:
    hook = pod["spec"]["containers"][0].get("lifecycle", {}).get("preStop", {})
    words = " ".join(hook.get("exec", {}).get("command", []))
    slept = re.search(r"sleep (\d+)", words)
    return float(hook.get("sleep", {}).get("seconds", slept[1] if slept else 0))
