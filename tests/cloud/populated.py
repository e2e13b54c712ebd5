"""A local cloud with everything that stacks can make, made by REST calls that the local cloud checks, beside things of others."""

import base64
import contextlib
import os
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pytest

from gemma_serving.cloud import google_api
from gemma_serving.cloud.clock import GOOGLE_CLOCK
from gemma_serving.cloud.google_api import GoogleApi, GoogleListError
from gemma_serving.contracts.labels import NO_LIMITS, Ownership, StackLimits
from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.proof import Asker
from localcloud.environment import API_OVERRIDES
from localcloud.server.app import DEFAULT_SPEED
from localcloud.tests import idle_cloud
from localcloud.world.cloud import REGIONS
from localcloud.world.scenario import OperationDurations, Scenario
from tests.polling import until

PROJECT = "local-project"
WRONG_CLOCKS = (timedelta(minutes=11), timedelta(hours=-6))
ZONE, REGION = "us-east5-a", "us-east5"
PLACES = {region: REGIONS[region] for region in ("asia-northeast1", "europe-west1", "us-east4", "us-east5")}
"""The regions of the cloud, unless a test asks for others, and their zones. Each region more is two lists more in each search."""
TUNNEL_ROLE = "roles/iap.tunnelResourceAccessor"
ALL_KINDS = frozenset(
    {
        "Cloud Run service",
        "TPU queued resource",
        "TPU node",
        "router",
        "firewall rule",
        "subnetwork",
        "network",
        "secret",
        "service account",
        "IAM grant",
        "image repository",
        "bucket",
        "alert policy",
        "notification channel",
        "dashboard",
    }
)


def off_by(monkeypatch: pytest.MonkeyPatch, skew: timedelta) -> None:
    """Set this machine's clock; the clocks of Google and of the test stay right."""
    monkeypatch.setattr(GOOGLE_CLOCK, "_ahead", timedelta())
    monkeypatch.setattr(GOOGLE_CLOCK, "local_now", lambda: datetime.now(UTC) + skew)


def owner(stack: str) -> Ownership:
    return Ownership(project="gemma-serving", stack=stack)


def asker(stack: str | None, **more: object) -> Asker:
    return Asker(project="gemma-serving", stack=stack, **more)


def service_template(**scaling: int) -> Mapping[str, object]:
    """Return the template of a service with a GPU."""
    container = {
        "image": "us-docker.pkg.dev/cloudrun/container/hello",
        "resources": {"limits": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}, "startupCpuBoost": True},
    }
    return {
        "containers": [container],
        "nodeSelector": {"accelerator": "nvidia-l4"},
        "gpuZonalRedundancyDisabled": True,
        "scaling": {"minInstanceCount": 1, "maxInstanceCount": 1, **scaling},
    }


