"""Incidents of alert policies and results of PromQL queries, as the admin API sets them: the local cloud evaluates no expression."""

from typing import Final

from localcloud.json_values import JsonObject, as_list, as_object
from localcloud.rest.errors import CloudError
from localcloud.world.cloud import Cloud

ALERTS: Final = "monitoring.alerts"
POLICIES: Final = "monitoring.alertPolicies"
_QUERIES: Final = "monitoring.queries"
_STATES: Final = ("OPEN", "CLOSED")
NOT_EVALUATED: Final = "The local cloud does not evaluate alert policies. Set their incidents with POST /admin/alerts"


def set_alerts(cloud: Cloud, given: JsonObject) -> JsonObject:
    """Replace the incidents and results of a project, and return the incidents. Raises CloudError for a policy that does not exist."""
    project = str(given.get("project") or cloud.project)
    documents = [_incident(cloud, project, each) for each in map(as_object, as_list(given.get("alerts")))]
    for name, _ in cloud.store.under(ALERTS, f"projects/{project}/alerts/"):
        cloud.store.delete(ALERTS, name)
    for document in documents:
        cloud.store.put(ALERTS, document["name"], document)
    cloud.store.put(_QUERIES, project, as_object(given.get("queries")))
    return {"alerts": documents}


def results(cloud: Cloud, project: str) -> JsonObject:
    """Return the results of a project by expression: a number, or None for none. Raises 501 until the admin API has set the project's alerts."""
    known = cloud.store.get(_QUERIES, project)
    if known is None:
        # An empty list would state that no alert fires.
        raise CloudError.unimplemented(NOT_EVALUATED)
    return known


def _incident(cloud: Cloud, project: str, given: JsonObject) -> JsonObject:
    policy, state = cloud.store.get(POLICIES, str(given.get("policy"))), given.get("state", _STATES[0])
    if policy is None or not str(policy["name"]).startswith(f"projects/{project}/"):
        raise CloudError.not_found(f"Cannot find the alert policy '{given.get('policy')}' of project {project}.")
    if state not in _STATES:
        raise CloudError.invalid(f"POST /admin/alerts: state is {state!r}, expected one of {', '.join(_STATES)}.")
    snapshot = {key: policy[key] for key in ("name", "displayName", "userLabels", "severity") if key in policy}
    now = cloud.timeline.stamp()
    return {
        "name": f"projects/{project}/alerts/{cloud.ids.number()}",
        "state": state,
        "openTime": given.get("openTime") or now,
        **({"closeTime": given.get("closeTime") or now} if state == _STATES[1] else {}),
        "policy": snapshot,
        "resource": {"type": "prometheus_target", "labels": {"project_id": project}},
    }
