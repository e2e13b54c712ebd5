"""The known guard of a project, which enforces the limits of stacks. Google enforces none of them."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from gemma_serving.cloud.google_calls import GoogleCallError, call_now
from gemma_serving.contracts.fields import camel_case
from gemma_serving.contracts.labels import NO_LIMITS, StackLimits
from gemma_serving.contracts.naming import account_email

GUARD: Final = "ci-guard"
"""Account of guard.yml, which .github/setup/accounts.sh creates. It proves that a guard was set up, not that it runs."""
LIMIT_S: Final = 10.0
_PAGE: Final = "docs/costs.md, Schedule the guard"


def limits_line(limits: StackLimits, project: str, endless: Sequence[str] = ()) -> str:
    """Return the line of an `up` about what ends the spending, and whether a guard enforces it.

    `endless`: forms of capacity that Google does not end, such as spot. Without them the line is empty if the guard is known
    or the stack has no limits.
    """
    found = "" if limits == NO_LIMITS else guard_problem(limits, project)
    if not endless:
        return f"Limits: {found}." if found else ""
    verb = "does not expire" if len(endless) == 1 else "do not expire"
    runs_on = f"Limits: {' and '.join(endless)} {verb}"
    if limits == NO_LIMITS:
        none = "and the stack has no limit that ends the spending. Set maxUsd or maxAge, and schedule the guard"
        return f"{runs_on}, {none} ({_PAGE})."
    if found:
        return f"{runs_on}, and {found}."
    return f"{runs_on}; {_named(limits)} enforced by the guard, which was set up: project {project} has its account {GUARD}."


def guard_problem(limits: StackLimits, project: str) -> str:
    """Return why no guard is known to enforce the limits, absent or unknown, as a clause; empty if the guard's account exists."""
    absent = f"no guard is known, so {_named(limits)} not enforced"
    path = f"v1/projects/{project}/serviceAccounts/{account_email(GUARD, project)}"
    try:
        account = call_now("iam", path, project=project, limit_s=LIMIT_S)
    except GoogleCallError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return f"{absent}: project {project} has no account {GUARD} ({_PAGE})"
        why = f"API iam is off in project {project}" if error.is_api_off else str(error).rstrip(".")
        return f"cannot check whether a guard exists, without which {_named(limits)} not enforced: {why}"
    return (
        f"{absent}: the account {GUARD} of project {project} is disabled ({_PAGE})" if account.get("disabled") else ""
    )


def limit_keys(limits: StackLimits) -> Sequence[str]:
    """Return the keys of the limits that are set."""
    values = {
        camel_case("max_age"): limits.max_age_s,
        camel_case("max_usd"): limits.max_usd,
        "tpu.idleAfter": limits.idle_after_s,
    }
    return [key for key, value in values.items() if value is not None]


def _named(limits: StackLimits) -> str:
    """Return the keys of the limits that are set, and the verb."""
    *others, last = limit_keys(limits)
    return f"{', '.join(others)} and {last} are" if others else f"{last} is"
