"""A finding of `gemma plan` by its id: its meaning, its reason, and whether it can be accepted."""

import json
from collections.abc import Mapping
from typing import Any

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.spelling import did_you_mean
from gemma_serving.gke.rules import GKE_RULES
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.rules.findings import RULES
from gemma_serving.scripts.cli.command import print_result, print_text


def show_finding(given: str, *, as_json: bool) -> ExitCode:
    """Print what a finding means. Raises PlanningError for an unknown id."""
    found = explained(given.upper())
    if as_json:
        print_text(json.dumps(found, indent=2))
        return ExitCode.DONE
    accepted = "can" if found["can_be_accepted"] else "cannot"
    print_result(
        f"{found['id']} ({' or '.join(found['severities'])}): {found['what']}.\n{found['why']}\n"
        f"`acceptFindings` {accepted} name it.\nSource: {found['source']}"
    )
    return ExitCode.DONE


def explained(identifier: str) -> dict[str, Any]:
    """Return the facts of a finding. Raises PlanningError for an unknown id."""
    if rule := RULES.get(identifier):
        severities, accepts = rule.severities, rule.is_acceptable
        facts: Mapping[str, str] = {"what": rule.what, "why": rule.why, "source": rule.source}
    elif row := GKE_RULES.get(identifier):
        severities, accepts, facts = (row["severity"],), False, row
    else:
        known = [*RULES, *GKE_RULES]
        raise PlanningError(
            f"{identifier} is not a finding.{did_you_mean(identifier, known)} docs/reference/rules.md lists them."
        )
    return {
        "id": identifier,
        "severities": list(severities),
        "what": facts["what"],
        "why": facts["why"],
        "can_be_accepted": accepts,
        "source": facts["source"],
    }
