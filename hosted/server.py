"""Plan and declare a server inside a component: with the settings, rules, resources and hooks of a stack."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pulumi

from contracts.fields import camel_case
from contracts.labels import Ownership
from contracts.naming import Names, NamingError
from contracts.outputs import StackOutputs
from hosted.kinds import KINDS, Kind
from hosted.server_settings import ServerInputs, plain_mapping
from planning.data.images import DEFAULT_IMAGES, IMAGES
from planning.question.types import Plan
from planning.rules.findings import ACCEPTABLE_IDS
from stacks.base import Context
from stacks.loading import SettingsError
from stacks.planned import BlockedError, finding_text, today
from stacks.preview_lines import preview_lines
from stacks.program import UserError, deploy, planned_question
from stacks.scope import ServerScope
from stacks.secrets import SECRET_KEYS
from stacks.wording import StackWording, phrases

_SECRET_INPUTS: Final[Mapping[str, str]] = {"hfToken": "hf_token", "apiKey": "api_key"}
"""Input of each secret."""
_BUILT_IMAGES: Final = frozenset(name for name, image in IMAGES.items() if image.build_context)
"""Images that a stack builds, and a component does not."""


class RefusedError(ValueError):
    """A component is refused. The message has one sentence per error and names the inputs."""


def planned_server(kind: Kind, name: str, args: Mapping[str, Any], scope: ServerScope) -> Context:
    """Plan a server, log the plan, and return what its resources need. Declares nothing.

    Args:
        kind: its kind.
        name: name of the component in the program.
        args: its inputs, by Python name.
        scope: where its resources will go.

    Raises:
        RefusedError: the inputs are invalid, or findings block the server.
    """
    try:
        return _planned(_inputs(kind, name, args), args, scope)
    except UserError as error:
        raise RefusedError(str(error)) from None


def declared_server(context: Context) -> StackOutputs:
    """Declare the resources of a server and return its outputs. Raises RefusedError if the project is not ready."""
    try:
        return deploy(context)
    except UserError as error:
        raise RefusedError(str(error)) from None


def _inputs(kind: Kind, name: str, args: Mapping[str, Any]) -> ServerInputs:
    """Return the inputs of a component. Raises SettingsError for one whose value is known only after `up`."""
    title = f"{kind.name} {name}"
    other = {"settings", *_SECRET_INPUTS.values()}
    given = {camel_case(key): value for key, value in args.items() if key not in other and value is not None}
    return ServerInputs(
        kind=kind,
        name=name,
        given=plain_mapping(given, title, place=""),
        settings=plain_mapping(args.get("settings") or {}, title, place="settings"),
        secrets=tuple(key for key in SECRET_KEYS if args.get(_SECRET_INPUTS[key]) is not None),
    )


def _planned(inputs: ServerInputs, args: Mapping[str, Any], scope: ServerScope) -> Context:
    settings = inputs.validated()
    date = today()
    try:
        subject, plan, wording = planned_question(settings, date)
    except UserError as error:
        raise RefusedError(inputs.worded(f"{inputs.title}: {error}")) from None
    words = _InputWording(inputs, wording)
    for line in preview_lines(plan, inputs.name, words):
        text = inputs.worded(line.text)
        if text:
            (pulumi.log.warn if line.severity == "warn" else pulumi.log.info)(f"{inputs.name}: {text}")
    _require_unblocked(plan, inputs, words)
    return Context(
        settings=settings,
        subject=subject,
        plan=plan,
        names=_names(inputs, settings.project),
        ownership=Ownership(project=pulumi.get_project(), stack=pulumi.get_stack()),
        secrets={key: pulumi.Output.secret(args[_SECRET_INPUTS[key]]) for key in settings.secrets},
        scope=replace(scope, words=inputs.worded),
    )


def _names(inputs: ServerInputs, project: str) -> Names:
    """Return the names of Google's resources: `gemma-STACK-NAME`, because a program can have several servers and stacks."""
    stack = pulumi.get_stack()
    try:
        return Names(project=project, stack=f"{stack}-{inputs.name}")
    except NamingError:
        raise SettingsError(
            f'{inputs.title}: names of Google\'s resources contain the stack and the component, "{stack}-{inputs.name}". Use up to 30 '
            "lower-case letters, digits and hyphens for both together, starting with a letter."
        ) from None


def _require_unblocked(plan: Plan, inputs: ServerInputs, words: "_InputWording") -> None:
    """Raise BlockedError if findings block the server and were not accepted."""
    if not plan.stopping:
        return
    lines = [inputs.worded(finding_text(finding, words)) for finding in plan.stopping]
    acceptable = ", ".join(finding.id for finding in plan.stopping if finding.id in ACCEPTABLE_IDS)
    accept = [f"To deploy anyway, set settings.acceptFindings: [{acceptable}]."] if acceptable else []
    ids = ", ".join(finding.id for finding in plan.stopping)
    raise BlockedError("\n".join([f"{inputs.title} is blocked by {ids}. Nothing was changed.", *lines, *accept]))


@dataclass(frozen=True, slots=True)
class _InputWording:
    """Fields of the planner as inputs of the component."""

    inputs: ServerInputs
    wording: StackWording

    def key(self, path: str) -> str:
        """Return the input, or its key in `settings`."""
        return self.inputs.kind.input_of(self.wording.key(path))

    def change(self, changes: Mapping[str, object]) -> str | None:
        """Return the inputs to set and to remove, or None if no component can express the change."""
        found = dict(self.wording.file_changes(changes))
        if not found or found.get("image") in _BUILT_IMAGES:
            return None
        own, target = self.inputs.kind, found.pop("target", None)
        kind = next((one for one in KINDS if one.target == target), own)
        if kind is not own:
            found.pop(own.block, None)
        if found.get("image") == DEFAULT_IMAGES[kind.target]:
            found.pop("image")
        stated = {key: value for key, value in found.items() if value is not None or self.inputs.states(key)}
        text = " and ".join(phrases({kind.input_of(key): value for key, value in stated.items()}))
        return text if kind is own else f"use a {kind.name} with {text.removeprefix('set ')}"
