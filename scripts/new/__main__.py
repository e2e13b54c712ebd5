r"""Create the settings file for a new stack.

  gemma new chat --model 12B
  gemma new chat --model google/gemma-4-E4B-it \
      --accelerator v6e-1 --workload in=1500,out=300,users=32
  gemma new chat --model 26B-A4B --budget 2
  gemma new mine --model my-org/gemma-4-12b-sql --config models/sql
  gemma new mine --like tpu-v6e1-e4b

Selects the cheapest deployment of the model that serves the workload: accelerator, locations, precision and vLLM options. Writes
`Pulumi.NAME.yaml` with comments, and prints its plan and the next commands. With --like, the file is a copy. Creates nothing in
Google Cloud.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import Command, print_progress, print_result, print_text, run_command
from gemma_serving.scripts.cli.options import JsonSwitch, Option

if TYPE_CHECKING:
    from gemma_serving.planning.data.checkpoints import Checkpoint
    from gemma_serving.planning.settings.stack import Settings
    from gemma_serving.planning.solve.search import Solution, SolutionSet

DEFAULT_WORKLOAD: Final = "in=700,out=300,users=8"
"""Eight concurrent users of a chat: the workload of the shipped stack `l4-qat`."""


def _address(text: str) -> str:
    from gemma_serving.planning.settings.observability import EMAIL

    try:
        EMAIL.check(text)
    except ValueError:
        raise ValueError("one address such as name@example.com") from None
    return text


@dataclass(frozen=True, kw_only=True)
class NewOptions:
    """Options of the command."""

    name: Annotated[
        str, Option("Stack name: up to 30 lowercase letters, digits and hyphens, a letter first.", positional=True)
    ]
    model: Annotated[
        str, Option("Hugging Face id, or a size of Gemma 4: E2B, E4B, 12B, 26B-A4B, 31B.", metavar="M")
    ] = ""
    like: Annotated[
        str | None,
        Option("Copy the settings file of this stack, or of an example in examples/stacks.", metavar="STACK"),
    ] = None
    config: Annotated[
        Path | None,
        Option(
            "config.json of a fine-tune of Gemma 4, or its folder, inside the project. --model is its id.",
            metavar="FILE",
        ),
    ] = None
    accelerator: Annotated[
        str | None,
        Option("Accelerator, such as v6e-4 or L4. Default: the cheapest that meets the limits.", metavar="A"),
    ] = None
    budget: Annotated[
        float | None, Option("Maximum price per slice or instance, in USD per hour.", metavar="USD", above=0)
    ] = None
    workload: Annotated[
        str | None,
        Option(
            f"Workload of one slice or instance. docs/planning.md lists the keys. Default: {DEFAULT_WORKLOAD}.",
            metavar="LIST",
        ),
    ] = None
    region: Annotated[tuple[str, ...], Option("Allowed region; repeatable.", metavar="REGION", repeated=True)] = ()
    email: Annotated[
        str | None, Option("E-mail address that alerts are sent to. Default: none.", metavar="ADDRESS", parse=_address)
    ] = None
    secrets_key: Annotated[
        str | None,
        Option(
            "Cloud KMS key for the secrets: projects/P/locations/L/keyRings/R/cryptoKeys/K. Default: a passphrase.",
            metavar="KEY",
        ),
    ] = None
    force: Annotated[bool, Option("Overwrite an existing file, except secrets, salt and keys of other namespaces.")] = (
        False
    )
    as_json: JsonSwitch = False


def write_settings(options: NewOptions, *, first: Sequence[str] = (), also: Sequence[str] = ()) -> ExitCode:
    """Write the settings file, and print its plan and the next commands, which begin with `first`. Raises PlanningError, ScriptError.

    `also` are files that the caller writes.
    """
    from gemma_serving.planning.data.checkpoints import checkpoint_of
    from gemma_serving.planning.data.images import image_words
    from gemma_serving.planning.planner import plan
    from gemma_serving.scripts.plan.api import new_file
    from gemma_serving.scripts.stack.settings import NO_PROJECT
    from gemma_serving.stacks.loading import from_file
    from gemma_serving.stacks.planned import finding_text, headline, to_deployment
    from gemma_serving.stacks.wording import StackWording

    if not options.model and not options.like:
        raise CommandRefusedError("No model. Pass --model ID, or --like STACK to copy a settings file.")
    path = new_file(options.name, option="NAME", overwrite=options.force)
    replaced, provider = path.exists(), _provider(path, options)
    image: str | None = None
    if options.like:
        _copy(options, options.like, path)
    else:
        image = _solved_file(options, provider, path.parent)
    settings = from_file(path, project=NO_PROJECT)
    files = [path.name, *also, *_copy_image(settings.image.build_context, path.parent)]
    deployment = to_deployment(settings, path.parent)
    planned = plan(deployment)
    commands = [*first, *_next(options.name, settings, provider, path.parent)]
    places = list(settings.tpu.zones) if settings.tpu else list(settings.regions)
    if options.as_json:
        report = {
            "file": path.name,
            "files": files,
            "replaced": replaced,
            "model": settings.model,
            "model_revision": settings.model_revision,
            "personal": options.config is None and checkpoint_of(settings.model).is_personal,
            "accelerator": planned.accelerator,
            "locations": places,
            "fits": planned.fits,
            "usd_per_hour": round(planned.cost.usd_per_hour, 4),
            "start_s": round(planned.startup.ready_s),
            "findings": [finding.id for finding in planned.findings if finding.severity != "info"],
            "next": commands,
        }
        print_text(json.dumps(report, allow_nan=False))
    else:
        wording = StackWording(deployment, options.name)
        warnings = [finding_text(finding, wording) for finding in planned.findings if finding.severity == "warn"]
        price = f"Price: ${planned.cost.usd_per_hour:.2f}/h in {', '.join(places)}."
        about = filter(None, (_converted(options, settings), image and f"Image: {image_words(image)}."))
        for text in (f"Wrote {', '.join(files)}.", headline(planned), *about, price, *warnings):
            print_result(text)
        print_text("\nNext:\n" + "".join(f"  {command}\n" for command in commands), end="")
    return ExitCode.DONE


def _copy(options: NewOptions, like: str, path: Path) -> None:
    """Write a copy of another stack's settings file. Raises CommandRefusedError."""
    from gemma_serving.contracts.settings_files import no_settings_file, settings_file
    from gemma_serving.scripts.plan.api import given_options, write_copy

    others = [name for name in given_options(options) if name not in {"name", "like", "force", "as-json", "ci"}]
    if others:
        raise CommandRefusedError(f"--like copies a file as it is. Remove --{others[0]}, and change the copy.")
    source = settings_file(like, path.parent)
    if not source.is_file():
        raise CommandRefusedError(no_settings_file(like, path.parent))
    write_copy(source, path)


