"""Preview a stack for an approval, then deploy what that preview shows, for deploy.yml.

  python -m scripts.preview.approved --stack NAME --out results/preview
  python -m scripts.preview.approved --stack NAME --approved results/preview --out results/deploy

The first command prints and stores what `pulumi up` would do.
The second previews again, and refuses to replace or delete a resource that the approved preview does not show.
It stores the output of `up`, masked, as `up.txt`, and the command that deletes the stack as `teardown.txt`.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from contracts.errors import CommandRefusedError, ScriptError
from contracts.exit_codes import ExitCode
from contracts.masking import masked
from engine import runner
from engine.children import ended, last_words
from scripts.cli.command import Command, run_command
from scripts.cli.hidden import environment_secrets
from scripts.cli.markdown import code, fenced, plain
from scripts.cli.options import Option, StackName
from scripts.cli.settings import registry_host, stack_settings
from scripts.preview.comment import engine_preview
from scripts.preview.plans import HOURLY, describe_stack
from scripts.preview.run import StackPreview, preview_stacks, write_previews
from scripts.preview.upcoming import headline
from stacks.loading import is_gateway_file
from stacks.planned import today


@dataclass(frozen=True, kw_only=True)
class ApprovedOptions:
    """Options of the command."""

    stack: StackName
    out: Annotated[Path, Option("Folder for the output.", metavar="DIR")]
    approved: Annotated[
        Path | None, Option("Deploy what the preview in this folder shows. Default: preview only.", metavar="DIR")
    ] = None


def _run(options: ApprovedOptions) -> ExitCode:
    if options.approved is None:
        found = _previewed(options.stack)
        write_previews(options.out, [found])
        print("\n".join(_shown(found)))
        return ExitCode.DONE
    losses = _approved_losses(options.approved / f"{options.stack}.json", options.stack)
    now = _previewed(options.stack)
    unseen = [loss for loss in now.losses if loss not in losses]
    if unseen:
        raise CommandRefusedError(
            f"`pulumi up` would do what the approved preview does not show: {'; '.join(unseen)}. Nothing was deployed. "
            "Run all jobs of the workflow again, and review the new preview."
        )
    _log_in_to_registry(options.stack)
    after = (
        f"Stack {options.stack} may run ({_price(options.stack)}). To delete it, run `gemma teardown {options.stack}`."
    )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "teardown.txt").write_text(f"{after}\n", encoding="utf-8")
    exit_code = _up(options.stack, options.out / "up.txt")
    if exit_code != 0:
        raise ScriptError(f"`pulumi up` {runner.ending(exit_code)}. {after}")
    return ExitCode.DONE


def _previewed(stack: str) -> StackPreview:
    (found,) = preview_stacks([stack], create=False)
    if found.error is not None:
        raise ScriptError(f"The preview of stack {stack} failed. Nothing was deployed. {found.error}")
    return found


def _shown(preview: StackPreview) -> Iterator[str]:
    """Yield the preview as Markdown."""
    yield from (
        f"### {plain(headline(preview.stack, preview.changes))}",
        "",
        f"{_price(preview.stack)}, at list prices.",
        "",
    )
    if preview.losses:
        yield from ("**Replaces or deletes:**", "", *(f"- {code(loss)}" for loss in preview.losses), "")
    for warning in preview.warnings:
        yield from fenced(warning)
    yield from engine_preview(preview)


def _price(stack: str) -> str:
    price = describe_stack(runner.project_folder(), stack, date=today()).figures.get(HOURLY)
    return f"{price.text} per hour for each instance" if price else "price unknown"


def _approved_losses(path: Path, stack: str) -> Sequence[str]:
    try:
        found = StackPreview.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = StackPreview(stack="")
    if found.stack != stack or found.error is not None:
        raise CommandRefusedError(f"{path} shows no changes of stack {stack}. Nothing was deployed.")
    return found.losses


def _log_in_to_registry(stack: str) -> None:
    """Configure Docker with gcloud's login, if the stack builds its image."""
    if is_gateway_file(runner.project_folder() / f"Pulumi.{stack}.yaml"):
        return
    settings = stack_settings(stack)
    if settings.image.build_context is not None:
        words = ["gcloud", "auth", "configure-docker", registry_host(settings), "--quiet"]
        done = ended(words)
        if done.returncode != 0:
            raise ScriptError(f"`{' '.join(words)}` failed: {last_words(done)}")


def _up(stack: str, path: Path) -> int:
    """Run `pulumi up`. Print its output without secrets, and store it. Return its exit code."""
    secrets = environment_secrets()
    with path.open("w", encoding="utf-8") as stored:

        def keep(line: str) -> None:
            text = masked(line, secrets)
            print(text, end="", flush=True)
            stored.write(text)

        words = ("up", "--yes", "--skip-preview", "--suppress-outputs", "--stack", stack)
        return runner.attended(*words, on_line=keep)[0]


COMMAND: Final = Command(
    name="preview.approved",
    help=__doc__,
    options=ApprovedOptions,
    run=_run,
    after_interrupt="Run all jobs of the workflow again to continue an interrupted `up`.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
