r"""Create the settings file for a new stack.

    gemma new chat --model 12B
    gemma new chat --model google/gemma-4-E4B-it \
        --accelerator v6e-1 --workload in=1500,out=300,users=32
    gemma new chat --model 26B-A4B --budget 2
    gemma new chat --model 31B --profile latency

Selects the cheapest deployment of the model that serves the workload: accelerator, locations, precision and vLLM options. Writes
`Pulumi.NAME.yaml` with comments, and prints its plan and the next commands. Creates nothing in Google Cloud. Exit code 2: no deployment meets the
limits, or an option is invalid.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from contracts.errors import CommandRefusedError
from contracts.exit_codes import ExitCode
from scripts.cli.command import Command, run_command, say, tell
from scripts.cli.options import JsonSwitch, Option

if TYPE_CHECKING:
    from pathlib import Path

    from engine.secrets_provider import KmsKey
    from planning.question.types import Plan
    from planning.solve.search import ServiceLimits, Solution
    from scripts.new.profiles import UsageProfile
    from stacks.settings import Settings

DEFAULT_WORKLOAD: Final = "in=700,out=300,users=8"
"""Eight concurrent users of a chat: the workload of the shipped stack `l4-qat`."""
PROFILE_NAMES: Final = "latency, throughput, batch or spiky"


def _profile_name(text: str) -> str:
    if text not in PROFILE_NAMES.replace(" or ", ", ").split(", "):
        raise ValueError(PROFILE_NAMES)
    return text


@dataclass(frozen=True, kw_only=True)
class NewOptions:
    """Options of the command."""

    name: Annotated[
        str,
        Option(
            "Stack name: up to 30 lowercase letters, digits and hyphens, a letter first.",
            positional=True,
        ),
    ]
    model: Annotated[
        str,
        Option("Hugging Face id, or a size of Gemma 4: E2B, E4B, 12B, 26B-A4B, 31B.", metavar="M"),
    ]
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
            f"Workload of one slice or instance. docs/planning-workloads.md lists the keys. Default: {DEFAULT_WORKLOAD}, "
            "without users for a profile of throughput or batch.",
            metavar="LIST",
        ),
    ] = None
    profile: Annotated[
        str | None,
        Option(
            f"Settings for a kind of use: {PROFILE_NAMES}. docs/new.md describes them.",
            parse=_profile_name,
            metavar="NAME",
        ),
    ] = None
    region: Annotated[tuple[str, ...], Option("Allowed region; repeatable.", metavar="REGION", repeated=True)] = ()
    email: Annotated[
        str | None, Option("E-mail address that alerts are sent to. Default: none.", metavar="ADDRESS")
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


def _new(options: NewOptions) -> ExitCode:
    from engine.secrets_provider import parse_key
    from scripts.new.profiles import Shaped, shaped
    from scripts.plan.face import FileComments, new_file, write_stack

    _require_address(options.email)
    key = parse_key(options.secrets_key) if options.secrets_key else None
    path = new_file(options.name, option="NAME", overwrite=options.force)
    if key is not None:
        _require_no_other(path, key)
    replaced = path.exists()
    solution, limits, profile = _solved(options)
    found = Shaped(solution=solution) if profile is None else shaped(profile, solution)
    solution = found.solution
    revision = _revision(solution.subject.resolved.model_id)
    write_stack(
        options.name,
        solution,
        limits,
        prices=None,
        overwrite=options.force,
        revision=revision,
        email=options.email,
        goal="cost" if profile is None else profile.goal,
        comments=FileComments(head=(*found.remarks, *found.unmet), reasons=found.reasons),
    )
    if key is not None and not replaced:
        _name_key(path, key)
    settings, plan = _planned(path)
    following = _next(options.name, settings, key)
    if options.as_json:
        print(
            json.dumps(
                _report(path, solution, plan, following, revision=revision, replaced=replaced)
                | {"profile": options.profile, "profile_unmet": list(found.unmet)},
                allow_nan=False,
            )
        )
    else:
        _show(path, plan, following)
    for sentence in found.unmet:
        say("new", sentence)
    return ExitCode.DONE


def _require_address(email: str | None) -> None:
    """Raise CommandRefusedError if the settings do not accept an address."""
    from stacks.settings import AlertSettings

    try:
        AlertSettings.model_validate({} if email is None else {"email": email})
    except ValueError:
        raise CommandRefusedError(f"--email is {email}, but must be one address such as name@example.com.") from None


def _require_no_other(path: "Path", key: "KmsKey") -> None:
    """Raise CommandRefusedError if overwriting the file loses secrets or a salt of another provider."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if path.exists() and f"secretsprovider: {key.url}" not in text.splitlines():
        raise CommandRefusedError(
            f"{path.name} exists, and --secrets-key cannot change its secrets provider. Remove the option, then run "
            f"`pulumi stack change-secrets-provider {key.url} --stack {path.name.removeprefix('Pulumi.').removesuffix('.yaml')}`."
        )


