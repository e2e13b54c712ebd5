"""A law about the line of an `up` on its limits: only an account that Google returned, and that is enabled, is a known guard."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_serving.cloud import guard
from gemma_serving.cloud.google_calls import GoogleCallError
from gemma_serving.cloud.guard import limits_line
from gemma_serving.contracts.labels import StackLimits
from tests.laws import examples

PAGE = "docs/costs.md, Schedule the guard"
PROBLEMS = {
    "exists": "",
    "absent": f"no guard is known, so {{}} not enforced: project p has no account ci-guard ({PAGE})",
    "disabled": f"no guard is known, so {{}} not enforced: the account ci-guard of project p is disabled ({PAGE})",
    "off": "cannot check whether a guard exists, without which {} not enforced: API iam is off in project p",
    "refused": "cannot check whether a guard exists, without which {} not enforced: no answer",
}
"""What Google answers about the account, and the clause of each answer."""
ERRORS = {
    "absent": GoogleCallError(404, "Not found."),
    "off": GoogleCallError(403, "off", "SERVICE_DISABLED"),
    "refused": GoogleCallError(503, "no answer."),
}
FORMS = {
    (): "",
    ("spot",): "spot does not expire",
    ("spot", "standard"): "spot and standard do not expire",
}
"""Forms of capacity that Google does not end."""
LIMITS = {
    "maxAge is": StackLimits(max_age_s=3600),
    "maxAge and maxUsd are": StackLimits(max_age_s=3600, max_usd=50),
    "maxAge, maxUsd and tpu.idleAfter are": StackLimits(max_age_s=3600, max_usd=50, idle_after_s=600),
    "tpu.idleAfter is": StackLimits(idle_after_s=600),
    "": StackLimits(),
}


@settings(max_examples=examples(test=100, part=300, night=1000))
@given(st.sampled_from([*PROBLEMS]), st.sampled_from([*FORMS]), st.sampled_from([*LIMITS]))
def test_a_limit_that_no_known_guard_enforces_is_named_and_so_is_capacity_that_google_does_not_end(
    answer, forms, named
):
    def call_now(api, path, **more):
        assert (api, path) == ("iam", "v1/projects/p/serviceAccounts/ci-guard@p.iam.gserviceaccount.com")
        assert named, "a stack without limits makes no call"
        if answer in ERRORS:
            raise ERRORS[answer]
        return {"disabled": True} if answer == "disabled" else {"email": "ci-guard"}

    problem = PROBLEMS[answer].format(named)
    if not forms:
        expected = f"{problem}." if named and problem else ""
    elif not named:
        expected = (
            f"and the stack has no limit that ends the spending. Set maxUsd or maxAge, and schedule the guard ({PAGE})."
        )
    elif problem:
        expected = f"and {problem}."
    else:
        expected = f"; {named} enforced by the guard, which was set up: project p has its account ci-guard."
    join = "" if not forms or expected.startswith(";") else ", "
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guard, "call_now", call_now)
        line = limits_line(LIMITS[named], "p", forms)
    assert line == (f"Limits: {FORMS[forms]}{join}{expected}" if expected else "")
