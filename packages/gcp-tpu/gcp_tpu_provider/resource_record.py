"""Provider's observations of a queued resource. Every operation writes them to the state when it finishes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from gcp_tpu_provider import properties, wire
from gcp_tpu_provider.desired_state import URN_DIGITS, URN_LABEL_SUFFIX
from gcp_tpu_provider.tpu_api import ACTIVE, GuestReport, NodeInfo, QueuedResourceInfo, own_model

UNOBSERVED = "UNKNOWN"
"""State of a queued resource that was requested but not observed yet."""
MISSING = "MISSING"
HISTORY_LENGTH = 50
FORMER_SECOND = "renewalName"
"""Output of former versions, which requested a second queued resource to renew a run. It stays in the state until a deletion."""


@dataclass
class ResourceRecord:
    """Outputs as they become known. `zone` and `name` are always known."""

    zone: str
    name: str
    observed: wire.Properties = field(default_factory=dict[str, Any])
    history: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    @classmethod
    def of_state(cls, outputs: Mapping[str, Any]) -> "ResourceRecord | None":
        """Return the record in Pulumi's state, or None if the state does not name a queued resource."""
        plain = cast("wire.Properties", wire.reveal(dict(outputs)))
        if not plain.get("name"):
            return None
        known = {*properties.outputs(), FORMER_SECOND}
        observed = {key: value for key, value in plain.items() if key in known}
        history = cast("list[dict[str, str]]", list(observed.pop("stateHistory", [])))
        return cls(zone=str(plain["name"]).split("/")[3], name=str(plain["name"]), observed=observed, history=history)

    @property
    def state(self) -> str:
        """Last observed state."""
        return str(self.observed.get("state", UNOBSERVED))

    @property
    def former_second(self) -> "ResourceRecord | None":
        """Record of the second queued resource in a state of a former version, or None."""
        return ResourceRecord.of_state({"name": self.observed.get(FORMER_SECOND)})

    def observe(self, resource: QueuedResourceInfo) -> None:
        """Store Google's report about the queued resource."""
        self._add_to_history(resource.state)
        nodes = resource.node_names()
        self.observed |= {
            "state": resource.state,
            "stateInitiator": resource.state_initiator or None,
            "stateMessage": resource.error or None,
            "createTime": resource.create_time or None,
            "provisioningModelInUse": own_model(resource.provisioning_model),
            "nodeName": nodes[0] if nodes else None,
            "nodeNames": list(nodes),
        }
        if resource.nodes and "ownerLabels" not in self.observed:
            self.observed["ownerLabels"] = owner_labels(resource.nodes[0].labels)

    def observe_node(self, node: NodeInfo | None) -> None:
        """Store Google's report about the node; None if it does not exist."""
        if node is None:
            gone = MISSING if self.state == ACTIVE else None
            self.observed |= {"nodeState": gone, "nodeIps": [], "externalIps": [], "deadline": None}
            return
        self.observed |= {
            "nodeState": node.state,
            "nodeIps": list(node.ips),
            "externalIps": list(node.external_ips),
            "deadline": node.deadline or None,
            "ownerLabels": owner_labels(node.labels),
        }

    def observe_guest_report(self, report: GuestReport) -> None:
        """Store the TPU VM's report about its server."""
        self.observed |= {
            "phase": report.phase or None,
            "documentHash": report.document_hash or None,
            "servingHash": report.serving_hash or None,
            "container": report.container or None,
        }

    def _add_to_history(self, state: str) -> None:
        if self.history and self.history[-1]["state"] == state and self.history[-1]["zone"] == self.zone:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        self.history = [*self.history, {"at": now, "zone": self.zone, "state": state}][-HISTORY_LENGTH:]

    def outputs(self, inputs: wire.Properties) -> wire.Properties:
        """Return all outputs: the inputs as given and the observations."""
        known = {key: value for key, value in self.observed.items() if value is not None}
        return {
            **inputs,
            "state": UNOBSERVED,
            **known,
            "zone": self.zone,
            "name": self.name,
            "stateHistory": self.history,
        }


def owner_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the owner labels of a node: labels that name a resource of any Pulumi program."""
    return {key: value for key, value in labels.items() if key.endswith(URN_LABEL_SUFFIX) and len(value) == URN_DIGITS}


def preview_outputs(inputs: wire.Properties, olds: Mapping[str, Any] | None = None) -> wire.Properties:
    """Return outputs for a preview. Values that the update determines are unknown."""
    known = olds or {}
    kept = {item.name: known.get(item.name, wire.UNKNOWN) for item in properties.outputs().values()}
    zone = known.get("zone") or inputs.get("zone") or wire.UNKNOWN
    return {**{name: value for name, value in inputs.items() if name in properties.inputs()}, **kept, "zone": zone}
