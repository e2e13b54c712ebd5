"""Steps of the program: settings, plan, resources. The three lines of a project's `__main__.py` call `main`."""

import os
import signal
import sys
from typing import Final

import pulumi
from pulumi.runtime import get_config_env, get_config_secret_keys_env

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.installation import with_pages
from gemma_serving.contracts.labels import Ownership
from gemma_serving.contracts.naming import Names, NamingError, allowed_name, check_stack_name
from gemma_serving.contracts.quotas import QUOTAS_VARIABLE, from_variable
from gemma_serving.contracts.staged_weights import STAGING_VARIABLE
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.planner import plan_of
from gemma_serving.stacks import loading
from gemma_serving.stacks.apis import apis_of
from gemma_serving.stacks.base import Context
from gemma_serving.stacks.deployed.deployed_state import deployed_resources
from gemma_serving.stacks.deployed.home_region import home_region
from gemma_serving.stacks.deployed.kept_start import annotations_of, start_lines, with_deployed_start
from gemma_serving.stacks.google_project.propagation import require_enabled
from gemma_serving.stacks.hooks.staged_weights import require_weights_of_new_server
from gemma_serving.stacks.outputs import export
from gemma_serving.stacks.planned import preview_lines, require_unblocked, to_question, today
from gemma_serving.stacks.settings_wording import StackWording

UserError = (PlanningError, NamingError, CommandRefusedError)
"""User errors: reported as one sentence, without a traceback."""

_REPORTED: Final = 32
"""Exit status of a program whose error is logged, so the engine does not add one (pulumi, sdk/go/common/constant/exec_kind.go, ExitStatusLoggedError)."""
_REPAIRED_BY_STAGING: Final = ("NET03", "WRK08")
"""Findings that `gemma stage_model` removes, so they do not stop the program that creates its bucket."""


def main() -> None:
    """Declare the stack, and end the process after an error of the user."""
    # SIGINT exits this process immediately, like SIGTERM. A KeyboardInterrupt only stops the event loop in which the SDK answers the engine's
    # hooks. The runner then waits for the pending registrations, the engine for the answer to one of their hooks, and `pulumi up` never exits.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        run()
    except UserError as error:
        pulumi.log.error(with_pages(str(error)))
        sys.exit(_REPORTED)


def run() -> None:
    """Declare the stack. Raises one of `UserError` before any resource is declared."""
    stack = pulumi.get_stack()
    try:
        check_stack_name(stack)  # before the settings, which such a stack rarely has
    except NamingError as error:
        name = allowed_name(stack) or "NAME"
        raise NamingError(f"{error} Run `pulumi stack rename {name} --stack {stack}`.") from None
    settings = loading.from_pulumi(get_config_env(), frozenset(get_config_secret_keys_env()), stack=stack)
    deployed = deployed_resources(stack)
    by_file, settings = settings, with_deployed_start(settings, deployed)
    for line in start_lines(by_file, settings, deployed, stack):
        pulumi.log.info(line)
    home = home_region(settings, stack, deployed)
    quotas = from_variable(os.environ.get(QUOTAS_VARIABLE))
    question = to_question(settings, today=today()).changed(quotas=quotas)
    if STAGING_VARIABLE in os.environ:
        question = question.changed(accept_findings=(*question.settings.accept_findings, *_REPAIRED_BY_STAGING))
    wording = StackWording(question, stack)
    subject = examine(question)
    planned = plan_of(subject)
    for text, is_warning in preview_lines(planned, stack, wording):
        (pulumi.log.warn if is_warning else pulumi.log.info)(with_pages(text))
    require_unblocked(planned, stack, wording)
    require_enabled(settings.project, apis_of(settings))
    require_weights_of_new_server(settings, stack, deployed)
    context = Context(
        settings=settings,
        subject=subject,
        plan=planned,
        names=Names(project=settings.project, stack=stack),
        home_region=home,
        ownership=Ownership(
            project=pulumi.get_project(),
            stack=stack,
            limits=settings.limits,
        ),
        secrets={key: pulumi.Config().require_secret(key) for key in settings.secrets},
    )
    # Only one target is imported, because the SDK's compute classes take almost a second.
    if settings.tpu is not None:
        from gemma_serving.stacks import tpu  # noqa: PLC0415

        export(tpu.deploy(context, settings.tpu))
    elif settings.service is not None:
        from gemma_serving.stacks import cloud_run  # noqa: PLC0415

        export(cloud_run.deploy(context, settings.service, annotations_of(deployed)))
