"""How a settings file is parsed: camelCase keys, no unknown keys, and no silent conversion of values."""

from collections.abc import Iterator
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from gemma_serving.planning.settings.fields import setting_key


class Block(BaseModel):
    """A frozen model of a file's keys. Its configuration also holds for the dataclasses of `planning.settings` in its fields."""

    model_config = ConfigDict(
        alias_generator=setting_key,
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
