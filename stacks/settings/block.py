"""A block of settings, and what one field of it says beside its type: who judges it, and what its change does."""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

EffectName = Literal["nothing", "update", "capacity", "service"]


@dataclass(frozen=True, slots=True)
class Judged:
    """The field of the planner's question that a setting gives: `tpu.provisioning_model` (`planning.question.types.Deployment`)."""

    path: str


@dataclass(frozen=True, slots=True)
class OnChange:
    """What a change of a setting, or of a setting below it, does to what runs. One without an effect changes the server itself.

    `nothing`: it changes the plan, the outputs, or a wait; where it changes the server, its arguments or its environment differ too. `update`:
    resources beside the server change. `capacity`: the inputs of the provider `gcp-tpu` whose change replaces the queued resource. `service`:
    another service of Cloud Run.
    """

    name: EffectName


class Block(BaseModel):
    """Camel-case keys in the file, unknown keys refused, no value converted silently, nothing changed later."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=False,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )
