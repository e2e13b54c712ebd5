"""A new stack: its settings file, its plan, and the next commands."""

import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from msgspec import structs

from gemma_serving.cloud import hub
from gemma_serving.cloud.model_files import read_model
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.installation import PACKAGE
from gemma_serving.contracts.settings_files import example_stacks, settings_file, stacks_in
from gemma_serving.contracts.spelling import did_you_mean
from gemma_serving.contracts.three_answers import Present, Unknown
from gemma_serving.engine.secrets_provider import provider_with
from gemma_serving.planning.cost.running_costs import usual_start_s
from gemma_serving.planning.data.checkpoints import CHECKPOINTS, Checkpoint, checkpoint_of
from gemma_serving.planning.data.images import image_words
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine.hardware import find_accelerator
from gemma_serving.planning.model.catalog import spec_of
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.recommendation import needs_text_alone
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.settings.workload import parse_workload
from gemma_serving.planning.solve.candidates import checkpoints_of, rentable_accelerators
from gemma_serving.planning.solve.search import ServiceLimits, Solution, SolutionSet, solve
from gemma_serving.planning.solve.text_only_start import text_only
from gemma_serving.scripts.cli.command import print_progress, print_result, print_text
from gemma_serving.scripts.cli.prompts import YES, answered
from gemma_serving.scripts.init.init_options import DEFAULT_WORKLOAD, InitOptions
from gemma_serving.scripts.plan.api import (
    Pasted,
    StackFile,
    given_options,
    new_file,
    nothing_is_enough,
    write_copy,
    write_stack,
)
from gemma_serving.scripts.stack.settings import NO_PROJECT
from gemma_serving.stacks.extra_checkpoints import staging_command
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import finding_text, headline, to_question
from gemma_serving.stacks.settings_wording import StackWording


def write_settings(options: InitOptions, *, first: Sequence[str] = (), also: Sequence[str] = ()) -> ExitCode:
    """Write the settings file, and print its plan and the next commands, which begin with `first`. Raises PlanningError, ScriptError.

    `also` are files that the caller writes.
    """
    path = new_file(options.name, option="NAME", overwrite=options.force)
    replaced, provider = path.exists(), _provider(path, options)
    image: str | None = None
    own: Pasted | None = None
    if options.source:
        from gemma_serving.scripts.init.pasted_stack import pasted_solution  # noqa: PLC0415 - only with --from

        own, solution = pasted_solution(options)
        image = _written(options, solution, provider, path.parent, own)
    elif options.like:
        _copy(options, options.like, path)
    else:
        image = _solved_file(options, provider, path.parent)
    settings = from_file(path, project=NO_PROJECT)
    files = [path.name, *also, *_copy_image(settings.image.build_context, path.parent)]
    question = to_question(settings, path.parent)
    planned = plan(question)
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
            **({} if own is None else {"pasted": asdict(own)}),
        }
        print_text(json.dumps(report, allow_nan=False))
    else:
        wording = StackWording(question, options.name)
        warnings = [finding_text(finding, wording) for finding in planned.findings if finding.severity != "info"]
        price = f"Price: ${planned.cost.usd_per_hour:.2f}/h in {', '.join(places)}."
        about = filter(
            None, (_converted(options, settings), image and f"Image: {image_words(image)}.", _inputs(settings))
        )
        read = () if own is None else own.listed()
        for text in (f"Wrote {', '.join(files)}.", headline(planned), *about, price, *warnings, *read):
            print_result(text)
        print_text("\nNext:\n" + "".join(f"  {command}\n" for command in commands), end="")
    return ExitCode.DONE


def _copy(options: InitOptions, like: str, path: Path) -> None:
    """Write a copy of another stack's settings file. Raises CommandRefusedError."""
    others = [name for name in given_options(options) if name not in {"name", "like", "force", "as-json", "ci"}]
    if others:
        raise CommandRefusedError(f"--like copies a file as it is. Remove --{others[0]}, and change the copy.")
    source = settings_file(like, path.parent)
    if not source.is_file():
        known = sorted({*stacks_in(path.parent), *example_stacks()})
        listed = did_you_mean(like, known) or f" Pass one of {', '.join(known)}."
        raise CommandRefusedError(f"--like {like}: no stack and no example has this name.{listed}")
    write_copy(source, path)


def _copy_image(context: str | None, root: Path) -> Sequence[str]:
    """Copy the build context of one of this project's images, which only a checkout has, and return its files."""
    if not context or (root / context).exists() or not (PACKAGE / context).is_dir():
        return ()
    shutil.copytree(PACKAGE / context, root / context, ignore=shutil.ignore_patterns("__pycache__"))
    return [path.relative_to(root).as_posix() for path in sorted((root / context).rglob("*")) if path.is_file()]


