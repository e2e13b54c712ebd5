"""The repositories of the hub. `data/repositories.toml` lists them, with a source for each."""

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from localcloud.json_values import packaged

State = Literal["public", "gated", "private", "absent"]
"""`private`: visible only to accounts with read access. The data has none; a scenario can create one."""
CONFIG: Final = "config.json"
ADAPTER_CONFIG: Final = "adapter_config.json"
INDEX: Final = "model.safetensors.index.json"
TEMPLATE: Final = "chat_template.jinja"
WEIGHTS: Final = ".safetensors"
_USUAL: Final = (
    ".gitattributes",
    "README.md",
    TEMPLATE,
    CONFIG,
    "generation_config.json",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
"""Files of every checkpoint in addition to the weights: https://huggingface.co/google/gemma-4-31B-it, commit 419b2ef."""
_USUAL_BYTES: Final = 32_230_000
"""Their total size if no source states it; 32,169,626 of it is tokenizer.json."""


class Repository(BaseModel):
    """One repository; data/repositories.toml explains the fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    state: State
    source: str = Field(min_length=1)
    size: str = ""
    form: Literal["bf16", "w4a16", "fp8", "nvfp4", "nvfp4-modelopt", "nvfp4-experts"] = "bf16"
    drafter: bool = False
    adapter_rank: int = 0
    """Rank of a LoRA adapter in PEFT's format. 0: the repository is a checkpoint."""
    commit: str = Field(default="", pattern=r"^([0-9a-f]{40})?$")
    commit_source: str = ""
    """Source of the commit, if it differs from the source of the sizes."""
    older: tuple[str, ...] = ()
    """Earlier commits of `main` that sources state. Here their files are the same as at the head."""
    sizes_source: str = ""
    total_bytes: int = 0
    outside: str = ""
    """The reason why the planner's catalog lacks it. Empty if the catalog has it."""
    weights: tuple[str, ...] = ("model.safetensors",)
    bytes: Mapping[str, int] = Field(default_factory=dict[str, int])

    def __hash__(self) -> int:
        """Return a hash for caches. Fields that are mappings are not hashable."""
        return hash(self.id)

    @property
    def head(self) -> str:
        """Return the commit of `main`."""
        return self.commit or hashlib.sha1(f"made here: {self.id}".encode(), usedforsecurity=False).hexdigest()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all files."""
        if self.adapter_rank:
            return tuple(sorted({".gitattributes", "README.md", ADAPTER_CONFIG, *self.weights, *self.bytes}))
        index = (INDEX,) if len(self.weights) > 1 else ()
        return tuple(sorted({*_USUAL, *self.weights, *index, *self.bytes}))

    def real_bytes(self, name: str, otherwise: int) -> int:
        """Return the size of the real file. If no source states it, return a generated one; `otherwise` is the size of all weights."""
        if name in self.bytes:
            return self.bytes[name]
        if name in self.weights:
            unstated = [one for one in self.weights if one not in self.bytes]
            whole = max(self.total_bytes - _USUAL_BYTES, 0) or otherwise
            share = (whole - sum(self.bytes.get(one, 0) for one in self.weights)) // len(unstated)
            return max(share, 0)
        return 0

    def states_size_of(self, name: str) -> bool:
        """Return whether a source states the size of the real file."""
        return name in self.bytes


@cache
def _document() -> dict[str, Any]:
    return packaged("localcloud.hub", "repositories.toml")


@cache
def repositories() -> Mapping[str, Repository]:
    """Return all repositories by id."""
    found = (Repository.model_validate(row) for row in _document()["repository"])
    return {one.id: one for one in found}


def architecture(size: str) -> Mapping[str, Any]:
    """Return the dimensions of a size, for its config.json."""
    return _document()["architecture"][size]


def find(name: str, changed: Mapping[str, State]) -> Repository:
    """Return a repository in the state that `changed` (a scenario) sets; absent if nothing lists it."""
    known = repositories().get(name)
    state = changed.get(name) or (known.state if known is not None else "absent")
    if known is not None and known.size:
        return known.model_copy(update={"state": state})
    return Repository(id=name, state=state, source="generated: listed by a scenario", size="E2B")