@dataclass
class World:
    """A local cloud, and a session of an operator."""

    cloud: idle_cloud.Started
    api: GoogleApi
    project: str = PROJECT

    def call(self, verb: str, api: str, path: str, body: Mapping[str, object] | None = None) -> Mapping[str, object]:
        """Call a method with a retry where the local cloud needs a moment for what was made before."""
        url = google_api.endpoint(api) + path
        answer = self.api.session.request(verb, url, json=body, timeout=30)
        assert answer.ok, f"{verb} {path}: {answer.text}"
        return answer.json() if answer.content else {}

    def exists(self, api: str, path: str) -> bool:
        try:
            self.api.get(api, path)
        except GoogleListError as error:
            assert error.status == 404, error
            return False
        return True

    def resources(self) -> set[str]:
        """The names of everything in the store, apart from what each project has."""
        kinds = (
            "run.services",
            "tpu.queuedResources",
            "tpu.nodes",
            "compute.routers",
            "compute.firewalls",
            "compute.subnetworks",
            "compute.networks",
            "secretmanager.secrets",
            "iam.serviceAccounts",
            "artifactregistry.repositories",
            "storage.buckets",
            "monitoring.alertPolicies",
            "monitoring.notificationChannels",
            "monitoring.dashboards",
        )
        found = {name for kind in kinds for name, _ in self.cloud.cloud.store.under(kind)}
        own = ("/networks/default", "/subnetworks/default", "-compute@developer.gserviceaccount.com")
        return {name for name in found if not name.endswith(own) and not name.startswith("local-operator@")}

    def policy(self, path: str = f"v1/projects/{PROJECT}") -> set[tuple[str, str]]:
        """Role and member of each grant on the project."""
        body = {"options": {"requestedPolicyVersion": 3}}
        policy = self.call("POST", "cloudresourcemanager", f"{path}:getIamPolicy", body)
        return {(item["role"], member) for item in policy.get("bindings", []) for member in item["members"]}

    def grant(self, role: str, member: str, condition: Mapping[str, str] | None = None) -> None:
        path = f"v1/projects/{self.project}"
        policy = self.call(
            "POST", "cloudresourcemanager", f"{path}:getIamPolicy", {"options": {"requestedPolicyVersion": 3}}
        )
        binding = {"role": role, "members": [member], **({"condition": condition} if condition else {})}
        bindings = [*policy.get("bindings", []), binding]
        body = {"policy": {"version": 3, "bindings": bindings, "etag": policy["etag"]}}
        self.call("POST", "cloudresourcemanager", f"{path}:setIamPolicy", body)

    def grant_on_bucket(self, bucket: str, member: str) -> None:
        policy = dict(self.call("GET", "storage", f"storage/v1/b/{bucket}/iam?optionsRequestedPolicyVersion=3"))
        policy["bindings"] = [
            *policy.get("bindings", []),
            {"role": "roles/storage.objectViewer", "members": [member]},
        ]
        self.call("PUT", "storage", f"storage/v1/b/{bucket}/iam", policy)

    # What a stack is made of

    def network(self, name: str, description: str, region: str = REGION) -> None:
        network = {"name": name, "autoCreateSubnetworks": False, "description": description}
        self.call("POST", "compute", f"compute/v1/projects/{self.project}/global/networks", network)
        link = f"projects/{self.project}/global/networks/{name}"
        subnetwork = {"name": name, "network": link, "ipCidrRange": "10.64.0.0/24", "description": description}
        self.call("POST", "compute", f"compute/v1/projects/{self.project}/regions/{region}/subnetworks", subnetwork)
        nat = {
            "name": name,
            "natIpAllocateOption": "AUTO_ONLY",
            "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
        }
        router = {"name": name, "network": link, "description": description, "nats": [nat]}
        self.call("POST", "compute", f"compute/v1/projects/{self.project}/regions/{region}/routers", router)
        rule = {
            "name": f"{name}-iap",
            "network": link,
            "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}],
            "sourceRanges": ["35.235.240.0/20"],
            "description": description,
        }
        self.call("POST", "compute", f"compute/v1/projects/{self.project}/global/firewalls", rule)

    def account(self, name: str, description: str) -> str:
        body = {"accountId": name, "serviceAccount": {"description": description}}
        return str(self.call("POST", "iam", f"v1/projects/{self.project}/serviceAccounts", body)["email"])

    def secret(self, name: str, labels: Mapping[str, str]) -> None:
        body = {"replication": {"automatic": {}}, "labels": labels}
        self.call("POST", "secretmanager", f"v1/projects/{self.project}/secrets?secretId={name}", body)
        payload = {"payload": {"data": base64.b64encode(b"hf_x").decode()}}
        self.call("POST", "secretmanager", f"v1/projects/{self.project}/secrets/{name}:addVersion", payload)

    def bucket(self, name: str, labels: Mapping[str, str], *objects: str) -> None:
        body = {"name": name, "location": REGION.upper(), "labels": labels}
        self.call("POST", "storage", f"storage/v1/b?project={self.project}", body)
        for item in objects:
            url = f"{self.cloud.base_url}/upload/storage/v1/b/{name}/o?uploadType=media&name={item}"
            assert self.api.session.post(url, data=b"weights", timeout=30).ok

    def repository(self, name: str, labels: Mapping[str, str], location: str = REGION) -> None:
        path = f"v1/projects/{self.project}/locations/{location}/repositories?repositoryId={name}"
        self.call("POST", "artifactregistry", path, {"format": "DOCKER", "labels": labels})

    def service(self, name: str, labels: Mapping[str, str], location: str = "us-east4", **scaling: int) -> None:
        path = f"v2/projects/{self.project}/locations/{location}/services?serviceId={name}"
        self.call("POST", "run", path, {"labels": labels, "template": service_template(**scaling)})

    def queued(
        self,
        name: str,
        labels: Mapping[str, str],
        zone: str = ZONE,
        *,
        active: bool = True,
        form: str = "FLEX_START",
        **node: object,
    ) -> str:
        parent = f"projects/{self.project}/locations/{zone}"
        node = {"acceleratorType": "v6e-4", "runtimeVersion": "v2-alpha-tpuv6e", "labels": labels, **node}
        body = {
            "tpu": {"nodeSpec": [{"parent": parent, "nodeId": f"{name}-node", "node": node}]},
            "provisioningModel": form,
            **({"runDuration": {"maxRunDuration": "14400s"}} if form == "FLEX_START" else {}),
        }
        full = f"{parent}/queuedResources/{name}"
        self.call("POST", "tpu", f"v2alpha1/{parent}/queuedResources?queuedResourceId={name}", body)
        if active:
            until(lambda: self.call("GET", "tpu", f"v2alpha1/{full}")["state"]["state"] == "ACTIVE", "it is ACTIVE")
        return full

    def watched(self, name: str, labels: Mapping[str, str]) -> None:
        base = f"v3/projects/{self.project}"
        channel = {"type": "email", "labels": {"email_address": "a@example.com"}, "userLabels": labels}
        told = self.call("POST", "monitoring", f"{base}/notificationChannels", channel)["name"]
        condition = {"displayName": "c", "conditionPrometheusQueryLanguage": {"query": "vector(1)", "duration": "0s"}}
        policy = {"displayName": name, "combiner": "OR", "conditions": [condition], "notificationChannels": [told]}
        self.call("POST", "monitoring", f"{base}/alertPolicies", {**policy, "userLabels": labels})
        drawn = {"displayName": name, "mosaicLayout": {"columns": 48}, "labels": labels}
        self.call("POST", "monitoring", f"v1/projects/{self.project}/dashboards", drawn)

    def everything(self, stack: str, zone: str = ZONE, limits: StackLimits = NO_LIMITS) -> None:
        """Make one of each kind, as the components of a stack would."""
        self.made_of(replace(owner(stack), limits=limits), Names(project=self.project, stack=stack), zone)

    def made_of(self, own: Ownership, names: Names, zone: str = ZONE, managed_by: str = "") -> None:
        """Make one of each kind with an owner's marks and with the names of a stack. `managed_by`: another product's."""
        changed = {"managed-by": managed_by} if managed_by else {}
        labels = {**own.labels, **changed}
        description = own.description.replace("managed-by=gemma-serving", f"managed-by={labels['managed-by']}")
        self.network(names.base, description)
        email = self.account(names.account_id, description)
        self.grant("roles/logging.logWriter", f"serviceAccount:{email}")
        self.secret(f"{names.base}-hf-token", labels)
        self.bucket(names.bucket, labels, "m/config.json", "m/model.safetensors")
        self.repository(names.base, labels)
        self.service(names.base, labels)
        self.queued(names.base, labels, zone)
        self.watched(names.base, labels)


