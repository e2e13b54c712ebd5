"""Check that the project has the account of the guard that enforces the stack's limits."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from gemma_serving.cloud.guard import GUARD, unguarded
from gemma_serving.contracts.labels import NO_LIMITS, StackLimits
from gemma_serving.scripts.doctor.diagnosis import Checkup, Diagnosis, DoctorCheck, ok, unknown


def checks(checkup: Checkup) -> Iterator[DoctorCheck]:
    """Yield the check of a stack with limits. It never fails the command, because the stack can be deployed without a guard."""
    limits = checkup.settings.limits if checkup.settings else NO_LIMITS
    if limits != NO_LIMITS:
        check = checkup.calling("limits", "iam", "roles/iam.serviceAccountAdmin", partial(_guard, checkup, limits))
        yield replace(check, required=False)


def _guard(checkup: Checkup, limits: StackLimits) -> Iterator[Diagnosis]:
    absent = unguarded(limits, checkup.project, checkup.google.get)
    if absent:
        yield unknown(absent, required=False)
    else:
        yield ok(f"account {GUARD} exists; `gh run list --workflow guard.yml` lists its runs")