def _copy_image(context: str | None, root: Path) -> Sequence[str]:
    """Copy the build context of one of this project's images, which only a checkout has, and return its files."""
    import shutil

    from gemma_serving.contracts.installation import PACKAGE

    if not context or (root / context).exists() or not (PACKAGE / context).is_dir():
        return ()
    shutil.copytree(PACKAGE / context, root / context, ignore=shutil.ignore_patterns("__pycache__"))
    return [path.relative_to(root).as_posix() for path in sorted((root / context).rglob("*")) if path.is_file()]


def _solved_file(options: NewOptions, provider: str, root: Path) -> str | None:
    """Write the file of the best deployment, and return the image that it names. Raises PlanningError."""
    from gemma_serving.planning.solve.search import ServiceLimits
    from gemma_serving.scripts.plan.api import StackFile, write_stack

    found = _solved(options)
    model = options.model if options.config else found.served.checkpoint.id
    revision, is_hidden = _revision(model, options)
    file = StackFile(
        name=options.name,
        solution=found,
        limits=ServiceLimits(max_usd_per_hour=options.budget),
        goal="cost",
        revision=revision,
        own_model=(options.model, _inside(options.config, root)) if options.config else None,
        is_off_hub=is_hidden,
        email=options.email,
        secrets_provider=provider,
    )
    write_stack(file)
    return found.image


def _provider(path: "Path", options: NewOptions) -> str:
    """Return the URL of the key. Raises CommandRefusedError for a file with another provider's secrets or salt."""
    from gemma_serving.engine.secrets_provider import provider_with

    if not options.secrets_key:
        return ""
    url = provider_with(options.secrets_key)
    if path.exists() and f"secretsprovider: {url}" not in path.read_text(encoding="utf-8").splitlines():
        raise CommandRefusedError(
            f"{path.name} exists, and --secrets-key cannot change its secrets provider. Remove the option, then run "
            f"`pulumi stack change-secrets-provider {url} --stack {options.name}`."
        )
    return url


def _solved(options: NewOptions) -> "Solution":
    """Return the cheapest deployment that meets the limits. Raises PlanningError with the closest one if none does."""
    from gemma_serving.planning.errors import PlanningError
    from gemma_serving.planning.settings.workload import parse_workload
    from gemma_serving.planning.solve.candidates import checkpoints_of, rentable_accelerators
    from gemma_serving.planning.solve.search import ServiceLimits, solve
    from gemma_serving.scripts.plan.api import nothing_is_enough

    workload = parse_workload(options.workload or DEFAULT_WORKLOAD)
    checkpoints = _same_as(options.config, options.model) if options.config else checkpoints_of(options.model)
    places = rentable_accelerators(options.region, accelerator=options.accelerator)
    answer = solve(workload, ServiceLimits(max_usd_per_hour=options.budget), checkpoints=checkpoints, places=places)
    if answer.chosen is not None:
        return _in_own_precision(answer) if options.config else answer.chosen
    sentence = nothing_is_enough(answer).replace("--max-usd-per-hour", "--budget")
    raise PlanningError(
        f"{sentence[:1].upper()}{sentence[1:]} Pulumi.{options.name}.yaml was not written. Change a limit and retry."
    )


