"""Alerts of one stack in Cloud Monitoring: those that fire, and whether anything can fire.

That no alert fires is an answer only if policies exist, are enabled, and receive the metrics that they read.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlencode

from gcp_tpu_provider.refusals import DENIED, read
from gemma_serving.cloud.google_api import GoogleApi, answer_of, enable_command, listed
from gemma_serving.cloud.served_tokens import prometheus
from gemma_serving.cloud.simulated import is_simulated
from gemma_serving.contracts.alerts import NOT_READY, RUNBOOK, Severity, row_of
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.labels import PRODUCT, Ownership
from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.three_answers import Answer, Present, Unknown

Verdict = Literal["fires", "silent", "unknown"]
Item = Mapping[str, object]

POLICY_TYPE: Final = "gcp:monitoring/alertPolicy:AlertPolicy"
MONITORING: Final = "monitoring"
_ROLE: Final = "roles/monitoring.viewer"
_SEVERITIES: Final[Mapping[str, Severity]] = {"CRITICAL": "page", "ERROR": "page", "WARNING": "ticket"}
_PAGE_SIZE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StackAlert:
    """An alert that fires or fired, as an incident in Cloud Monitoring."""

    title: str
    severity: Severity | None
    """`page`: users are affected. `ticket`: during the day. None: the policy has no severity."""
    opened: str
    """RFC 3339."""
    closed: str | None
    """RFC 3339; None if it still fires."""
    meaning: str
    command: str
    runbook: str
    """Page and heading; the page alone for a policy that this release does not have."""
    incident: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertReport:
    """The alerts of one stack."""

    stack: str
    project: str
    firing: Sequence[StackAlert] = ()
    closed: Sequence[StackAlert] = ()
    """The newest first; empty unless they were read."""
    policies: int | None = None
    """Number of alert policies; None if unknown."""
    unread: Sequence[str] = ()
    unwatched: Sequence[str] = ()
    """Reasons why alerts cannot fire, one sentence each."""
    notes: Sequence[str] = ()
    """Restrictions that leave the verdict as it is, one sentence each."""

    @property
    def verdict(self) -> Verdict:
        """`silent` means that nothing fires and that everything can."""
        if self.firing:
            return "fires"
        return "unknown" if self.unread or self.unwatched else "silent"


def no_policies(stack: str, project: str) -> AlertReport:
    """Return the report of a stack without alert policies."""
    why = (
        f"Stack {stack} has no alert policies, so nothing watches it. "
        f"To create them, run `gemma up {stack}`, "
        f"unless its settings have alerts.enabled: false ({RUNBOOK})."
    )
    return AlertReport(stack=stack, project=project, policies=0, unwatched=(why,))


def read_alerts(
    api: GoogleApi, *, stack: str, project: str, declared: int = 0, has_closed: bool = False
) -> AlertReport:
    """Return the alerts of a stack's policies, which are found by their labels.

    `declared` is the number of alert policies in the stack's state. With `has_closed`, closed alerts are read too.
    What Google does not return is in the report, which lists it as unread.
    """
    listed = _listed(api, f"v3/projects/{project}/alertPolicies", "alertPolicies")
    if isinstance(listed, Unknown):
        return AlertReport(stack=stack, project=project, unread=(_unread("alert policies", project, listed),))
    policies = [policy for policy in _items(listed) if _is_of(policy, stack)]
    if not policies and not declared:
        return no_policies(stack, project)
    query = {"pageSize": _PAGE_SIZE} if has_closed else {"pageSize": _PAGE_SIZE, "filter": 'state="OPEN"'}
    incidents = _listed(api, f"v3/projects/{project}/alerts?{urlencode(query)}", "alerts")
    # An incident without a state is unknown to this release. It is shown rather than left out.
    seen = [item for item in _items(incidents) if has_closed or item.get("state") != "CLOSED"]
    found = [alert for each in seen if (alert := _alert(each, policies, stack)) is not None]
    unread, unwatched = _unknowns(api, project, stack, policies, incidents)
    firing = [alert for alert in found if alert.closed is None]
    return AlertReport(
        stack=stack,
        project=project,
        firing=sorted(firing, key=lambda alert: (alert.severity != "page", alert.opened)),
        closed=sorted((each for each in found if each.closed), key=lambda alert: alert.opened, reverse=True),
        policies=len(policies),
        unread=tuple(unread),
        unwatched=(*_gaps(policies, stack, declared), *unwatched),
        notes=tuple(_notes(policies)),
    )


NOT_EVALUATED: Final = "The local cloud does not evaluate alerts: those that fire were set with POST /admin/alerts."
"""Note of the local cloud. Its own answer about incidents, if it has none, says the same."""


def _unknowns(
    api: GoogleApi, project: str, stack: str, policies: Sequence[Item], incidents: Answer[Sequence[Item]]
) -> tuple[Sequence[str], Sequence[str]]:
    """Return what Google did not return, and why alerts on metrics cannot fire."""
    unread: list[str] = []
    if isinstance(incidents, Unknown):
        if incidents.cause == "not simulated":
            return (), (f"Alerts cannot fire: {incidents.why}",)
        unread.append(_unread("open alerts", project, incidents))
    needing = [policy for policy in policies if _needs_collector(policy)]
    if not needing:
        return unread, ()
    # A machine reports as long as it exists, and Not ready fires if it does not. A service without an instance does not.
    deaf = [policy for policy in needing if _title(policy) != NOT_READY]
    window, words = ("1d", "24 hours") if len(deaf) == len(needing) else ("10m", "10 minutes")
    has_data = _has_data(api, project, stack, window)
    if isinstance(has_data, Unknown):
        return (*unread, _unread("metrics", project, has_data)), ()
    is_heard = isinstance(has_data, Present) and has_data.value
    return unread, () if is_heard else (_no_data(stack, len(deaf), words),)


def _is_of(policy: Item, stack: str) -> bool:
    return Ownership(project=PRODUCT, stack=stack).owns(labels=as_mapping(policy.get("userLabels")))


def _listed(api: GoogleApi, path: str, key: str) -> Answer[Sequence[Item]]:
    found = listed(api, MONITORING, path)
    items = [as_mapping(item) for page in found.pages for item in as_sequence(page.get(key))]
    return found.unread or Present(items)


def _items(listed: Answer[Sequence[Item]]) -> Sequence[Item]:
    return listed.value if isinstance(listed, Present) else ()


def _alert(incident: Item, policies: Sequence[Item], stack: str) -> StackAlert | None:
    """Return an incident of one of these policies; None for another one."""
    snapshot = as_mapping(incident.get("policy"))
    policy = next((each for each in policies if each.get("name") == snapshot.get("name")), None)
    if policy is None:
        return None
    title = _title(policy)
    row = row_of(title)
    content = str(as_mapping(policy.get("documentation")).get("content") or "")
    closed = str(incident.get("closeTime") or "") if incident.get("state") == "CLOSED" else ""
    return StackAlert(
        title=title,
        severity=row.severity if row else _SEVERITIES.get(str(policy.get("severity"))),
        opened=str(incident.get("openTime") or ""),
        closed=closed or None,
        meaning=content.partition("\n")[0] or (row.meaning if row else ""),
        command=row.command.replace("$stack", stack) if row else f"gemma logs {stack}",
        runbook=f"{RUNBOOK}#{row.anchor}" if row else RUNBOOK,
        incident=str(incident.get("name") or ""),
    )


def _title(policy: Item) -> str:
    """Return the title in the name of a policy (components.observability)."""
    name = str(policy.get("displayName") or "")
    return name.partition(": ")[2] or name


def _needs_collector(policy: Item) -> bool:
    """Return whether a policy reads metrics of the server, whose name is their `namespace`."""
    conditions = map(as_mapping, as_sequence(policy.get("conditions")))
    queries = (as_mapping(each.get("conditionPrometheusQueryLanguage")).get("query") for each in conditions)
    return any("namespace=" in str(query) for query in queries)


def _gaps(policies: Sequence[Item], stack: str, declared: int) -> Iterator[str]:
    """Yield what keeps policies from firing."""
    if len(policies) < declared:
        yield (
            f"{declared - len(policies)} of the {declared} alert policies in the state no longer exist. "
            f"To create them again, run `gemma up {stack} --refresh`."
        )
    disabled = [_title(policy) for policy in policies if policy.get("enabled") is False]
    if disabled:
        yield (
            f"Disabled, so they cannot fire: {', '.join(sorted(disabled))}. To enable them, run "
            f"`gemma up {stack} --refresh`."
        )


def _notes(policies: Sequence[Item]) -> Iterator[str]:
    has_server = any((row := row_of(_title(policy))) is not None and row.pattern for policy in policies)
    if has_server and not any(_needs_collector(policy) for policy in policies):
        yield "Without metrics.enabled, only log lines and, on Cloud Run, the platform's own metrics are watched."
    if policies and not any(as_sequence(policy.get("notificationChannels")) for policy in policies):
        yield "The alerts have no recipient. Set alerts.email or alerts.webhook."
    if is_simulated() and has_server:
        yield NOT_EVALUATED


def _has_data(api: GoogleApi, project: str, stack: str, window: str) -> Answer[bool]:
    """Return whether the collector has written within the last `window`, a duration of PromQL."""
    query = f'count(last_over_time(up{{namespace="{Names(project=project, stack=stack).base}"}}[{window}]))'
    return answer_of(MONITORING, lambda: bool(prometheus(api, project, query)))


def _no_data(stack: str, policies: int, window: str) -> str:
    return (
        f"No metrics of the server arrived in the last {window}, so alerts that read them ({policies}) "
        f"cannot fire. Either no instance ran, or its collector does not work: run `gemma logs {stack}`."
    )


def _unread(what: str, project: str, why: Unknown) -> str:
    if why.cause == "api off":
        return f"Cannot read {what}: {why.why}. Run `{enable_command(project, [MONITORING])}`."
    role = f" You need {_ROLE}." if read(why.why).meaning in DENIED else ""
    return f"Cannot read {what}: {why.why.rstrip('.')}.{role}"
