"""Page about the ledger: `python -m localcloud.ledger.page` prints dev/docs/assumptions.md, with `sentence` the sentences of docs/judged.md."""

import sys
from collections import Counter
from collections.abc import Iterable

from localcloud.ledger.entries import CriticalAssumption, Ledger, load

_HEAD = """\
# Assumptions about Google Cloud

The local cloud rejects the same requests as Google, as far as Google's behavior is known.
The *ledger*, the files in `packages/localcloud/ledger/`, lists the assumptions of high weight about it.
`make docs` generates this page from it.

## Critical assumptions, not yet tried

"""
_DECIDE = "| id | if it is false | tried by |\n| --- | --- | --- |\n"
SHELL = """\
PROJECT=YOUR_PROJECT
call() { curl -sS -H "Authorization: Bearer $(gcloud auth print-access-token)" -H 'Content-Type: application/json' "$@"; }
tpu=https://tpu.googleapis.com/v2alpha1/projects/$PROJECT/locations/us-east5-a
run=https://run.googleapis.com/v2/projects/$PROJECT/locations/us-east4
secrets=https://secretmanager.googleapis.com/v1/projects/$PROJECT/secrets
accounts=https://iam.googleapis.com/v1/projects/$PROJECT/serviceAccounts
hello=us-docker.pkg.dev/cloudrun/container/hello
machine() { # $1: queueingPolicy, $2: what the TPU VM runs at its start
  call "$tpu/queuedResources?queuedResourceId=localcloud-try" -d '{
    "tpu": {"nodeSpec": [{"parent": "projects/'"$PROJECT"'/locations/us-east5-a", "nodeId": "localcloud-try", "node": {
      "acceleratorType": "v6e-1", "runtimeVersion": "v2-alpha-tpuv6e", "networkConfig": {"enableExternalIps": true}, "metadata": {
        "enable-guest-attributes": "TRUE", "enable-oslogin": "TRUE",
        "ssh-keys": "probe:ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0000000000000000000000000000000000000000000 probe",
        "startup-script": "#! /bin/bash\\nput() { curl -X PUT -H Metadata-Flavor:Google -d $1 $attributes/gemma-serving/try; }\\n'"\
attributes=http://metadata.google.internal/computeMetadata/v1/instance/guest-attributes; ${2:-}"'"}}}]},
    "provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "900s"}, "queueingPolicy": {'"$1"'}}'
}
clean() {
  call -X DELETE "$tpu/queuedResources/localcloud-try?force=true"
  call -X DELETE "$run/services/localcloud-try"
  call -X DELETE "$secrets/localcloud-try"
  call -X DELETE "$accounts/localcloud-try@$PROJECT.iam.gserviceaccount.com"
}
"""
"""Variables and functions of the lines in `CriticalAssumption.try_it`. A test runs them on the local cloud."""
_TRY = """
## Lines to try the others

[One evening](../../docs/one-evening.md) tries the entries that it names, and finds some others false.
The lines below try the others, each alone, in an otherwise empty project.
Each creates only resources with the name `localcloud-try`, and `clean` deletes them.

```sh
{shell}```
"""
_ONE = """
`{id}`, at most ${cost_usd:.2f}. True if {true_if}.

```sh
{try_it}clean
```
"""
_ENTRIES = """
## Entries

{critical} of the {count} entries are critical: if one is false, a stack does not serve, is unreachable, or leaves a billed machine.
If one of the others is false, a command fails, a wrong result is trusted, or money is lost, in a common situation; or a figure or a page rests on it.
None of these others was tried on Google Cloud.

An entry has a statement, its source, and its test: `grep -A 4 '^id = "ID"' packages/localcloud/ledger/*.toml` prints it.
Entries with the source `assumed` are guesses: if Google's documents do not describe the behavior, the strict answer is assumed.

Entries by source: {sources}.

## Known gaps

The local cloud is more lenient than Google in {lenient} entries, which have no test: {gaps}.

{not_modelled} entries under `[[not_modelled]]` quote rules of Google's discovery documents that the local cloud does not enforce, with the reason.
"""
_TRIED = """
## Tried on a real project

| id | result |
| --- | --- |
"""
_KNOWN_SOURCES = {
    "https://cloud.google.com": "Google's documents",
    "docs:": "Google's documents",
    "discovery:": "discovery documents",
    "recorded:": "recorded exchanges",
    "log:": "public logs",
    "assumed": "assumed",
}


def sentence(ledger: Ledger) -> str:
    """Return the numbers of critical entries, of those that were tried, and of all entries, as sentences of docs/judged.md."""
    tried = sum(bool(entry.tried) for entry in ledger.critical)
    decided = sum(not entry.try_it for entry in ledger.critical)
    return (
        f"**{len(ledger.critical)} assumptions about Google are critical, and {tried or 'none'} of them were tried on Google Cloud**: "
        "if one is false, a stack does not serve, cannot be reached, or stays billed.\n"
        f"[One evening](one-evening.md) tries {decided} of them on your project; the page has lines for the others.\n"
        f"In all, the simulation makes {len(ledger.assumptions)} [assumptions](../dev/docs/assumptions.md) of high weight.\n"
    )


def page(ledger: Ledger) -> str:
    """Return the page."""
    untried = [entry for entry in ledger.critical if not entry.tried]
    lenient = [entry for entry in ledger.assumptions if not entry.test]
    tried = [(f"`{entry.id}`", f"`{_cell(entry.tried)}`") for entry in ledger.critical if entry.tried]
    text = _ENTRIES.format(
        critical=len(ledger.critical),
        count=len(ledger.assumptions),
        sources=", ".join(f"{label} {count}" for label, count in _sources(ledger).most_common()),
        lenient=len(lenient),
        gaps=", ".join(f"`{entry.id}`" for entry in lenient),
        not_modelled=len(ledger.not_modelled),
    )
    return (
        _HEAD
        + _DECIDE
        + _rows(map(_decision, untried))
        + _lines(untried)
        + text
        + (_TRIED + _rows(tried) if tried else "")
    )


def _decision(entry: CriticalAssumption) -> tuple[str, ...]:
    by = "[its lines](#lines-to-try-the-others)" if entry.try_it else "`examples/one-evening.sh`"
    return f"`{entry.id}`", _cell(entry.if_false), by


def _lines(untried: Iterable[CriticalAssumption]) -> str:
    every = [_ONE.format(**vars(entry)) for entry in untried if entry.try_it]
    return _TRY.format(shell=SHELL) + "".join(every) if every else ""


def _sources(ledger: Ledger) -> Counter[str]:
    return Counter(
        next((label for start, label in _KNOWN_SOURCES.items() if entry.source.startswith(start)), "other sources")
        for entry in ledger.assumptions
    )


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(text: str) -> str:
    """Return a text formatted for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print((sentence if sys.argv[1:] == ["sentence"] else page)(load()), end="")