def _in_own_precision(answer: "SolutionSet") -> "Solution":
    """Return the best solution that keeps the precision of the file, or the best one if each converts it."""
    return next((one for one in answer.solutions if one.served.quantization is None), answer.solutions[0])


def _converted(options: NewOptions, settings: "Settings") -> str:
    """Return a sentence if vLLM converts the user's own file, with an accelerator that keeps its precision; else an empty string."""
    if not options.config or settings.quantization is None:
        return ""
    from gemma_serving.planning.errors import PlanningError
    from gemma_serving.planning.machine.hardware import find_accelerator

    here = settings.tpu.accelerator_type if settings.tpu else settings.cloud_run.gpu if settings.cloud_run else ""
    card = find_accelerator(here)
    said = (
        f"Served in {settings.quantization}: vLLM converts your bf16 file while it loads, because bf16 does not serve this "
        f"workload on {card.name if card else here}."
    )
    try:
        kept = _solved(replace(options, accelerator=None))
    except PlanningError:
        return said
    if kept.served.quantization is not None:
        return said
    name = kept.subject.resolved.accelerator.name
    return f"{said} For bf16, add --accelerator {name} --force (${kept.usd_per_hour:.2f}/h)."


def _inside(config: Path, root: Path) -> str:
    """Return the path of --config inside the project's folder. Raises CommandRefusedError for a path outside."""
    if not config.resolve().is_relative_to(root.resolve()):
        raise CommandRefusedError(f"--config {config} is outside the project. Copy the file into {root}, then retry.")
    return config.resolve().relative_to(root.resolve()).as_posix()


def _same_as(config: Path, name: str) -> "tuple[Checkpoint, ...]":
    """Return the Gemma 4 checkpoint with the dimensions and the precision of a config.json. Raises PlanningError if none has them."""
    from gemma_serving.cloud.model_files import read_model
    from gemma_serving.planning.data.checkpoints import CHECKPOINTS
    from gemma_serving.planning.errors import PlanningError
    from gemma_serving.planning.model.catalog import spec_of

    custom = read_model(config, name=name)
    sized = [
        one
        for one in CHECKPOINTS.values()
        if one.kind == "instruct"
        and (known := spec_of(one.id)).hidden == custom.hidden
        and known.groups == custom.groups
    ]
    same = [one for one in sized if custom.is_gemma4 and one.scheme == custom.native_quantization]
    if same:
        return (same[0],)
    other = f"{sized[0].architecture} in {custom.native_quantization}" if sized else "no size of Gemma 4"
    why = f"{config} describes {other}"
    raise PlanningError(
        f"{why}, but no tested checkpoint has these weights. To plan it anyway, run `gemma plan --config {config} "
        f"--accelerator A`; in a stack, set model and modelConfig."
    )


def _revision(model: str, options: NewOptions) -> tuple[str | None, bool]:
    """Return the commit of the model's main branch, and whether the hub does not show the user's own model.

    Report a hub that returned no commit, unless a local file describes a model that it does not show.
    """
    from gemma_serving.cloud.hub import main_commit
    from gemma_serving.contracts.answers import Present, Unknown

    match main_commit(model):
        case Present(value=commit):
            return commit, False
        case Unknown(cause="denied") if options.config:
            return None, True
        case Unknown(why=why):
            print_progress(
                "new",
                f"{why}. modelRevision is not set. When the hub is reachable, run `gemma doctor {options.name}` for the commit.",
            )
            return None, False


def _next(name: str, settings: "Settings", provider: str, root: Path) -> Iterator[str]:
    """Yield the next commands. If the hub returned the model's commit, no token is needed to read its page."""
    from gemma_serving.scripts.stack.settings import NO_PROJECT
    from gemma_serving.stacks.extra_checkpoints import staging_command

    if provider:
        yield f"pulumi stack init {name} --secrets-provider={provider}   # the key must exist: docs/ci.md"
    if settings.project == NO_PROJECT:
        yield f"export GOOGLE_CLOUD_PROJECT=YOUR_PROJECT   # or gcp:project in Pulumi.{name}.yaml"
    yield f"gemma doctor {name}"
    if settings.weights == "hub" and settings.model_revision is None and not settings.has_secret("hfToken"):
        yield f"gemma save_token {name} hfToken   # only for a checkpoint that needs one"
    if settings.tpu is not None:
        yield f"gemma capacity {name}"
    if settings.weights == "bucket":
        command = staging_command(settings, name, root)
        yield f"{command}   # or gs://BUCKET/FOLDER, with the weights" if command.endswith("FOLDER") else command
    yield f"gemma up {name}"
    yield f"gemma chat {name}"


COMMAND: Final = Command(
    name="new",
    help=__doc__,
    options=NewOptions,
    run=write_settings,
    changes=True,
    exit_codes={ExitCode.REFUSED: "no deployment meets the limits, or an option is invalid"},
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
