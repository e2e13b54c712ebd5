"""Generated documentation of the rules, the checkpoints, and which precision loads where."""

from typing import Final

from planning.cost.subject import examine, is_out_of_memory
from planning.data.checkpoints import ABSENT, CHECKPOINTS, Checkpoint, Page, nearest_ids, with_owner
from planning.data.quantization import FULL_BYTES
from planning.machine.hardware import ACCELERATORS
from planning.model.catalog import spec_of
from planning.model.spec import tensors
from planning.model.support import Support, support_of, support_rows
from planning.question.types import Deployment
from planning.rules.findings import RULES, detected
from planning.rules.gateway import GATEWAY_RULES
from planning.units import to_gib

_HEAD = """# Findings

Written by `make docs` from `planning/data/rules.json`.

`block` stops `pulumi preview` and `pulumi up`. `warn` and `info` are only shown.
`gemma-serving:acceptFindings: [ID, ...]` accepts findings: they are shown but block nothing.

"""

_GATEWAY_HEAD = """
## Gateways

Findings about a stack of target `gateway` ([gateway.md](../gateway.md)). None can be accepted.

"""


def rules_page() -> str:
    """Return the page of all rules in Markdown."""
    return _HEAD + rules_table() + _GATEWAY_HEAD + _gateway_table()


def rules_table() -> str:
    """Return the table of all rules in Markdown, in the order of the findings."""
    rows = (
        f"| {rule.id} | {' or '.join(rule.severities)} | {'yes' if rule.is_acceptable else 'no'} | {rule.what} | {rule.source} |"
        for rule in RULES.values()
    )
    head = ("| id | severity | can be accepted | what it finds | source |", "| --- | --- | --- | --- | --- |")
    return "\n".join((*head, *rows)) + "\n"


def _gateway_table() -> str:
    rows = (f"| {rule.id} | {rule.severities[0]} | {rule.what} | {rule.source} |" for rule in GATEWAY_RULES.values())
    return "\n".join(("| id | severity | what it finds | source |", "| --- | --- | --- | --- |", *rows)) + "\n"


_CHECKPOINTS_HEAD = """# Checkpoints

Written by `make docs` from `planning/data/checkpoints.json`.

The planner knows these ids.
It plans any other model from its `config.json`: see [planning.md](../planning.md).

- Files: GiB of the checkpoint's files, computed from its dimensions.
- Loaded: GiB of weights on one GPU that stores all of them, with position tables for the full length.
- Runs on: accelerators of this project on which it fits as recommended, with requests of 16,384 tokens, or of half that if 16,384 barely fit.
  Untested precisions are omitted; other warnings are ignored.

"""
_DRAFTERS_HEAD = """
## Draft models

A draft model proposes tokens that its model verifies: `speculativeConfig: {model: ID, num_speculative_tokens: 3}`.

"""
_COMMITS_HEAD = """
## Commits

Public sources state these commits.
`modelRevision` of the shipped stacks is one of them, and the finding about a repository without a commit suggests it.
The hub was not queried: `gemma doctor` reports whether it has the commit, and the commit of its main branch.

"""
_ABSENT_HEAD = """
## Not on the hub

The hub returned 404 for these ids.
The planner never suggests them, and a stack that uses one is blocked ([rules.md](rules.md)).

"""
_SHOWN_NEAR: Final = 3


def checkpoints_page() -> str:
    """Return the page of all checkpoints in Markdown."""
    served = [one for one in CHECKPOINTS.values() if not one.is_drafter]
    drafters = [one for one in CHECKPOINTS.values() if one.is_drafter]
    table = ("| id | kind | precision | files | loaded | runs on | named by |", "| --- " * 7 + "|", *map(_row, served))
    others = ("| id | drafts for | files | named by |", "| --- " * 4 + "|", *map(_drafter_row, drafters))
    absent = ("| id | nearest that exist | absent by |", "| --- " * 3 + "|", *map(_absent_row, ABSENT.values()))
    stated = (f"| {one.id} | `{one.commit}` | {one.commit_source} |" for one in CHECKPOINTS.values() if one.commit)
    commits = ("| id | commit | stated by |", "| --- " * 3 + "|", *stated)
    parts = (_CHECKPOINTS_HEAD, table, _DRAFTERS_HEAD, others, _COMMITS_HEAD, commits, _ABSENT_HEAD, absent)
    return "".join(part if isinstance(part, str) else "\n".join(part) + "\n" for part in parts)


def _absent_row(one: Checkpoint) -> str:
    near = ", ".join(with_owner(each) for each in nearest_ids(one)[:_SHOWN_NEAR])
    return f"| {one.id} | {near} | {_link(one.absent) if one.absent else ''} |"


def _row(one: Checkpoint) -> str:
    memory = examine(Deployment(model=one.id, accelerator="H200")).memory
    fitting = ", ".join(
        name for name, known in ACCELERATORS.items() if known.platforms != ("gce",) and _fits(one, name)
    )
    kind = f"{one.kind}, by an individual" if one.is_personal else one.kind
    return (
        f"| {one.id} | {kind} | {one.scheme} | {memory.checkpoint_gib:.2f} | {memory.weights_gib:.2f} | {fitting or 'none'} "
        f"| {_source(one)} |"
    )


def _fits(one: Checkpoint, accelerator: str) -> bool:
    subject = examine(Deployment(model=one.id, accelerator=accelerator))
    resolved = subject.resolved
    if support_of(resolved.scheme.name, resolved.spec, resolved.accelerator).answer != "yes":
        return False
    return not is_out_of_memory(subject.memory) and "block" not in detected(subject).values()


def _drafter_row(one: Checkpoint) -> str:
    size = sum(tensor.params for tensor in tensors(spec_of(one.id))) * FULL_BYTES
    return f"| {one.id} | {one.architecture} | {to_gib(size):.2f} | {_source(one)} |"


def _source(one: Checkpoint) -> str:
    return _link(one.source)


def _link(page: Page) -> str:
    return f"[{page.date}]({page.url})"


def support_table() -> str:
    """Return the table of precisions that load, for docs/planning.md."""
    head = "| precision | devices | models | vLLM | loads | source |\n| --- | --- | --- | --- | --- | --- |\n"
    return head + "".join(
        f"| {row.scheme}{' (converted while loading)' if row.loading == 'on-load' else ''} | {', '.join(row.devices) or 'all'} "
        f"| {', '.join(row.models) or 'all'} | {_versions(row)} | {_answer(row)} | {row.source}, {row.seen_on} |\n"
        for row in support_rows()
    )


def _versions(row: Support) -> str:
    if row.first or row.last:
        return f"{f'from {row.first}' if row.first else ''}{f'up to {row.last}' if row.last else ''}"
    return "all"


def _answer(row: Support) -> str:
    if row.answer == "yes":
        return "yes, computed in bf16" if row.is_weight_only else "yes"
    return f"{'no' if row.answer == 'no' else 'unknown'}: {row.note}"
