"""A client of the cluster's API server."""

import json
from dataclasses import dataclass
from typing import Any, Final

import requests

Object = dict[str, Any]
"""An object of Kubernetes as JSON. Its schema is the API server's."""
GROUPS: Final = {
    "Deployment": "apis/apps/v1",
    "HorizontalPodAutoscaler": "apis/autoscaling/v2",
    "PodDisruptionBudget": "apis/policy/v1",
    "PodMonitoring": "apis/monitoring.googleapis.com/v1",
    "SecretProviderClass": "apis/secrets-store.csi.x-k8s.io/v1",
    "EndpointSlice": "apis/discovery.k8s.io/v1",
    "Event": "api/v1",
    "Pod": "api/v1",
    "Service": "api/v1",
    "ServiceAccount": "api/v1",
    "ReplicaSet": "apis/apps/v1",
    "InferencePool": "apis/inference.networking.k8s.io/v1",
    "HTTPRoute": "apis/gateway.networking.k8s.io/v1",
    "HealthCheckPolicy": "apis/networking.gke.io/v1",
}
"""API of each kind that a stack may have or cause."""
_LIMIT_S: Final = 30


class RefusedError(Exception):
    """The API server refused a request. The message is its own."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """The API server as an administrator."""

    url: str
    token: str
    certificate: str

    def call(self, method: str, path: str, body: Object | None = None, *, patch: str = "merge-patch") -> Object:
        """Send a request and return the answer. `patch`: the kind of a PATCH. Raises RefusedError."""
        kind = f"application/{patch}+json" if method == "PATCH" else "application/json"
        answer = requests.request(
            method,
            f"{self.url}/{path}",
            data=json.dumps(body) if body is not None else None,
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": kind},
            verify=self.certificate,
            timeout=_LIMIT_S,
            proxies={"http": "", "https": ""},
        )
        found = answer.json() if answer.text.startswith("{") else {"message": answer.text}
        if not answer.ok:
            raise RefusedError(answer.status_code, str(found.get("message")))
        return found

    def items(self, kind: str, namespace: str = "", query: str = "") -> list[Object]:
        """Return the objects of a kind, in a namespace or in all. A kind that the server does not have has none."""
        try:
            return self.call("GET", f"{_path(kind, namespace)}{query}")["items"]
        except RefusedError as error:
            if error.code == requests.codes.not_found:
                return []
            raise

    def create(self, path: str, body: Object) -> None:
        """Create an object unless it exists."""
        try:
            self.call("POST", path, body)
        except RefusedError as error:
            if error.code != requests.codes.conflict:
                raise

    def present(self, namespace: str) -> list[str]:
        """Return kind and name of each object in a namespace, without what Kubernetes puts in every namespace and without events."""
        kinds = (kind for kind in GROUPS if kind != "Event")
        found = ((kind, item["metadata"]["name"]) for kind in kinds for item in self.items(kind, namespace))
        return [f"{kind} {name}" for kind, name in found if (kind, name) != ("ServiceAccount", "default")]

    def scheduling(self, namespace: str) -> str:
        """Return the scheduler's last sentence on a Pod that it could not place."""
        conditions = (one for pod in self.items("Pod", namespace) for one in pod["status"].get("conditions", []))
        return next((one["message"] for one in conditions if one.get("reason") == "Unschedulable"), "")


def _path(kind: str, namespace: str) -> str:
    plural = {"PodMonitoring": "podmonitorings", "SecretProviderClass": "secretproviderclasses"}
    plural |= {"HealthCheckPolicy": "healthcheckpolicies"}
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"{GROUPS[kind]}{where}/{plural.get(kind, f'{kind.lower()}s')}"
