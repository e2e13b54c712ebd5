"""Make the settings file of a new stack: the cheapest deployment of a model that serves a workload, with comments.

    python -m scripts.new chat --model 12B
    python -m scripts.new chat --model google/gemma-4-E4B-it --accelerator v6e-1 --workload in=1500,out=300,users=32
    python -m scripts.new chat --model 26B-A4B --budget 2

The planner chooses what is left out: accelerator, places, precision, and the options of vLLM. It writes `Pulumi.NAME.yaml`, shows its
plan, and names the next commands. Nothing is created on Google Cloud. Exit code 2: nothing is enough, or the question is wrong.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from contracts.errors import CommandRefusedError
from contracts.exit_codes import ExitCode
from scripts.cli.command import Command, run_command
from scripts.cli.options import JsonSwitch, Option

if TYPE_CHECKING:
    from pathlib import Path

    from engine.secrets_provider import KmsKey
    from planning.question.types import Plan
    from planning.solve.search import ServiceLimits, Solution
    from stacks.settings import Settings

DEFAULT_WORKLOAD: Final = "in=700,out=300,users=8"
"""A chat turn, eight users at a time: the workload of the shipped stack `l4-qat`."""


@dataclass(frozen=True, kw_only=True)
class NewOptions:
    """Options of the command."""

    name: Annotated[
        str,
        Option("Name of the stack: up to 30 lower-case letters, digits and hyphens, a letter first.", positional=True),
    ]
    model: Annotated[
        str,
        Option("Hugging Face id, or a family of Gemma 4: E2B, E4B, 12B, 26B-A4B, 31B.", metavar="M"),
    ]
    accelerator: Annotated[
        str | None,
        Option("Only this accelerator, such as v6e-4 or L4; the cheapest that is enough without it.", metavar="A"),
    ] = None
    budget: Annotated[
        float | None, Option("Most US dollars that an hour of one slice or instance may cost.", metavar="USD", above=0)
    ] = None
    workload: Annotated[
        str,
        Option("What clients ask of one slice or instance; docs/planning.md lists the keys.", metavar="LIST"),
    ] = DEFAULT_WORKLOAD
    region: Annotated[
        tuple[str, ...], Option("Only this region. May be repeated.", metavar="REGION", repeated=True)
    ] = ()
    secrets_key: Annotated[
        str | None,
        Option(
            "Key in Cloud KMS that encrypts the stack's secrets, instead of a passphrase: projects/P/locations/L/keyRings/R/cryptoKeys/K.",
            metavar="KEY",
        ),
    ] = None
    force: Annotated[
        bool, Option("Replace an existing file. Secrets, their salt and keys of other namespaces stay.")
    ] = False
    as_json: JsonSwitch = False


def _new(options: NewOptions) -> ExitCode:
    from engine.secrets_provider import parse_key
    from scripts.plan.face import new_file, write_stack

    key = parse_key(options.secrets_key) if options.secrets_key else None
    path = new_file(options.name, option="NAME", overwrite=options.force)
    if key is not None:
        _require_no_other(path, key)
    replaced = path.exists()
    solution, limits = _solved(options)
    revision = _revision(solution.subject.resolved.model_id)
    write_stack(options.name, solution, limits, prices=None, overwrite=options.force, revision=revision)
    if key is not None and not replaced:
        _name_key(path, key)
    settings, plan = _planned(path)
    following = _next(options.name, settings, key)
    if options.as_json:
        print(
            json.dumps(_report(path, solution, plan, following, revision=revision, replaced=replaced), allow_nan=False)
        )
    else:
        _show(path, plan, following)
    return ExitCode.DONE


def _require_no_other(path: "Path", key: "KmsKey") -> None:
    """Raise CommandRefusedError if the file that is replaced has secrets, or a salt, of another provider: they would be lost."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if path.exists() and f"secretsprovider: {key.url}" not in text.splitlines():
        raise CommandRefusedError(
            f"{path.name} exists, and --secrets-key does not change what encrypts its secrets. Leave the option out, and run "
            f"`pulumi stack change-secrets-provider {key.url} --stack {path.name.removeprefix('Pulumi.').removesuffix('.yaml')}` afterwards."
        )