def _name_key(path: "Path", key: "KmsKey") -> None:
    """Add the key to a new file, so that doctor checks it before the stack is created."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"secretsprovider: {key.url}\n")


def _solved(options: NewOptions) -> "tuple[Solution, ServiceLimits, UsageProfile | None]":
    """Return the deployment that meets the limits and is the best for the profile, by default the cheapest.

    Raises PlanningError with the closest one if none does.
    """
    from planning.errors import PlanningError
    from planning.question.workload import parse_workload
    from planning.solve.candidates import checkpoints_of, rented
    from planning.solve.search import ServiceLimits, solve
    from scripts.plan.face import nothing_is_enough

    limits = ServiceLimits(max_usd_per_hour=options.budget)
    profile = _profile(options)
    workload = parse_workload(options.workload or (profile.workload if profile else DEFAULT_WORKLOAD))
    goal = profile.goal if profile else "cost"
    checkpoints = checkpoints_of(options.model)
    places = rented(options.region, accelerator=options.accelerator)
    suitable = tuple(hosts for hosts in places if profile is None or profile.suits(hosts[0]))
    answer = solve(workload, limits, goal=goal, checkpoints=checkpoints, places=suitable or places)
    if answer.chosen is None and len(suitable) < len(places):
        answer = solve(workload, limits, goal=goal, checkpoints=checkpoints, places=places)
    if answer.chosen is None:
        sentence = nothing_is_enough(answer).replace("--max-usd-per-hour", "--budget")
        raise PlanningError(
            f"{sentence[:1].upper()}{sentence[1:]} Pulumi.{options.name}.yaml was not written. Change a limit and retry."
        )
    return answer.chosen, limits, profile


def _profile(options: NewOptions) -> "UsageProfile | None":
    from scripts.new.profiles import USAGE_PROFILES

    return USAGE_PROFILES.get(options.profile or "")


def _revision(model: str) -> str | None:
    """Return the commit of the model's main branch. Report and return None if the hub did not return one."""
    from cloud.hub import main_commit
    from contracts.answers import Present, Unknown

    match main_commit(model):
        case Present(value=commit):
            return commit
        case Unknown(why=why):
            say(
                "new",
                f"{why}. modelRevision is not set. When the hub is reachable, run `gemma doctor` for the commit.",
            )
            return None


def _planned(path: "Path") -> "tuple[Settings, Plan]":
    """Return the settings of the written file and their plan."""
    from planning.planner import plan
    from scripts.cli.settings import NO_PROJECT
    from stacks.loading import from_file
    from stacks.planned import to_deployment

    settings = from_file(path, project=NO_PROJECT)
    return settings, plan(to_deployment(settings, path.parent))


def _next(name: str, settings: "Settings", key: "KmsKey | None") -> Sequence[str]:
    """Return the commands up to the first response of the model, in order."""
    from scripts.cli.settings import NO_PROJECT

    init = f"pulumi stack init {name}"
    commands = [
        init if key is None else f"{init} --secrets-provider={key.url}   # the key must exist: docs/ci-setup.md"
    ]
    if settings.project == NO_PROJECT:
        commands.append(f"pulumi config set gcp:project YOUR_PROJECT --stack {name}")
    commands.append(f"gemma doctor {name}")
    if not settings.has_secret("hfToken"):
        commands.append(f"gemma save_token {name} hfToken   # only for a checkpoint that needs one")
    if settings.tpu is not None:
        commands.append(f"gemma capacity {name}")
    if settings.weights == "bucket":
        commands.append(f"gemma stage_model {name}")
    return [*commands, f"gemma up {name}", f"gemma chat {name}"]


def _locations(settings: "Settings") -> str:
    return ", ".join(settings.tpu.zones if settings.tpu else settings.regions)


def _show(path: "Path", plan: "Plan", following: Sequence[str]) -> None:
    from scripts.cli.settings import NO_PROJECT
    from stacks.loading import from_file
    from stacks.planned import finding_text, headline, to_deployment
    from stacks.wording import StackWording

    settings = from_file(path, project=NO_PROJECT)
    wording = StackWording(to_deployment(settings, path.parent), path.stem.removeprefix("Pulumi."))
    tell(f"Wrote {path.name}.")
    tell(headline(plan))
    tell(f"List price: ${plan.cost.usd_per_hour:.2f}/h in {_locations(settings)}.")
    for finding in plan.findings:
        if finding.severity == "warn":
            tell(finding_text(finding, wording))
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
        "locations": list(deployment.tpu.zones) if resolved.is_tpu else [deployment.cloud_run.region],
        "fits": plan.fits,
        "usd_per_hour": round(plan.cost.usd_per_hour, 4),
        "start_s": round(plan.startup.ready_s),
        "findings": [finding.id for finding in plan.findings if finding.severity != "info"],
        "next": list(following),
    }


COMMAND: Final = Command(name="new", help=__doc__, options=NewOptions, run=_new)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
