"""A kubelet without containers: it probes model servers that exist only in time, and writes the status of their Pods."""

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import requests

from dev.judges.real.kubernetes.api import Api, Object, RefusedError

_TICK_S: Final = 0.2
_HEARTBEAT_S: Final = 10.0
_PATHS: Final = ("/health", "/metrics", "/v1/models")
"""Paths of a vLLM server that answer without an API key."""


@dataclass(kw_only=True)
class Serving:
    """Behavior of the model servers of a namespace."""

    start_s: float
    """From the container's start until the server answers."""
    node_s: float = 0
    """From the Pod's start until its container starts, as if its node had to be made."""
    speed: float = 1.0
    """Seconds of a start, of the probes and of the metrics' age that pass in one second."""
    concurrent: int = 16
    """Requests that a server runs at a time; others wait in its queue."""
    metric_age_s: float = 60
    """Age of the metrics that the autoscaler reads. Assumed: scrapes are 15 s apart, and Cloud Monitoring and the adapter add to it."""
    offered: int = 0
    """Requests that callers have open, spread evenly over the servers that are ready."""


@dataclass(kw_only=True)
class Server:
    """The server of one Pod."""

    address: str
    port: int
    node_due_s: float
    began_s: float
    ready: bool = False
    started: bool = False
    restarts: int = 0
    failures: dict[str, int] = field(default_factory=dict[str, int])
    probe_due_s: dict[str, float] = field(default_factory=dict[str, float])
    ends_s: float | None = None
    waits_for: str = "the node starts"
    """Why the container does not start; empty after its start."""
    last_restart: str = ""
    written: str = ""


class TinyKubelet:
    """The kubelet of all nodes."""

    def __init__(self, api: Api, nodes: Sequence[str]) -> None:
        self.servings: dict[str, Serving] = {}
        """By namespace."""
        self.servers: dict[str, Server] = {}
        """By namespace/name of the Pod."""
        self.seen: dict[str, list[tuple[float, list[Object]]]] = {}
        """Metrics by the path of the question, with the time when they were so."""
        self.errors: list[str] = []
        self._api, self._nodes = api, nodes
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._addresses = 0
        self._beat_s = 0.0

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def stop(self) -> None:
        """Stop."""
        self._end.set()
        self._thread.join()

    def answers(self, namespace: str, address: str, port: int) -> bool:
        """Return whether a server at an address answers a request now."""
        found = (one for one in list(self.servers.values()) if (one.address, one.port) == (address, port))
        return any(_serves(one, self.servings[namespace], time.monotonic()) for one in found)

    def _run(self) -> None:
        while not self._end.wait(_TICK_S):
            try:
                self._tick()
            except (RefusedError, requests.RequestException) as error:
                self.errors.append(str(error))

    def _tick(self) -> None:
        if time.monotonic() - self._beat_s > _HEARTBEAT_S:
            self._beat_s = time.monotonic()
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": _stamp()}
            for name in self._nodes:
                self._write_status(f"api/v1/nodes/{name}", {"conditions": [ready]})
        pods = [pod for pod in self._api.items("Pod", query="?resourceVersion=0") if pod["spec"].get("nodeName")]
        for pod in pods:
            self._look_after(pod, time.monotonic())
        for key in {*self.servers} - {_key(pod) for pod in pods}:
            del self.servers[key]

    def _look_after(self, pod: Object, now_s: float) -> None:
        serving = self.servings[pod["metadata"]["namespace"]]
        server = self.servers.get(_key(pod))
        if server is None:
            self._addresses += 1
            address = f"10.4.{self._addresses // 250}.{self._addresses % 250 + 1}"
            due_s = now_s + serving.node_s / serving.speed
            server = Server(address=address, port=_port(pod), node_due_s=due_s, began_s=now_s)
            self.servers[_key(pod)] = server
        if "deletionTimestamp" in pod["metadata"]:
            self._finish(pod, server, now_s)
            return
        if server.waits_for and now_s >= server.node_due_s:
            server.waits_for, server.began_s = "", now_s
        if not server.waits_for:
            _probe(pod["spec"]["containers"][0], server, serving, now_s)
        self._write(pod, server)

    def _finish(self, pod: Object, server: Server, now_s: float) -> None:
        """Let a Pod serve during its preStop hook, then delete it. The hook takes its own time, as the change of endpoints does."""
        grace_s: float = pod["metadata"].get("deletionGracePeriodSeconds", 0)
        hook = pod["spec"]["containers"][0].get("lifecycle", {}).get("preStop", {})
        if server.ends_s is None:
            server.ends_s = now_s + min(grace_s, hook.get("sleep", {}).get("seconds", 0))
        if now_s >= server.ends_s:
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
            self._api.call("DELETE", _path(pod), body)

    def _write(self, pod: Object, server: Server) -> None:
        """Write a Pod's status if it changed."""
        shown = f"{server.waits_for}{server.ready}{server.started}{server.restarts}"
        if shown == server.written:
            return
        waits = {"waiting": {"reason": "ContainerCreating", "message": server.waits_for}}
        common = {"status": str(server.ready), "lastTransitionTime": _stamp()}
        container = {
            **{key: pod["spec"]["containers"][0][key] for key in ("name", "image")},
            "imageID": "",
            "ready": server.ready,
            "started": server.started,
            "restartCount": server.restarts,
            "state": waits if server.waits_for else {"running": {"startedAt": _stamp()}},
        }
        status = {
            "phase": "Pending" if server.waits_for else "Running",
            "conditions": [{"type": kind, **common} for kind in ("ContainersReady", "Ready")],
            "containerStatuses": [container],
            "podIP": server.address,
            "podIPs": [{"ip": server.address}],
        }
        self._write_status(_path(pod), status)
        server.written = shown

    def _write_status(self, path: str, status: Object) -> None:
        self._api.call("PATCH", f"{path}/status", {"status": status}, patch="strategic-merge-patch")


