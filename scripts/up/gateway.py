"""Deployment of a gateway, which has no server of its own."""

from collections.abc import Sequence

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.engine.previewed import diagnostics, previewed
from gemma_serving.engine.steps import changes_of
from gemma_serving.scripts.cli.command import print_progress, print_result
from gemma_serving.scripts.cli.prompts import confirm
from gemma_serving.scripts.up.deploying import (
    change_counts,
    engine_up,
    next_lines,
    program_messages,
    show_step,
    write_outputs,
)


def deploy_gateway(stack: str, *, yes: bool, refreshes: bool) -> ExitCode:
    """Preview a gateway, confirm, and deploy it. Raises ScriptError."""
    refresh = ["--refresh"] if refreshes else []
    print_progress("up", f"previewing gateway {stack}")
    with show_step("previewing"):
        document = previewed(stack, *refresh)
        changes, unchanged, warnings = changes_of(document)
    messages = diagnostics(document, "info")
    shown = program_messages(stack, messages, warnings)
    if not changes:
        write_outputs(stack, known=[*messages, *warnings])
        print_result("\n".join([*shown, f"{stack}: no changes; {unchanged} resources are up to date."]))
        return ExitCode.DONE
    print_result("\n".join([*shown, change_counts(changes, unchanged)]))
    if not yes:
        confirm(
            f"Deploy gateway {stack}?",
            without_terminal=f"Deploying gateway {stack} changes resources, and stdin is not a terminal. Pass --yes to confirm.",
            declined="Cancelled. Nothing was changed.",
        )
    done = engine_up(stack, refresh, steps=len(changes), known=[*messages, *warnings])
    print_result("\n".join([done, *_following(stack)]))
    return ExitCode.DONE


def _following(stack: str) -> Sequence[str]:
    """Return the address with the commands to use it, or, without a service, the commands that create it."""
    try:
        return next_lines(stack)
    except CommandRefusedError as error:
        return [str(error)]
