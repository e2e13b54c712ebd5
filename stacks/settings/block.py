"""A block of settings, and annotations of its fields: the planner's field, and the effect of a change."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel

EffectName = Literal["nothing", "update", "revision", "capacity", "service"]


@dataclass(frozen=True, slots=True)
class Judged:
    """Field of the planner's question set by a setting, such as `tpu.provisioning_model` (`planning.question.types.Deployment`)."""

    path: str


@dataclass(frozen=True, slots=True)
class OnChange:
    """Effect of a change to a setting, or to one below it, on the deployed stack. Without one, the server itself changes.

    `nothing`: only the plan, outputs or a wait change; if the server changes, its arguments or environment differ too. `update`: resources
    other than the server change. `revision`: the template of a Cloud Run service changes; a TPU machine does not restart its server.
    `capacity`: the inputs of the provider `gcp-tpu` whose change replaces the queued resource. `service`: a different Cloud Run service.
    """

    name: EffectName


class Block(BaseModel):
    """A frozen model with camelCase keys in the file, no unknown keys and no silent conversion of values."""

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

    def _problems(self) -> Iterator[str]:
        """Yield each contradiction between keys of the block, and what to change."""
        return iter(())

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        problem = next(self._problems(), None)
        if problem:
            raise ValueError(problem)
        return self
