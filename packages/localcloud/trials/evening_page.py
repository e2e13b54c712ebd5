"""Table of the critical entries: `python -m localcloud.trials.evening_page` prints it for docs/one-evening.md."""

from localcloud.ledger.entries import Assumption, load
from localcloud.trials.product import STACKS
from localcloud.trials.requests_of_entries import Tomorrow, rank, trial


def row(entry: Assumption) -> str:
    """Return an entry's row: maximum cost alone, what it runs, and the effect if it is false."""
    found = trial(entry)
    runs = [f"`{entry.stack}`, {STACKS[entry.stack]['minutes']} min"] if entry.stack else []
    runs += ["second run"] if found is not None and any(isinstance(step, Tomorrow) for step in found.steps) else []
    return f"| `{entry.id}` | {entry.cost_usd:.2f} | {', '.join(runs) or 'alone'} | {entry.if_false} |"


if __name__ == "__main__":
    critical = sorted((entry for entry in load().assumptions if entry.danger == "critical"), key=rank)
    print("| entry | USD | runs | effect if it is false |\n| --- | --- | --- | --- |")
    print("\n".join(map(row, critical)))
