"""The life of one stack on the cluster, and the responses that callers of its Service get meanwhile."""

import copy
import random
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from dev.judges.real.kubernetes.api import Object
from dev.judges.real.kubernetes.deployment import GkeProject
from dev.judges.real.kubernetes.kubelet import Serving, TinyKubelet

_POLL_S: Final = 0.3
_CALL_EVERY_S: Final = 0.1
_READY_LIMIT_S: Final = 90.0


@dataclass(kw_only=True)
class Traffic:
    """Requests to the Service: how many, and how many found no server."""

    calls: int = 0
    failures: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """The namespace of one stack."""

    name: str
    project: GkeProject
    kubelet: TinyKubelet

    @property
    def serving(self) -> Serving:
        """Behavior of its servers."""
        return self.kubelet.servings[self.name]

    def pods(self) -> list[Object]:
        """Return the Pods that are not about to end."""
        found = self.project.cluster.api.items("Pod", self.name)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def pod_names(self) -> set[str]:
        """Return the names of those Pods."""
        return {pod["metadata"]["name"] for pod in self.pods()}

    def ready(self) -> int:
        """Return how many Pods are ready."""
        return sum(is_ready(pod) for pod in self.pods())

    def replicas(self) -> int:
        """Return the number of replicas that the Deployment has now."""
        return self.project.cluster.api.items("Deployment", self.name)[0]["spec"]["replicas"]

    def machines(self) -> str:
        """Return the machine types of the Pods."""
        return ", ".join(sorted({pod["spec"].get("nodeName", "none").rpartition("-")[0] for pod in self.pods()}))

    def refusal(self) -> str:
        """Return why Pods are not ready, in the words of the scheduler or the kubelet."""
        conditions: Iterable[Object] = chain.from_iterable(pod["status"].get("conditions", []) for pod in self.pods())
        said = [str(one["message"]) for one in conditions if one.get("reason") == "Unschedulable"]
        servers = [one for key, one in self.kubelet.servers.items() if key.startswith(f"{self.name}/")]
        said += [one.waits_for or one.last_restart for one in servers]
        return "; ".join(dict.fromkeys(filter(None, said)))

    def wait(self, condition: Callable[[], object], what: str, limit_s: float) -> float:
        """Wait for a condition and return the seconds. Fails with the cluster's own words."""
        began_s = time.monotonic()
        while not condition():
            assert time.monotonic() - began_s < limit_s, f"no {what} within {limit_s:.0f} s. {self.refusal()}"
            time.sleep(_POLL_S)
        return time.monotonic() - began_s

    def wait_ready(self, count: int) -> float:
        """Wait until a number of Pods is ready."""
        return self.wait(lambda: self.ready() >= count, f"{count} ready Pods", _READY_LIMIT_S)

    @contextmanager
    def called(self) -> Generator[Traffic]:
        """Call the Service all the time, as kube-proxy sends requests: to a ready endpoint at random."""
        traffic, end = Traffic(), threading.Event()
        api = self.project.cluster.api

        def call() -> None:
            while not end.wait(_CALL_EVERY_S):
                ready = list(_endpoints(api.items("EndpointSlice", self.name)))
                traffic.calls += 1
                if not ready:
                    traffic.failures.append("no ready endpoint")
                elif not self.kubelet.answers(self.name, *random.choice(ready)):  # noqa: S311 - a load balancer
                    traffic.failures.append(f"{len(ready)} ready endpoints, and the chosen one does not answer")

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        try:
            yield traffic
        finally:
            end.set()
            thread.join()


def _endpoints(slices: Sequence[Object]) -> Iterator[tuple[str, int]]:
    """Yield address and port of each ready endpoint."""
    for one in slices:
        endpoints: list[Object] = one.get("endpoints") or []
        for endpoint in endpoints:
            if endpoint["conditions"].get("ready"):
                yield endpoint["addresses"][0], one["ports"][0]["port"]


def is_ready(pod: Object) -> bool:
    """Return whether a Pod is ready."""
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))


def of_kind(objects: Sequence[Object], kind: str) -> Object:
    """Return the object of a kind."""
    return next(one for one in objects if one["kind"] == kind)


def changed(objects: Sequence[Object], change: Callable[[Object], object], kind: str = "Deployment") -> list[Object]:
    """Return a copy of the objects in which one was changed."""
    found = copy.deepcopy(list(objects))
    change(of_kind(found, kind))
    return found


def container(deployment: Object) -> Object:
    """Return the container of a Deployment."""
    return deployment["spec"]["template"]["spec"]["containers"][0]


def scaled(objects: Sequence[Object], factor: float) -> list[Object]:
    """Return a copy of the objects whose autoscaler counts in seconds that are shorter by a factor."""

    def scale(autoscaler: Object) -> None:
        for rules in autoscaler["spec"]["behavior"].values():
            rules["stabilizationWindowSeconds"] = round(rules["stabilizationWindowSeconds"] / factor)
            for policy in rules["policies"]:
                policy["periodSeconds"] = max(1, round(policy["periodSeconds"] / factor))

    return changed(objects, scale, "HorizontalPodAutoscaler")
