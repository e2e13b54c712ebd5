"""A stack's outputs, as docs/contracts.md (section 7) promises them."""

import json
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from scripts.errors import ScriptError
from scripts.pulumi import engine

_CONFIG = ConfigDict(alias_generator=to_camel, frozen=True, extra="ignore")


class Tunnel(BaseModel):
    """How to reach a server that has no public address; `argv` forwards `local_port` of this machine."""

    model_config = _CONFIG
    argv: tuple[str, ...]
    local_port: int


class SmokeThresholds(BaseModel):
    """What the smoke checks want; times in seconds, rates in tokens a second."""

    model_config = _CONFIG
    startup_budget_s: float
    max_ttft_s: float
    min_decode_tok_per_s: float
    min_burst_tok_per_s: float | None
    burst_requests: int
    max_model_len: int | None
    expect_reasoning: bool
    expect_tool_calls: bool


class StackOutputs(BaseModel):
    """What a deployed stack says about itself. `plan` is the plan as `scripts.plan --json` prints it."""

    model_config = _CONFIG
    target: Literal["tpu", "cloud-run"]
    model: str
    served_model: str
    endpoint: str
    auth: Literal["id-token", "tunnel", "none"]
    tunnel: Tunnel | None = None
    image: str
    plan: Mapping[str, object]
    smoke: SmokeThresholds
    labels: Mapping[str, str]
    project: str
    location: str


class StateResource(BaseModel):
    """One resource of a state: its type and its URN; `id` is empty for components."""

    model_config = _CONFIG
    type: str
    urn: str
    id: str = ""


class _Deployment(BaseModel):
    resources: tuple[StateResource, ...] | None = None


class _Checkpoint(BaseModel):
    deployment: _Deployment | None = None


def stack_outputs(stack: str) -> StackOutputs:
    """Read the outputs of a deployed stack. Raises ScriptError where the stack is missing, was not deployed, or is not one of this project."""
    raw = json.loads(engine.query(["stack", "output", "--json", "--show-secrets", "--stack", stack]))
    if not raw:
        raise ScriptError(f"Stack {stack} has no outputs: it is not deployed; run `pulumi up --stack {stack}`.")
    try:
        return StackOutputs.model_validate(raw)
    except ValidationError as error:
        missing = ", ".join(sorted({str(details["loc"][0]) for details in error.errors()}))
        raise ScriptError(
            f"Stack {stack} does not have the outputs that this script reads ({missing}); run `pulumi up --stack {stack}` with this version of the project."
        ) from None


def stack_resources(stack: str) -> tuple[StateResource, ...]:
    """Read which resources the backend's state holds, without the stack itself and its providers. Raises ScriptError where the stack is missing."""
    checkpoint = _Checkpoint.model_validate_json(engine.query(["stack", "export", "--stack", stack]))
    resources = (checkpoint.deployment.resources if checkpoint.deployment else None) or ()
    return tuple(
        resource for resource in resources if not resource.type.startswith(("pulumi:pulumi:", "pulumi:providers:"))
    )
