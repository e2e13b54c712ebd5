"""Read, change, back up and write a stack's exported state (Pulumi's "deployment"): its resources and unfinished operations.

The format of `pulumi stack export` (pulumi/pulumi, sdk/go/common/apitype, UntypedDeployment and DeploymentV3).
Other content is kept as read, and secrets stay ciphertext.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.installation import home_folder
from gemma_serving.contracts.memory import write_private
from gemma_serving.contracts.proof import Asker, Proof
from gemma_serving.contracts.resource_types import BUCKET_TYPE
from gemma_serving.engine import runner
from gemma_serving.engine.backend import drop_empty_side_file

BACKUP_FOLDER: Final = Path(".work") / "deployments"
UNKNOWN: Final = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""A value that is known only after `up` (pulumi/pulumi, sdk/go/common/resource/plugin/rpc.go)."""
SECRET_SIGNATURE: Final = ("4dabf18193072939515e22adb298388d", "1b47061264138c4ac30d75fd1eb44270")
"""Key and value that mark a secret (pulumi/pulumi, sdk/go/common/resource/sig)."""
IMPORT_LIMIT_S: Final = 300.0

NO_CHECKPOINT: Final = "failed to load checkpoint"
"""The engine's error for a state that it cannot read."""
_UNREADABLE: Final = (NO_CHECKPOINT, "could not deserialize deployment", "unmarshal", "unexpected EOF")
_NEWEST_VERSION: Final = 4
_PROTECTION: Final = "deletionProtection"
_DELETE_HOOKS: Final = "BeforeDelete"


class StateUnreadableError(ScriptError):
    """The stack's state exists but is unreadable. `cut_off`: the document is incomplete, so nothing in it can be used."""

    def __init__(self, message: str, *, cut_off: bool) -> None:
        super().__init__(message)
        self.cut_off = cut_off


