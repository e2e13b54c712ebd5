"""What is known of the queued resource in the cloud, kept while an operation runs, so that every end of it can be told to the engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from gcp_tpu_provider import wire
from gcp_tpu_provider.properties import INPUT_BY_NAME, OUTPUTS
from gcp_tpu_provider.request import URN_LABEL_SUFFIX
from gcp_tpu_provider.tpu_api import ACTIVE, Node, QueuedResource

UNSEEN = "UNKNOWN"
"""State of a queued resource that was asked for and not seen yet."""
MISSING = "MISSING"
HISTORY_LENGTH = 50


@dataclass
class Record:
    """Outputs as they become known. `zone` is always known; the rest when it was seen."""

    zone: str
    name: str
    seen: wire.Properties = field(default_factory=dict[str, Any])
    history: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    @classmethod
    def of_state(cls, outputs: Mapping[str, Any]) -> "Record | None":
        """Take up what an earlier operation left in Pulumi's state; None when it says nothing."""
        plain = cast("wire.Properties", wire.reveal(dict(outputs)))
        if not plain.get("name"):
            return None
        known = {item.name for item in OUTPUTS}
        seen = {key: value for key, value in plain.items() if key in known}
        history = cast("list[dict[str, str]]", list(seen.pop("stateHistory", [])))
        return cls(zone=str(plain["name"]).split("/")[3], name=str(plain["name"]), seen=seen, history=history)

    @property
    def state(self) -> str:
        """The state seen last."""
        return str(self.seen.get("state", UNSEEN))

    def see(self, resource: QueuedResource) -> bool:
        """Take in what Google says; return whether the state is a new one."""
        changed = resource.state != self.state
        self._note(resource.state)
        nodes = resource.node_names()
        self.seen |= {
            "state": resource.state,
            "stateInitiator": resource.state_initiator or None,
            "stateMessage": resource.error or None,
            "createTime": resource.create_time or None,
            "nodeName": nodes[0] if nodes else None,
            "nodeNames": list(nodes),
        }
        if resource.nodes and "ownerLabels" not in self.seen:
            self.seen["ownerLabels"] = owner_labels(resource.nodes[0].labels)
        return changed

    def see_node(self, node: Node | None) -> None:
        """Take in the node; None when it does not exist (any more)."""
        if node is None:
            gone = MISSING if self.state == ACTIVE else None
            self.seen |= {"nodeState": gone, "nodeIps": [], "externalIps": [], "deadline": None}
            return
        self.seen |= {
            "nodeState": node.state,
            "nodeIps": list(node.ips),
            "externalIps": list(node.external_ips),
            "deadline": node.deadline or None,
            "ownerLabels": owner_labels(node.labels),
        }

    def see_guest(self, phase: str, document_hash: str) -> None:
        """Take in what the machine published."""
        self.seen |= {"phase": phase or None, "documentHash": document_hash or None}

    def _note(self, state: str) -> None:
        if self.history and self.history[-1]["state"] == state and self.history[-1]["zone"] == self.zone:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        self.history = [*self.history, {"at": now, "zone": self.zone, "state": state}][-HISTORY_LENGTH:]

    def outputs(self, inputs: wire.Properties) -> wire.Properties:
        """Return all outputs: the inputs as they were given, and what was seen."""
        known = {key: value for key, value in self.seen.items() if value is not None}
        return {**inputs, "state": UNSEEN, **known, "zone": self.zone, "name": self.name, "stateHistory": self.history}


def owner_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that tie a node to a resource of some Pulumi program."""
    return {key: value for key, value in labels.items() if key.endswith(URN_LABEL_SUFFIX) and len(value) == 40}  # noqa: PLR2004 - the hash's length


def preview_outputs(inputs: wire.Properties, olds: Mapping[str, Any] | None = None) -> wire.Properties:
    """Return outputs for a preview: what stays is known, what comes is not known yet."""
    kept = {item.name: (olds or {}).get(item.name, wire.UNKNOWN) for item in OUTPUTS}
    zone = (olds or {}).get("zone") or inputs.get("zone") or wire.UNKNOWN
    return {**{name: value for name, value in inputs.items() if name in INPUT_BY_NAME}, **kept, "zone": zone}