def _solved_file(options: InitOptions, provider: str, root: Path) -> str | None:
    """Write the file of the best deployment, and return the image that it names. Raises PlanningError."""
    return _written(options, _for_text(_solved(options)), provider, root)


def _written(options: InitOptions, found: Solution, provider: str, root: Path, own: Pasted | None = None) -> str | None:
    """Write the file of a deployment, and return the image that it names."""
    model = options.model if options.config else found.served.checkpoint.id
    revision = own.revision if own is not None else None
    is_hidden = False
    if not revision:
        revision, is_hidden = _revision(model, options)
    file = StackFile(
        name=options.name,
        solution=found,
        limits=ServiceLimits(max_usd_per_hour=options.budget),
        revision=revision,
        source=own.source if own is not None else "",
        own_model=(options.model, _inside(options.config, root)) if options.config else None,
        is_off_hub=is_hidden,
        email=options.email,
        secrets_provider=provider,
    )
    write_stack(file)
    return found.image


def _for_text(found: Solution) -> Solution:
    """Return the same for text only if it then starts faster, unless the workload has other inputs or the user answers one question with yes."""
    after = text_only(found.subject)
    if after is None or not needs_text_alone(found.answer.workload):
        return found
    before, now = found.subject.startup, after.startup
    first = round((before.total_s - now.total_s) / 60)
    later = round((usual_start_s(before) - usual_start_s(now)) / 60)
    each = "each start" if first == later else f"the first start, {later} min for each later one"
    question = f"Images, too? About {first} min more for {each}"
    if sys.stdin.isatty() and answered(question, "no", without_terminal="").lower() in YES:
        return found
    return structs.replace(found, subject=after)


def _provider(path: Path, options: InitOptions) -> str:
    """Return the URL of the key. Raises CommandRefusedError for a file with another provider's secrets or salt."""
    if not options.secrets_key:
        return ""
    url = provider_with(options.secrets_key)
    if path.exists() and f"secretsprovider: {url}" not in path.read_text(encoding="utf-8").splitlines():
        raise CommandRefusedError(
            f"{path.name} exists, and --secrets-key cannot change its secrets provider. Remove the option, then run "
            f"`pulumi stack change-secrets-provider {shlex.quote(url)} --stack {options.name}`."
        )
    return url


def _solved(options: InitOptions) -> Solution:
    """Return the cheapest deployment that meets the limits. Raises PlanningError with the closest one if none does."""
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


def _in_own_precision(answer: SolutionSet) -> Solution:
    """Return the best solution that keeps the precision of the file, or the best one if each converts it."""
    return next((one for one in answer.solutions if one.served.quantization is None), answer.solutions[0])


def _inputs(settings: Settings) -> str:
    """Return what a TPU server for text only rejects, and how to serve it; empty for another server."""
    limits = settings.vllm.limit_mm_per_prompt
    if settings.tpu is None or not limits or any(limits.values()):
        return ""
    return (
        "Text only: requests with images are rejected. To serve images too, remove vllm.limitMmPerPrompt from the file."
    )


def _converted(options: InitOptions, settings: Settings) -> str:
    """Return a sentence if vLLM converts the user's own file, with an accelerator that keeps its precision; else an empty string."""
    if not options.config or settings.quantization is None:
        return ""

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


def _same_as(config: Path, name: str) -> tuple[Checkpoint, ...]:
    """Return the Gemma 4 checkpoint with the dimensions and the precision of a config.json. Raises PlanningError if none has them."""
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
        f"{why}, but no tested checkpoint has these weights. To plan it anyway, run `gemma plan --config {shlex.quote(str(config))} "
        f"--accelerator A`; in a stack, set model and modelConfig."
    )


def _revision(model: str, options: InitOptions) -> tuple[str | None, bool]:
    """Return the commit of the model's main branch, and whether the hub does not show the user's own model.

    Report a hub that returned no commit, unless a local file describes a model that it does not show.
    """
    match hub.main_commit(model, f"run `gemma doctor {options.name}` later for the commit of the model"):
        case Present(value=commit):
            return commit, False
        case Unknown(cause="denied") if options.config:
            return None, True
        case Unknown(why=why):
            print_progress("init", f"{why}. The file is written without modelRevision.")
            return None, False


def _next(name: str, settings: Settings, provider: str, root: Path) -> Iterator[str]:
    """Yield the next commands. If the hub returned the model's commit, no token is needed to read its page."""
    if provider:
        yield f"pulumi stack init {name} --secrets-provider={provider}   # the key must exist: docs/ci.md"
    if settings.project == NO_PROJECT:
        yield "export GOOGLE_CLOUD_PROJECT=YOUR_PROJECT   # or set gcp:project"
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
