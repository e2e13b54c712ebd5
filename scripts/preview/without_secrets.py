"""Preview without access to secrets: stand-ins in the state and settings, and a separate backend and passphrase.

The engine decrypts settings and state before any preview, but exports the state without decrypting it.
So a preview of unreviewed code needs neither the passphrase nor the Cloud KMS key.
An added or removed secret shows as a change, but a changed value does not.
"""

import contextlib
import json
import secrets
from collections.abc import Callable, Generator, Mapping
from typing import Final, cast

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.engine import runner
from gemma_serving.engine.backend import variable
from gemma_serving.engine.exported_state import (
    SECRET_SIGNATURE,
    ResourceState,
    StackDeployment,
    deployment_of,
    is_secret,
    read_deployment,
    write_deployment,
)
from gemma_serving.engine.previewed import scratch_backend
from gemma_serving.stacks.loading import read_yaml

STAND_IN: Final = "[not read]"
"""The value of every secret."""
_PASSPHRASE: Final = "PULUMI_CONFIG_PASSPHRASE"  # noqa: S105 - the variable's name
_ENGINE_KEYS: Final = ("encryptionsalt", "secretsprovider", "encryptedkey")
_KEY: Final = "gemma-serving:standIn"
_LABELS: Final = frozenset({"effectiveLabels", "pulumiLabels"})
"""Outputs that pulumi-gcp marks as secrets, regardless of the labels."""
_ATTRIBUTION: Final = {"goog-pulumi-provisioned": "true"}
"""The label that pulumi-gcp adds automatically."""


@contextlib.contextmanager
def without_secrets(stack: str) -> Generator[bool]:
    """Replace a stack's secrets with stand-ins, and yield whether the backend knows it. The current folder must be a copy.

    Raises ScriptError if the state cannot be read.
    """
    try:
        deployed = read_deployment(stack)
    except CommandRefusedError:  # the backend has no such stack
        deployed = None
    path = runner.project_folder() / f"Pulumi.{stack}.yaml"
    text = path.read_text(encoding="utf-8")
    with scratch_backend(stack), variable(_PASSPHRASE, secrets.token_hex()):  # a random passphrase, never stored
        path.write_text("", encoding="utf-8")
        runner.query(["stack", "init", stack])
        runner.query(["config", "set", "--secret", _KEY, STAND_IN, "--stack", stack])
        made = as_mapping(read_yaml(path.read_text(encoding="utf-8")))
        path.write_text(settings_with_stand_ins(text, made), encoding="utf-8")
        if deployed is not None:
            write_deployment(stack, with_stand_ins(stack, deployed, read_deployment(stack)))
        yield deployed is not None


def settings_with_stand_ins(text: str, made: Mapping[str, object]) -> str:
    """Return a settings file with the salt and the stand-ins of `made`, which the engine wrote for one. Comments are lost."""
    encrypted = as_mapping(made.get("config")).get(_KEY)

    def stand_in(value: object, _key: str) -> object:
        # The engine treats a mapping with this single key as a secret.
        block = as_mapping(value)
        return encrypted if list(block) == ["secure"] and not isinstance(block["secure"], dict | list) else None

    document = as_mapping(_replaced(read_yaml(text), stand_in))
    kept = {key: value for key, value in document.items() if key not in _ENGINE_KEYS}
    return json.dumps({**kept, "encryptionsalt": made["encryptionsalt"]}, default=str)


def with_stand_ins(stack: str, deployed: StackDeployment, empty: StackDeployment) -> StackDeployment:
    """Return a state with plain-text stand-ins, for a backend whose stack was exported as `empty`."""
    inner = as_mapping(deployed.document.get("deployment"))
    provider = as_mapping(empty.document.get("deployment")).get("secrets_providers")
    changed = deployment_of(stack, {**deployed.document, "deployment": {**inner, "secrets_providers": provider}})
    return changed.changed(resources=[_stripped(resource) for resource in changed.resources], pending=())


def _stripped(resource: ResourceState) -> ResourceState:
    labels = {**as_mapping(resource.inputs.get("labels")), **_ATTRIBUTION}

    def stand_in(value: object, key: str) -> object:
        mark, signature = SECRET_SIGNATURE
        plaintext = json.dumps(labels if key in _LABELS else STAND_IN)
        return {mark: signature, "plaintext": plaintext} if is_secret(value) else None

    return ResourceState(as_mapping(_replaced(resource.raw, stand_in)))


def _replaced(value: object, stand_in: Callable[[object, str], object], key: str = "") -> object:
    """Return a document with its stand-ins; `stand_in` returns None for a value that is not a secret. A list has the key of its block."""
    found = stand_in(value, key)
    if found is not None:
        return found
    if isinstance(value, dict):
        return {name: _replaced(item, stand_in, name) for name, item in as_mapping(cast("object", value)).items()}
    if isinstance(value, list):
        return [_replaced(item, stand_in, key) for item in as_sequence(cast("object", value))]
    return value
