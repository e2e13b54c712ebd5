"""Page about the evening: `python -m localcloud.trials.evening_page` prints docs/one-evening.md."""

from collections.abc import Sequence
from typing import Final

from localcloud.ledger.entries import Assumption, load
from localcloud.trials.command import cost_usd
from localcloud.trials.product import STACKS
from localcloud.trials.requests_of_entries import Tomorrow, rank, trial

FIRST: Final = ("run-l4-driver", "tpu-delete-needs-force")
"""The entries of the first step: a job that reads an L4's driver, and a queued resource that is deleted while it waits."""
_PAGE: Final = """\
# One evening, ten dollars

Critical [assumptions](authors/assumptions.md) about Google Cloud decide whether a stack serves, can be reached and is billed.
One command tries all {count} of them on your project, for at most {usd:.2f} USD.
It has run on the local cloud alone, not yet on Google Cloud.
Use an otherwise empty project after steps 1 to 5 of [get started](get-started.md).
You need quota for one v6e chip and one L4; without one of them, its rows are `unknown`.

## Run it

In the folder with your settings files:

```sh
gcloud auth application-default login
python -m localcloud try --project PROJECT --budget-usd {first_usd:.2f} {first}
python -m localcloud try --project PROJECT --budget-usd {usd:.2f}
python -m localcloud try --project PROJECT --second-run
```

1. The first line costs five cents and takes some minutes: a job reads the driver of an L4, and a queued resource is deleted while it waits.
   It may start only after an hour; if you stop the command by force and no later run deletes it, it runs ten minutes, for 0.25 USD.
2. The second line runs the other critical entries by cost, then the free ones and those that the budget still pays.
   It deploys {stacks}, measures them briefly, changes them, and tears them down with a receipt.
   The budget covers all runs of the evening, with their maximum costs. Google deletes each TPU VM at the end of its run.
3. The third line, a day later, reads what only Cloud Monitoring shows then: whether Google billed a service while its API was disabled.

If APIs are off, `try` prints one `gcloud services enable` command first. The entry `service-disabled-without-errors` needs the Cloud Billing API off.
An interrupted evening goes on with the same command: answered entries are skipped, and leftovers are deleted first. `--clean-up` only deletes them.
An API is disabled only if Cloud Run has no other service or job in the project; it is enabled again even after a kill, by the next run.

| entry | USD | runs | effect if it is false |
| --- | --- | --- | --- |
{rows}

Rows with the same stack share it: it is billed once.

## Report the responses

`localcloud-tried.json` has the responses, and `localcloud-tried.txt` the same as text to paste into an issue.
They contain words in place of project ids, e-mail addresses, tokens and public addresses.

A maintainer records a reported file in a clone; the pages follow:

```sh
python -m localcloud try --record localcloud-tried.json
```
"""


def page(entries: Sequence[Assumption]) -> str:
    """Return the page."""
    critical = sorted((entry for entry in entries if entry.danger == "critical"), key=rank)
    first = [entry for entry in critical if entry.id in FIRST]
    names = [f"`{row['like']}` as `{name}`" for name, row in STACKS.items()]
    return _PAGE.format(
        count=len(critical),
        usd=cost_usd(critical),
        first_usd=cost_usd(first),
        first=" ".join(f"--only {entry.id}" for entry in first),
        stacks=" and ".join(names),
        rows="\n".join(map(_row, critical)),
    )


def _row(entry: Assumption) -> str:
    found = trial(entry)
    runs = [f"`{entry.stack}`, {STACKS[entry.stack]['minutes']} min"] if entry.stack else []
    runs += ["second run"] if found is not None and any(isinstance(step, Tomorrow) for step in found.steps) else []
    return f"| `{entry.id}` | {entry.cost_usd:.2f} | {', '.join(runs) or 'alone'} | {entry.if_false} |"


if __name__ == "__main__":
    print(page(load().assumptions), end="")