@contextlib.contextmanager
def open_world(
    scenario: Scenario | None = None,
    *,
    speed: float = DEFAULT_SPEED,
    places: Mapping[str, str] = PLACES,
    state: Path | None = None,
) -> Generator[World]:
    """Run a local cloud with instant operations, and point this process at it.

    `speed`: simulated seconds per real second. `state`: its folder, of which it begins with what another cloud left.
    """
    before, scenario = dict(os.environ), scenario or Scenario(operations=OperationDurations(instant=True))
    with (
        patch.dict(REGIONS, dict(places), clear=True),
        # It reads the whole environment twice for each call, a fifth of the call's time. The cloud listens on the loopback address.
        patch("requests.sessions.get_environ_proxies", return_value={}),
        idle_cloud.start(state=state, scenario=scenario, speed=speed) as cloud,
    ):
        for name in [name for name in os.environ if name.startswith(("GOOGLE_", "CLOUDSDK_"))]:
            del os.environ[name]
        os.environ |= {
            f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"{cloud.base_url}/{path}" for api, path in API_OVERRIDES.items()
        }
        os.environ["GOOGLE_OAUTH_ACCESS_TOKEN"] = cloud.cloud.tokens.issue_access_token(cloud.cloud.operator)
        try:
            yield World(cloud, google_api.connect())
        finally:
            os.environ.clear()
            os.environ.update(before)