@dataclass(frozen=True, slots=True)
class ResourceState:
    """One resource of the state. `raw` is the whole entry."""

    raw: Mapping[str, object]

    @property
    def urn(self) -> str:
        """The URN."""
        return _text(self.raw, "urn")

    @property
    def type(self) -> str:
        """The type, such as gcp:compute/network:Network."""
        return _text(self.raw, "type")

    @property
    def name(self) -> str:
        """The name in the program, the last part of the URN."""
        return self.urn.rpartition("::")[2]

    @property
    def id(self) -> str:
        """The provider's id. Empty for components and for resources that were never created."""
        return _text(self.raw, "id")

    @property
    def parent(self) -> str:
        """The parent's URN, or an empty string."""
        return _text(self.raw, "parent")

    @property
    def inputs(self) -> Mapping[str, object]:
        """The inputs. Secrets are ciphertext."""
        return as_mapping(self.raw.get("inputs"))

    @property
    def outputs(self) -> Mapping[str, object]:
        """The outputs. Secrets are ciphertext."""
        return as_mapping(self.raw.get("outputs"))

    @property
    def delete(self) -> bool:
        """True if it was replaced and is pending deletion."""
        return bool(self.raw.get("delete"))

    def changed(self, **values: object) -> "ResourceState":
        """Return the resource with these keys of its entry replaced. None removes a key."""
        merged = {**self.raw, **values}
        return ResourceState({key: value for key, value in merged.items() if value is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOperation:
    """An unfinished operation: creating, updating, deleting, reading or importing."""

    kind: str
    resource: ResourceState


@dataclass(frozen=True, slots=True, kw_only=True)
class StackDeployment:
    """A stack's state. `document` is the export as read, with all other content."""

    document: Mapping[str, object]
    resources: tuple[ResourceState, ...]
    pending: tuple[PendingOperation, ...]

    @property
    def urns(self) -> frozenset[str]:
        """URNs of all resources that are not pending deletion."""
        return frozenset(resource.urn for resource in self.resources if not resource.delete)

    def changed(
        self, *, resources: Sequence[ResourceState] | None = None, pending: Sequence[PendingOperation] | None = None
    ) -> "StackDeployment":
        """Return the deployment with other resources or pending operations."""
        kept = self if pending is None else replace(self, pending=tuple(pending))
        return kept if resources is None else replace(kept, resources=tuple(resources))

    def text(self) -> str:
        """Return the deployment in the format of `pulumi stack export`."""
        inner: dict[str, object] = {
            **as_mapping(self.document.get("deployment")),
            "resources": [dict(resource.raw) for resource in self.resources],
            "pending_operations": [{"resource": dict(one.resource.raw), "type": one.kind} for one in self.pending],
        }
        if not self.pending:
            del inner["pending_operations"]
        return json.dumps({**self.document, "deployment": inner}, indent=4)


def read_deployment(stack: str) -> StackDeployment:
    """Return the stack's deployment.

    Raises CommandRefusedError if the stack does not exist, StateUnreadableError if its state cannot be read, and PulumiFailedError.
    """
    drop_empty_side_file(stack)
    try:
        text = runner.query(["stack", "export", "--stack", stack])
    except runner.PulumiFailedError as error:
        if any(words in str(error) for words in _UNREADABLE):
            raise unreadable_state(stack, str(error)) from None
        raise
    return parse_deployment(stack, text)


def parse_deployment(stack: str, text: str) -> StackDeployment:
    """Return the deployment in an export or a backend's file. Raises StateUnreadableError."""
    try:
        document = as_mapping(json.loads(text))
    except ValueError as error:
        raise unreadable_state(stack, str(error)) from None
    if "checkpoint" in document:
        latest = as_mapping(document["checkpoint"]).get("latest")
        document = {"version": document.get("version"), "deployment": latest}
    return deployment_of(stack, document)


def deployment_of(stack: str, document: Mapping[str, object]) -> StackDeployment:
    """Return the deployment in the document of an export. Raises StateUnreadableError."""
    version = document.get("version")
    if not isinstance(version, int):
        raise unreadable_state(stack, "it has no version")
    if version > _NEWEST_VERSION:
        raise StateUnreadableError(
            f"The state of stack {stack} has format version {version}, but this program supports up to version {_NEWEST_VERSION}. "
            "Update this project.",
            cut_off=False,
        )
    inner = as_mapping(document.get("deployment"))
    resources = tuple(_resource(stack, raw) for raw in as_sequence(inner.get("resources")))
    pending = tuple(
        PendingOperation(kind=_text(entry, "type"), resource=_resource(stack, entry.get("resource")))
        for entry in map(as_mapping, as_sequence(inner.get("pending_operations")))
    )
    return StackDeployment(document=document, resources=resources, pending=pending)


def unprotected(deployment: StackDeployment, *, keep_bucket: bool) -> StackDeployment:
    """Return the deployment without protection, on request with retained buckets."""
    return deployment.changed(resources=[_unprotected(item, keep_bucket=keep_bucket) for item in deployment.resources])


def _unprotected(resource: ResourceState, *, keep_bucket: bool) -> ResourceState:
    changes: dict[str, object] = {"protect": None} if "protect" in resource.raw else {}
    # A bucket of a former release has one, and with it `destroy` needs the program.
    if _DELETE_HOOKS in as_mapping(resource.raw.get("resourceHooks")):
        changes["resourceHooks"] = None
    for key, properties in (("inputs", resource.inputs), ("outputs", resource.outputs)):
        if properties.get(_PROTECTION) is True:
            changes[key] = {**properties, _PROTECTION: False}
    if keep_bucket and resource.type == BUCKET_TYPE:
        changes["retainOnDelete"] = True
    return resource.changed(**changes) if changes else resource


def back_up(stack: str, text: str) -> Path:
    """Write an export to a new private file, and return its path."""
    folder = home_folder() / BACKUP_FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{stack}-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}.json"
    write_private(path, text, new=True)
    return path


def write_deployment(stack: str, deployment: StackDeployment) -> None:
    """Replace the stack's state. The engine checks it first, and writes it completely or not at all.

    `pulumi stack import` drops pending creations. Raises ScriptError if the engine rejects the state.
    """
    drop_empty_side_file(stack)
    with tempfile.TemporaryDirectory(prefix="deployment-") as folder:  # mode 0700
        path = Path(folder) / f"{stack}.json"
        path.write_text(deployment.text(), encoding="utf-8")
        runner.query(["stack", "import", "--stack", stack, "--file", str(path)], limit_s=IMPORT_LIMIT_S)


def write_empty(stack: str, proof: Proof) -> None:
    """Replace the stack's state with one without resources, as the proof allows. Raises ScriptError if the engine rejects it."""
    proof.require(Asker(stack=stack))
    document = {"version": 3, "deployment": {"manifest": {"time": "0001-01-01T00:00:00Z", "magic": "", "version": ""}}}
    write_deployment(stack, StackDeployment(document=document, resources=(), pending=()))


def is_passphrase_error(text: str) -> bool:
    """Return whether the engine reports that it cannot decrypt: the passphrase is wrong or not set, or the Cloud KMS key denies access.

    An export decrypts nothing, so it succeeds without either.
    """
    return any(words in text for words in ("passphrase", "get stack secrets manager", "message authentication failed"))


def secrets_provider_in(document: Mapping[str, object]) -> tuple[str, str]:
    """Return what encrypts the secrets of a state, such as `passphrase`, and the salt of the passphrase; empty if it has none."""
    found = as_mapping(as_mapping(document.get("deployment")).get("secrets_providers"))
    return _text(found, "type"), _text(as_mapping(found.get("state")), "salt")


def wrong_passphrase(stack: str) -> StateUnreadableError:
    """Return the error for a wrong passphrase, a key without access, or a settings file with another salt than the state."""
    return StateUnreadableError(
        f"The state of stack {stack} cannot be decrypted. Set PULUMI_CONFIG_PASSPHRASE to its passphrase. If it is set, or "
        f"Pulumi.{stack}.yaml has a Cloud KMS key, run `gemma doctor {stack}`: it finds a wrong passphrase, key or salt. "
        f"If the passphrase or key is lost, run `gemma teardown {stack}` to delete the resources anyway.",
        cut_off=False,
    )


def is_secret(value: object) -> bool:
    """Return whether a value of a deployment is a secret."""
    key, mark = SECRET_SIGNATURE
    return as_mapping(value).get(key) == mark


def type_in(urn: str) -> str:
    """Return the type in a URN, without its parents' types. Empty for other text."""
    parts = urn.split("::")  # urn:pulumi:STACK, PROJECT, TYPE, NAME
    return parts[2].rpartition("$")[2] if len(parts) > 3 else ""  # noqa: PLR2004 - those four


def _resource(stack: str, raw: object) -> ResourceState:
    resource = ResourceState(as_mapping(raw))
    if not resource.urn or not resource.type:
        raise unreadable_state(stack, "a resource has no URN or no type")
    return resource


def unreadable_state(stack: str, problem: str) -> StateUnreadableError:
    """Return the error for a state that the engine cannot read or decrypt, with its words."""
    if is_passphrase_error(problem):
        return wrong_passphrase(stack)
    return StateUnreadableError(
        f"The state of stack {stack} cannot be read ({problem.rstrip('.')}). It may have been truncated by an interrupted write. "
        f"Run `gemma up {stack}`, which repairs it.",
        cut_off=True,
    )


def _text(raw: Mapping[str, object], key: str) -> str:
    return str(raw.get(key) or "")
