"""Incidents of alert policies, as `projects.alerts` shows them: one for each condition and series that fires, from its opening to its closing."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from localcloud.json_values import JsonObject, part
from localcloud.rules.evaluator import Alert
from localcloud.world.cloud import Cloud
from localcloud.world.timeline import rfc3339

ALERTS: Final = "monitoring.alerts"
_OPEN, _CLOSED = "OPEN", "CLOSED"
_RESOURCE_LABELS: Final = {"project_id", "location", "cluster", "namespace", "job", "instance"}
"""Labels of the resource prometheus_target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentChange:
    """An incident that has opened or closed. `value` is the expression's last value."""

    policy: JsonObject
    condition: JsonObject
    incident: JsonObject
    value: str

    @property
    def opened(self) -> bool:
        """Return whether the incident opened."""
        return self.incident["state"] == _OPEN


class Incidents:
    """The incidents of all projects."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._store = cloud.store

    def settle(
        self, at: datetime, policy: JsonObject, condition: JsonObject, firing: Iterable[Alert]
    ) -> list[IncidentChange]:
        """Open an incident for each new firing series of a condition, and close those whose series no longer fires."""
        stamp, known = rfc3339(at), self._open_of(str(condition["name"]))
        changes: list[IncidentChange] = []
        for alert in firing:
            if known.pop(_series(alert.labels), None) is None:
                incident = self._opened(stamp, policy, condition, alert)
                changes.append(IncidentChange(policy=policy, condition=condition, incident=incident, value=alert.value))
        closed = (self._closed(stamp, incident) for incident in known.values())
        return [
            *changes,
            *(IncidentChange(policy=policy, condition=condition, incident=each, value="") for each in closed),
        ]

    def close_without(self, at: datetime, conditions: Iterable[str]) -> None:
        """Close the incidents of conditions that no longer exist or are disabled, without a notification."""
        alive = set(conditions)
        for _, incident in self._store.under(ALERTS):
            if incident["state"] == _OPEN and incident["_condition"] not in alive:
                self._closed(rfc3339(at), incident)

    def _open_of(self, condition: str) -> dict[str, JsonObject]:
        found = (incident for _, incident in self._store.under(ALERTS))
        return {
            incident["_series"]: incident
            for incident in found
            if incident["state"] == _OPEN and incident["_condition"] == condition
        }

    def _opened(self, stamp: str, policy: JsonObject, condition: JsonObject, alert: Alert) -> JsonObject:
        project = str(policy["name"]).split("/")[1]
        name = f"projects/{project}/alerts/{self._cloud.ids.number()}"
        own = {key: value for key, value in alert.labels.items() if key in _RESOURCE_LABELS}
        others = {key: value for key, value in alert.labels.items() if key not in {*_RESOURCE_LABELS, "alertname"}}
        snapshot = {key: policy[key] for key in ("name", "displayName", "userLabels", "severity") if key in policy}
        document: JsonObject = {
            "name": name,
            "state": _OPEN,
            "openTime": stamp,
            "policy": snapshot,
            "resource": {"type": "prometheus_target", "labels": {"project_id": project, **own}},
            "metric": {"labels": others} if others else {},
            "_condition": condition["name"],
            "_series": _series(alert.labels),
        }
        return self._store.put(ALERTS, name, document)

    def _closed(self, stamp: str, incident: JsonObject) -> JsonObject:
        return self._store.put(ALERTS, incident["name"], {**incident, "state": _CLOSED, "closeTime": stamp})


def summary(change: IncidentChange) -> str:
    """Return one sentence about a change."""
    labels = part(part(change.incident, "resource"), "labels") | part(part(change.incident, "metric"), "labels")
    shown = ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))
    name = change.condition.get("displayName") or change.policy.get("displayName", "")
    return f"{name} for {{{shown}}} {'is firing' if change.opened else 'returned to normal'}."


def _series(labels: Mapping[str, str]) -> str:
    return json.dumps(dict(labels), sort_keys=True)
