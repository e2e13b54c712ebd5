"""Output of a teardown: progress on stderr, the kinds to delete with location and cost, one confirmation, and the receipt as text."""

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from gemma_serving.cloud.kinds import BUCKET, GRANT, KINDS, REPOSITORY, SECRET
from gemma_serving.cloud.prices import has_price
from gemma_serving.cloud.simulated import is_simulated
from gemma_serving.cloud.spending import StackSpending
from gemma_serving.contracts.search_results import FoundResource
from gemma_serving.planning.units import number_of
from gemma_serving.scripts.cli.command import print_progress
from gemma_serving.scripts.cli.tables import console, paragraph
from gemma_serving.scripts.stack.costs import found_rate, found_sentence, spent_sentence
from gemma_serving.scripts.teardown.receipt import Receipt

_MOST_PLACES: Final = 2
_WITH_DATA: Final = frozenset({BUCKET, REPOSITORY, SECRET})


def progress(text: str) -> None:
    """Print one line of progress on stderr."""
    print_progress("teardown", text)


def show(title: str, found: Sequence[FoundResource], spent: Sequence[StackSpending] = ()) -> None:
    """Print resources as in a dry run on stderr: kinds, places and cost."""
    if not found:
        return
    out = console(sys.stderr)
    for line in (title, *_stacks(found), *_costs(spent)):
        paragraph(out, line)


def text_of(receipt: Receipt) -> str:
    """Return the receipt as text; of a dry run, the resources to delete."""
    if receipt.dry_run:
        return _would_delete(receipt)
    name = receipt.stack or "all stacks"
    simulated = " (local cloud, simulated)" if is_simulated() else ""
    lines = [f"teardown: {name}{simulated}: {_deleted(receipt)} in {receipt.elapsed_s:.0f} s."]
    if receipt.reasons:
        lines.append(f"Reason: the stack exceeded {' and '.join(receipt.reasons)}.")
    lines += [*_first_start(receipt), *_held(receipt)]
    if receipt.clean:
        but = " except the retained ones below" if receipt.retained else ""
        lines.append(f"No leaked resources{but}: {_searched(receipt)}.")
    lines += [f"Retained: {item.text}. To delete it, run:\n  {item.resource.command}" for item in receipt.retained]
    if receipt.state:
        again = f"Fix the cause, then run `gemma teardown {receipt.stack or '--all'}` again."
        lines.append(f"Still in the state: {number_of(len(receipt.state), 'resource')}. {again}")
    lines += [f"Leaked: {item.kind} {item.name}. To delete it, run:\n  {item.command}" for item in receipt.leaked]
    failed = [item for item in receipt.deletions if item.detail]
    lines += [f"Not deleted: {item.resource.kind} {item.resource.name}: {item.detail}" for item in failed]
    lines += [*receipt.unknown, *receipt.warnings, *foreign_sentences(receipt.foreign)]
    return "\n".join(lines)


def _first_start(receipt: Receipt) -> Sequence[str]:
    clause = receipt.first_start
    return [f"{clause[:1].upper()}{clause[1:]}."] if clause else ()


def _held(receipt: Receipt) -> Sequence[str]:
    """Return what Google holds and until when, what was read about it, and how it ends."""
    if not receipt.held:
        return ()
    end = (
        "for two hours at most"
        if receipt.held_until is None
        else f"until about {receipt.held_until.astimezone():%H:%M}"
    )
    return [
        f"Held by Google {end}, $0: {', '.join(f'{item.kind} {item.id}' for item in receipt.held)}.",
        f"No service, machine or other resource uses them. Their only addresses are Cloud Run's: {', '.join(receipt.held_by)}.",
        f"`gemma teardown {receipt.stack or '--all'}` deletes them then; with `--wait`, it waits.",
    ]


def _deleted(receipt: Receipt) -> str:
    """Return how many resources were deleted in Google Cloud, by the engine or by the API: found by a search, and not by the last."""
    if receipt.unknown:
        return "the number of deleted resources is unknown, because a check failed,"
    found = {_identity(item): item for search in receipt.searches for item in search.found}
    left = {_identity(item) for item in receipt.searches[-1].found}
    gone = [item for key, item in found.items() if key not in left]
    return f"deleted {resource_counts(gone)} from Google Cloud" if gone else "deleted nothing"


