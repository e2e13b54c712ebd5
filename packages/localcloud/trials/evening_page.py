"""Table of the critical entries: `python -m localcloud.trials.evening_page` prints it for docs/one-evening.md."""

from localcloud.ledger.entries import CriticalAssumption, load
from localcloud.trials.command import by_cost
from localcloud.trials.evening import TRIALS
from localcloud.trials.product import STACKS


def row(entry: CriticalAssumption) -> str:
    """Return an entry's row: maximum cost alone, what it runs, and the effect if it is false."""
    runs = [f"`{entry.stack}`, {STACKS[entry.stack]['minutes']} min"] if entry.stack else []
    runs += ["second run"] if TRIALS[entry.id].second_run is not None else []
    return f"| `{entry.id}` | {entry.cost_usd:.2f} | {', '.join(runs) or 'alone'} | {entry.if_false} |"


if __name__ == "__main__":
    print("| entry | USD | runs | effect if it is false |\n| --- | --- | --- | --- |")
    print("\n".join(map(row, sorted(load().critical, key=by_cost))))
