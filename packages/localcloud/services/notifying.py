"""Notifications of alert policies: webhooks to the loopback address are really posted; everything else is only recorded.

The body of a webhook is Google's, version 1.2 (a recorded body in flanksource/duty: incident with condition, condition_name, documentation,
ended_at, incident_id, metric, observed_value, policy_name, resource, scoping_project_id, scoping_project_number, severity, started_at, state,
summary, url).
"""

from collections import deque
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from localcloud.json_values import JsonObject, part, strings
from localcloud.services.incidents import IncidentChange, summary
from localcloud.world.cloud import Cloud

CHANNELS: Final = "monitoring.notificationChannels"
_KEPT: Final = 1000
_TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)
_LOOPBACK: Final = {"127.0.0.1", "localhost", "::1"}
_WEBHOOKS: Final = {"webhook_tokenauth", "webhook_basicauth"}


class Notifier:
    """Sends notifications and keeps them for the admin API."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self.sent: deque[JsonObject] = deque(maxlen=_KEPT)

    async def notify(self, session: aiohttp.ClientSession, change: IncidentChange) -> None:
        """Notify the enabled channels of the change's policy."""
        prompts = strings(part(change.policy, "alertStrategy"), "notificationPrompts") or ["OPENED", "CLOSED"]
        if ("OPENED" if change.opened else "CLOSED") not in prompts:
            return
        for name in strings(change.policy, "notificationChannels"):
            channel = self._cloud.store.get(CHANNELS, name)
            if channel is None or channel.get("enabled") is False:
                continue
            body = self._body(change)
            outcome = await _post(session, channel, body) if channel["type"] in _WEBHOOKS else "recorded"
            self.sent.append(
                {
                    "time": self._cloud.timeline.stamp(),
                    "channel": name,
                    "type": channel["type"],
                    "to": _address(channel),
                    "outcome": outcome,
                    "body": body,
                }
            )

    def _body(self, change: IncidentChange) -> JsonObject:
        incident, policy = change.incident, change.policy
        project, number = str(incident["name"]).split("/")[1], str(incident["name"]).rpartition("/")[2]
        documentation = part(policy, "documentation")
        body: JsonObject = {
            "condition": change.condition,
            "condition_name": change.condition.get("displayName", ""),
            "documentation": {
                "content": documentation.get("content", ""),
                "mime_type": documentation.get("mimeType", "text/markdown"),
            },
            "ended_at": _seconds(incident.get("closeTime")),
            "incident_id": number,
            "metadata": {"system_labels": {}, "user_labels": {}},
            "metric": {"type": "", "displayName": "", "labels": part(part(incident, "metric"), "labels")},
            "observed_value": change.value,
            "policy_name": policy.get("displayName", ""),
            "policy_user_labels": part(policy, "userLabels"),
            "resource": incident["resource"],
            "scoping_project_id": project,
            "scoping_project_number": int(self._cloud.project_number(project)),
            "severity": str(policy.get("severity") or "No severity").capitalize(),
            "started_at": _seconds(incident["openTime"]),
            "state": "open" if change.opened else "closed",
            "summary": summary(change),
            "url": f"https://console.cloud.google.com/monitoring/alerting/alerts/{number}?project={project}",
        }
        return {"incident": body, "version": "1.2"}


def _seconds(stamp: object) -> int | None:
    return None if stamp is None else int(datetime.fromisoformat(str(stamp)).timestamp())


def _address(channel: JsonObject) -> str:
    """Return where a channel leads, without the query of a webhook, which can be a token."""
    labels = part(channel, "labels")
    url = str(labels.get("url") or "")
    return url.partition("?")[0] if url else str(labels.get("email_address") or "")


async def _post(session: aiohttp.ClientSession, channel: JsonObject, body: JsonObject) -> str:
    labels = part(channel, "labels")
    url = str(labels.get("url") or "")
    if urlsplit(url).hostname not in _LOOPBACK:
        return "not sent: the local cloud only posts to the loopback address"
    auth = None
    if channel["type"] == "webhook_basicauth":
        auth = aiohttp.BasicAuth(str(labels.get("username") or ""), str(labels.get("password") or ""))
    try:
        async with session.post(url, json=body, auth=auth, timeout=_TIMEOUT, allow_redirects=False) as response:
            return f"answered {response.status}"
    except (aiohttp.ClientError, TimeoutError) as error:
        return f"failed: {type(error).__name__}"
