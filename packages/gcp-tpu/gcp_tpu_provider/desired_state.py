"""Desired state: checked, known inputs, and the API request for a zone."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from gcp_tpu_provider import wire
from gcp_tpu_provider.compute_request import CLOUD_TPU, COMPUTE_ENGINE, instance_body, instance_name
from gcp_tpu_provider.forms import Form, forms_of, inputs_of
from gcp_tpu_provider.tpu_api import PROVISIONING_MODELS

URN_LABEL_SUFFIX = "-urn"
DEFAULT_URN_LABEL = f"pulumi{URN_LABEL_SUFFIX}"
URN_DIGITS = 40


def urn_hash(urn: str) -> str:
    """Return the value of the owner label: the first `URN_DIGITS` hex digits of the SHA-256 of the URN."""
    return hashlib.sha256(urn.encode()).hexdigest()[:URN_DIGITS]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyCheck:
    """Readiness check of the TPU VM. `document_hash` is empty if any document is accepted.

    `deadline_key` is the metadata key for the TPU VM's deadline. Empty if the TPU VM does not get it.
    """

    namespace: str
    document_hash: str
    timeout_s: int
    deadline_key: str = ""


@dataclass(frozen=True, slots=True)
class DesiredState:
    """Typed access to checked inputs. Secrets are unwrapped."""

    urn: str
    inputs: Mapping[str, Any]

    @classmethod
    def of(cls, urn: str, inputs: wire.Properties) -> "DesiredState":
        """Return the desired state of checked inputs."""
        return cls(urn, cast("wire.Properties", wire.reveal(inputs)))

    @property
    def project(self) -> str:
        """Project id."""
        return str(self.inputs["project"])

    @property
    def api(self) -> str:
        """Google API that provides the capacity: `cloud-tpu`, the default, or `compute-engine`."""
        return str(self.inputs.get("api") or CLOUD_TPU)

    @property
    def zones(self) -> tuple[str, ...]:
        """Zones in order of preference."""
        return tuple(cast("list[str]", self.inputs.get("zones") or [self.inputs["zone"]]))

    @property
    def identifier(self) -> str:
        """Id of the queued resource, the same in every zone."""
        return str(self.inputs["queuedResourceId"])

    @property
    def resource_id(self) -> str:
        """Pulumi's id. It has no zone, so it stays the same if a later update finds capacity elsewhere."""
        return f"projects/{self.project}/queuedResources/{self.identifier}"

    def name(self, zone: str) -> str:
        """Return the full name in a zone."""
        if self.api == COMPUTE_ENGINE:
            return instance_name(self.project, zone, self.identifier)
        return f"projects/{self.project}/locations/{zone}/queuedResources/{self.identifier}"

    @property
    def wait_for(self) -> str:
        """`accepted`, `active` or `ready`."""
        return str(self.inputs["waitFor"])

    @property
    def wait_per_zone_s(self) -> int:
        """Wait for capacity in one zone, in seconds."""
        return int(self.inputs["waitPerZoneS"])

    @property
    def wait_total_s(self) -> int | None:
        """Wait for capacity in all zones together, in seconds; None for no limit."""
        total_s = self.inputs.get("waitTotalS")
        return None if total_s is None else int(total_s)

    @property
    def next_steps(self) -> tuple[str, ...]:
        """Advice shown if no zone grants capacity."""
        return tuple(cast("list[str]", self.inputs.get("nextSteps") or []))

    @property
    def allow_replace_active(self) -> bool:
        """True if a change may delete running capacity."""
        return bool(self.inputs.get("allowReplaceActive"))

    @property
    def labels(self) -> dict[str, str]:
        """Labels as given."""
        return dict(self.inputs.get("labels") or {})

    @property
    def owner_labels(self) -> dict[str, str]:
        """Owner label. Its key is `MANAGER-urn` with the value of the label `managed-by`, or else `pulumi-urn`."""
        manager = self.labels.get("managed-by")
        return {f"{manager}{URN_LABEL_SUFFIX}" if manager else DEFAULT_URN_LABEL: urn_hash(self.urn)}

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata as given."""
        return dict(self.inputs.get("metadata") or {})

    @property
    def tags(self) -> list[str]:
        """Tags as given."""
        return list(self.inputs.get("tags") or [])

    @property
    def ready_check(self) -> ReadyCheck | None:
        """Readiness check, or None if the inputs have none."""
        ready = cast("dict[str, Any] | None", self.inputs.get("ready"))
        if not ready:
            return None
        document = self.metadata.get(str(ready.get("documentMetadataKey")))
        return ReadyCheck(
            namespace=str(ready["guestAttributeNamespace"]),
            document_hash="" if document is None else hashlib.sha256(document.encode()).hexdigest(),
            timeout_s=int(ready["timeoutS"]),
            deadline_key=str(ready.get("deadlineMetadataKey") or ""),
        )

    @property
    def forms(self) -> tuple[Form, ...]:
        """Forms of capacity in order of preference, at least one."""
        return forms_of(self.inputs)

    def request_inputs(self, form: Form) -> Mapping[str, Any]:
        """Return the inputs of a request in one form of capacity."""
        return inputs_of(self.inputs, form)

    def body(self, zone: str, form: Form) -> dict[str, Any]:
        """Return the request body (QueuedResource of tpu.v2alpha1, or Instance of compute.v1) for a zone and a form of capacity."""
        inputs = self.request_inputs(form)
        if self.api == COMPUTE_ENGINE:
            return instance_body(
                inputs, zone, identifier=self.identifier, labels=self.labels, owner_labels=self.owner_labels
            )
        parent = f"projects/{self.project}/locations/{zone}"
        body: dict[str, Any] = {
            "tpu": {"nodeSpec": [{"parent": parent, "nodeId": inputs["nodeId"], "node": self._node()}]},
            "provisioningModel": PROVISIONING_MODELS[str(inputs["provisioningModel"])],
        }
        if "maxRunDurationS" in inputs:
            body["runDuration"] = {"maxRunDuration": f"{int(inputs['maxRunDurationS'])}s"}
        if "validUntilDurationS" in inputs:
            body["queueingPolicy"] = {"validUntilDuration": f"{int(inputs['validUntilDurationS'])}s"}
        if "reservationName" in inputs:
            body["reservationName"] = _zonal(str(inputs["reservationName"]), f"{parent}/reservations/")
        return body

    def _node(self) -> dict[str, Any]:
        inputs = self.inputs
        network: dict[str, Any] = {"enableExternalIps": bool(inputs.get("enableExternalIps"))}
        network |= {name: inputs[name] for name in ("network", "subnetwork") if name in inputs}
        node: dict[str, Any] = {
            "acceleratorType": inputs["acceleratorType"],
            "runtimeVersion": inputs["runtimeVersion"],
            "networkConfig": network,
            "labels": {**self.labels, **self.owner_labels},
            "metadata": self.metadata,
        }
        if self.tags:
            node["tags"] = self.tags
        if inputs.get("description"):
            node["description"] = inputs["description"]
        if "bootDiskSizeGb" in inputs:
            node["bootDiskConfig"] = {"diskSizeGb": str(int(inputs["bootDiskSizeGb"]))}
        account = cast("dict[str, Any] | None", inputs.get("serviceAccount"))
        if account:
            node["serviceAccount"] = {"email": account["email"], "scope": account["scopes"]}
        return node


def _zonal(name: str, folder: str) -> str:
    """Return a full name. A short name is completed with the folder of the zone in use."""
    return name if "/" in name else f"{folder}{name}"
