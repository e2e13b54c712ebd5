"""Blocks and pages of the KV cache that vLLM's own code gives, against the stored ones.

vLLM groups the layers without a model and without an accelerator (page_groups.py). pages.csv has each model with its answer, and
`tests/planning/test_activations.py` compares the planner's layouts with them.
"""

import json
from collections.abc import Sequence
from typing import Final

from pydantic import TypeAdapter

from dev.authors.tables import csv_text
from dev.judges.planted import refuse_planted
from dev.judges.real_vllm.environment import HERE, RealVllmHome
from dev.judges.real_vllm.judge import RealVllmPart
from dev.judges.real_vllm.server import RealVllmCores, run_tool, tools_environment
from gemma_serving.planning.model.catalog import spec_of
from tests.planning.corpus.pages import FILE, PageRow, stored_pages

_GROUPS: Final = HERE / "page_groups.py"


def check_pages(home: RealVllmHome, cores: RealVllmCores) -> RealVllmPart:
    """Group the layers of all rows and compare. Raises RealVllmError if vLLM cannot group them."""
    stored = stored_pages()
    asked = home.results / "pages.json"
    asked.write_text(json.dumps([question(row) for row in stored]), encoding="utf-8")
    command = [str(home.programs / "python"), str(_GROUPS), str(asked)]
    text = run_tool(command, home.results, tools_environment(home, {}), home.results / "pages.log", cores)
    found = TypeAdapter(list[tuple[int, int]]).validate_json(text.splitlines()[-1])
    (home.results / FILE.name).write_text(pages_text(stored, found), encoding="utf-8")
    faults = page_faults(stored, found)
    lines = [
        "#### The KV cache",
        "",
        f"{len(stored) - len(faults)} of {len(stored)} models have the stored blocks and pages.",
    ]
    return RealVllmPart(lines=lines, faults=faults)


def question(row: PageRow) -> dict[str, object]:
    """Return what page_groups.py reads: layers as number, KV heads on one device, width of a head, and window."""
    groups = [group for group in spec_of(f"google/gemma-4-{row.model}").groups if group.owns_kv]
    attentions = [(group.count, group.attention) for group in groups]
    layers = [(count, max(1, one.kv_heads // row.tp), one.head_dim, one.window) for count, one in attentions]
    return {**row.model_dump(exclude={"model", "block_bytes", "blocks"}), "layers": layers}


def page_faults(stored: Sequence[PageRow], found: Sequence[tuple[int, int]]) -> Sequence[str]:
    """Return a sentence for each row whose answer is not the stored one."""
    return [
        f"pages.csv, {row}: vLLM has blocks of {answer[0]} bytes and {answer[1]} for a request, and the file {row.block_bytes} and {row.blocks}; copy "
        "results/pages.csv and check gemma_serving/planning/memory/kv_cache.py"
        for row, answer in zip(stored, found, strict=True)
        if (row.block_bytes, row.blocks) != answer
    ]


def pages_text(stored: Sequence[PageRow], found: Sequence[tuple[int, int]]) -> str:
    """Return the rows with these answers in the format of the file."""
    names = list(PageRow.model_fields)
    asked = [row.model_dump(exclude={"block_bytes", "blocks"}).values() for row in stored]
    return csv_text(names, [[*values, *answer] for values, answer in zip(asked, found, strict=True)])


def planted_lie() -> None:
    """Refuse blocks of one byte."""
    stored = stored_pages()
    found = [(1, 1), *((row.block_bytes, row.blocks) for row in stored[1:])]
    refuse_planted("blocks of one byte are the stored ones", lambda: page_faults(stored, found))
