"""Blocks of the KV cache that vLLM's own code gives: pages.csv has each model with its answer."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, TypeAdapter

FILE: Final = Path(__file__).with_name("pages.csv")


class PageRow(BaseModel):
    """A model on GPUs, and vLLM's answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    """The end of Google's id."""
    tp: int
    kv_cache_dtype: str
    max_model_len: int
    tokens_in_flight: int
    block_bytes: int
    blocks: int
    """Of one request of max-model-len."""

    def __str__(self) -> str:
        """Return the question."""
        return f"{self.model}, TP {self.tp}, {self.kv_cache_dtype}, {self.max_model_len}"


def stored_pages() -> Sequence[PageRow]:
    """Return the rows of the file."""
    with FILE.open(encoding="utf-8", newline="") as stream:
        return TypeAdapter(list[PageRow]).validate_python(list(csv.DictReader(stream)))