def _name_key(path: "Path", key: "KmsKey") -> None:
    """Add the key to a new file, so that the doctor checks it before the stack is made."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"secretsprovider: {key.url}\n")


def _solved(options: NewOptions) -> "tuple[Solution, ServiceLimits]":
    """Return the cheapest deployment that is enough. Raises PlanningError that names the nearest, if none is."""
    from planning.errors import PlanningError
    from planning.question.workload import parse_workload
    from planning.solve.candidates import checkpoints_of, rented
    from planning.solve.search import ServiceLimits, solve
    from scripts.plan.face import nothing_is_enough

    limits = ServiceLimits(max_usd_per_hour=options.budget)
    answer = solve(
        parse_workload(options.workload),
        limits,
        checkpoints=checkpoints_of(options.model),
        places=rented(options.region, accelerator=options.accelerator),
    )
    if answer.cheapest is None:
        sentence = nothing_is_enough(answer).replace("--max-usd-per-hour", "--budget")
        raise PlanningError(f"{sentence[:1].upper()}{sentence[1:]} Pulumi.{options.name}.yaml was not written.")
    return answer.cheapest, limits


def _revision(model: str) -> str | None:
    """Return the commit of the model's main branch; None, after a sentence that says so, if the hub did not state one."""
    from cloud.hub import main_commit
    from contracts.answers import Present, Unknown
    from scripts.cli.command import say

    match main_commit(model):
        case Present(value=commit):
            return commit
        case Unknown(why=why):
            say(
                "new",
                f"{why}. modelRevision is not set: `python -m scripts.doctor` names the commit once the hub answers.",
            )
            return None


def _planned(path: "Path") -> "tuple[Settings, Plan]":
    """Return the settings of the written file and their plan: what the next commands see."""
    from planning.planner import plan
    from scripts.cli.settings import NO_PROJECT
    from stacks.loading import from_file
    from stacks.planned import to_deployment

    settings = from_file(path, project=NO_PROJECT)
    return settings, plan(to_deployment(settings, path.parent))


def _next(name: str, settings: "Settings", key: "KmsKey | None") -> Sequence[str]:
    """Return the commands up to a first answer of the model, in their order."""
    from scripts.cli.settings import NO_PROJECT

    init = f"pulumi stack init {name}"
    commands = [init if key is None else f"{init} --secrets-provider={key.url}   # the key has to exist: docs/ci.md"]
    if settings.project == NO_PROJECT:
        commands.append(f"pulumi config set gcp:project YOUR_PROJECT --stack {name}")
    commands.append(f"python -m scripts.doctor --stack {name}")
    if not settings.has_secret("hfToken"):
        commands.append(f"python -m scripts.save_token hfToken --stack {name}   # only for a checkpoint that needs one")
    if settings.tpu is not None:
        commands.append(f"python -m scripts.capacity --stack {name}")
    if settings.weights == "bucket":
        commands.append(f"python -m scripts.stage_model --stack {name}")
    return [*commands, f"pulumi up --stack {name}", f"python -m scripts.connect chat --stack {name}"]


def _places(settings: "Settings") -> str:
    return ", ".join(settings.tpu.zones if settings.tpu else settings.regions)


def _show(path: "Path", plan: "Plan", following: Sequence[str]) -> None:
    from planning.rules.models import personal_checkpoint
    from planning.rules.registry import id_of
    from scripts.cli.settings import NO_PROJECT
    from stacks.loading import from_file
    from stacks.planned import finding_text, headline, to_deployment
    from stacks.wording import StackWording

    settings = from_file(path, project=NO_PROJECT)
    wording = StackWording(to_deployment(settings, path.parent))
    print(f"Wrote {path.name}.")
    print(headline(plan))
    print(f"It costs ${plan.cost.usd_per_hour:.2f} an hour at list prices, in {_places(settings)}.")
    for finding in plan.findings:
        if finding.severity == "warn" or finding.id == id_of(personal_checkpoint):
            print(finding_text(finding, wording))
    print("\nNext:")
    print("".join(f"  {command}\n" for command in following), end="")


def _report(
    path: "Path", solution: "Solution", plan: "Plan", following: Sequence[str], *, revision: str | None, replaced: bool
) -> dict[str, Any]:
    from planning.data.checkpoints import checkpoint_of

    resolved = solution.subject.resolved
    deployment = resolved.deployment
    return {
        "file": path.name,
        "replaced": replaced,
        "model": resolved.model_id,
        "model_revision": revision,
        "personal": checkpoint_of(resolved.model_id).is_personal,
        "accelerator": resolved.accelerator.name,
        "places": list(deployment.tpu.zones) if resolved.is_tpu else [deployment.cloud_run.region],
        "fits": plan.fits,
        "usd_per_hour": round(plan.cost.usd_per_hour, 4),
        "start_s": round(plan.startup.ready_s),
        "findings": [finding.id for finding in plan.findings if finding.severity != "info"],
        "next": list(following),
    }


COMMAND: Final = Command(name="new", help=__doc__, options=NewOptions, run=_new)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
