"""A client of the cluster's API server."""

import json
from dataclasses import dataclass
from typing import Any, Final

import requests

Object = dict[str, Any]
"""An object of Kubernetes as JSON. Its schema is the API server's."""
_PATHS: Final = {
    "Deployment": "apis/apps/v1/{}deployments",
    "ReplicaSet": "apis/apps/v1/{}replicasets",
    "HorizontalPodAutoscaler": "apis/autoscaling/v2/{}horizontalpodautoscalers",
    "PodDisruptionBudget": "apis/policy/v1/{}poddisruptionbudgets",
    "PodMonitoring": "apis/monitoring.googleapis.com/v1/{}podmonitorings",
    "SecretProviderClass": "apis/secrets-store.csi.x-k8s.io/v1/{}secretproviderclasses",
    "InferencePool": "apis/inference.networking.k8s.io/v1/{}inferencepools",
    "HTTPRoute": "apis/gateway.networking.k8s.io/v1/{}httproutes",
    "GCPBackendPolicy": "apis/networking.gke.io/v1/{}gcpbackendpolicies",
    "HealthCheckPolicy": "apis/networking.gke.io/v1/{}healthcheckpolicies",
    "EndpointSlice": "apis/discovery.k8s.io/v1/{}endpointslices",
    "Event": "api/v1/{}events",
    "Pod": "api/v1/{}pods",
    "Service": "api/v1/{}services",
    "ServiceAccount": "api/v1/{}serviceaccounts",
}
"""Path of each kind that a stack has or causes. The braces take the namespace."""
_LIMIT_S: Final = 30


class RefusedError(Exception):
    """The API server refused a request. The message is its own."""


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
        )
        found = answer.json() if answer.text.startswith("{") else {"message": answer.text}
        if not answer.ok:
            raise RefusedError(str(found.get("message")))
        return found

    def items(self, kind: str, namespace: str = "", query: str = "") -> list[Object]:
        """Return the objects of a kind, in a namespace or in all."""
        return self.call("GET", _PATHS[kind].format(f"namespaces/{namespace}/" if namespace else "") + query)["items"]

    def require_valid(self, namespace: str, item: Object) -> None:
        """Let the API server check an object without creating it. Raises RefusedError, also for a field that it does not have."""
        path = _PATHS[item["kind"]].format(f"namespaces/{namespace}/")
        self.call("POST", f"{path}?dryRun=All&fieldValidation=Strict", item)

    def present(self, namespace: str) -> list[str]:
        """Return kind and name of each object in a namespace, without its events and the account that Kubernetes makes."""
        found = [(kind, item["metadata"]["name"]) for kind in _PATHS for item in self.items(kind, namespace)]
        return [f"{kind} {name}" for kind, name in found if kind != "Event" and name != "default"]