def _probe(container: Object, server: Server, serving: Serving, now_s: float) -> None:
    """Run the probes that are due: the startup probe until it succeeds, then the others."""
    names = ("readinessProbe", "livenessProbe") if server.started else ("startupProbe",)
    for name in names:
        probe = container[name]
        period_s: float = probe["periodSeconds"] / serving.speed
        due_s = server.probe_due_s.get(name, server.began_s + period_s)
        if now_s < due_s:
            continue
        # All probes since the last look count, because a period can be shorter than the time between two looks.
        count = 1 + int((now_s - due_s) / period_s)
        server.probe_due_s[name] = due_s + count * period_s
        succeeded = _reaches(probe, container, server) and _serves(server, serving, now_s)
        server.failures[name] = 0 if succeeded else server.failures.get(name, 0) + count
        failed = server.failures[name] >= probe["failureThreshold"]
        if name == "readinessProbe":
            server.ready = succeeded or (server.ready and not failed)
        elif succeeded:
            server.started = True
        elif failed:
            ran_s = (now_s - server.began_s) * serving.speed
            server.last_restart = f"{name} failed {server.failures[name]} times in {ran_s:.0f} s: container restarted"
            server.restarts += 1
            server.began_s, server.started, server.ready = now_s, False, False
            server.failures, server.probe_due_s = {}, {}
            return


def _serves(server: Server, serving: Serving, now_s: float) -> bool:
    is_up = not server.waits_for and now_s >= server.began_s + serving.start_s / serving.speed
    return is_up and (server.ends_s is None or now_s < server.ends_s)


def _reaches(probe: Object, container: Object, server: Server) -> bool:
    """Return whether a probe asks the server's port for a path that it has."""
    asked = probe["httpGet"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    return ports.get(asked["port"], asked["port"]) == server.port and asked["path"] in _PATHS


def _port(pod: Object) -> int:
    """Return the port that the command line gives vLLM; its own default is 8000."""
    found = re.search(r"--port[= ](\d+)", " ".join(pod["spec"]["containers"][0]["args"]))
    return int(found[1]) if found else 8000


def _key(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _path(pod: Object) -> str:
    return f"api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