def _identity(item: FoundResource) -> tuple[str, str]:
    """Return kind and name. Google renames the grant of an account that is deleted."""
    return item.kind, item.name.replace(" deleted:", " ").partition("?uid=")[0]


def resource_counts(found: Sequence[FoundResource]) -> str:
    """Return the numbers of resources and grants as text."""
    grants = sum(item.kind == GRANT for item in found)
    resources = number_of(len(found) - grants, "resource")
    return f"{resources} and {number_of(grants, GRANT)}" if grants else resources


def named(found: Sequence[FoundResource]) -> str:
    """Return the names of the resources that cost money or hold data, as the end of a sentence; empty without any."""
    kept = [f"{item.kind} {item.id}" for item in found if has_price(item) or item.kind in _WITH_DATA]
    return f", with {', '.join(kept)}" if kept else ""


def foreign_sentences(foreign: Sequence[FoundResource]) -> Sequence[str]:
    """Return how many resources of which stacks of other Pulumi projects a teardown left, one sentence each."""
    owners = [(item.owner.project, item.owner.stack) for item in foreign]
    counts = {owner: owners.count(owner) for owner in sorted(set(owners))}
    return [
        f"{number_of(count, 'resource')} of stack {stack} of the Pulumi project {project} {'was' if count == 1 else 'were'} left."
        for (project, stack), count in counts.items()
    ]


def _searched(receipt: Receipt) -> str:
    calls = receipt.searches[-1].calls if receipt.searches else ()
    return f"{len(calls)} list calls, {len(KINDS) + 1} resource types, project {', '.join(receipt.projects)}"


def _would_delete(receipt: Receipt) -> str:
    """Return the result of a dry run: kinds, places and cost. `--json` lists names and commands."""
    name = f"{receipt.stack or 'all stacks'}{' (simulated)' if is_simulated() else ''}"
    is_one = receipt.stack and receipt.leaked and not receipt.unknown and not any(map(has_price, receipt.leaked))
    what = [found_sentence(receipt.leaked)] if is_one else []
    lines = [f"{name}: {_verdict(receipt)}", *what, *_stacks(receipt.leaked), *_costs(receipt.spent)]
    lines += [*_first_start(receipt), *_held(receipt), *(f"Retained: {item.text}" for item in receipt.retained)]
    lines += [
        *receipt.unknown,
        *receipt.warnings,
        *foreign_sentences(receipt.foreign),
        f"Searched: {_searched(receipt)}.",
    ]
    if receipt.leaked:
        lines.append("With --json: each name, its age and its delete command, in the order of deletion.")
    return "\n".join(lines)


def _verdict(receipt: Receipt) -> str:
    if receipt.leaked:
        return f"{resource_counts(receipt.leaked)} would be deleted."
    if receipt.unknown:
        return "no resource was found, but a check failed."
    return "nothing to delete: every list was read."


def _stacks(found: Sequence[FoundResource]) -> Iterator[str]:
    stacks = sorted({item.owner.stack for item in found})
    for stack in stacks:
        if len(stacks) > 1:
            yield f"{stack}:"
        yield from _kinds([item for item in found if item.owner.stack == stack])


def _kinds(found: Sequence[FoundResource]) -> Iterator[str]:
    groups = [(kind, [*items]) for kind, items in groupby(found, key=lambda item: item.kind)]
    nouns = [number_of(len(items), kind) for kind, items in groups]
    width = max(map(len, nouns))
    for noun, (_, items) in zip(nouns, groups, strict=True):
        places = sorted({item.location for item in items})
        facts = places if len(places) <= _MOST_PLACES else [f"{len(places)} locations"]
        yield f"  {noun:<{width}}  {', '.join([*facts, *filter(None, [found_rate(items)])])}"


def _costs(spent: Sequence[StackSpending]) -> Sequence[str]:
    return [spent_sentence(spent)] if spent else []
