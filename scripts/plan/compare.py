"""One model on all accelerators: what fits, how much it holds, how fast it is, what it costs, and the cheapest that is enough."""

import json
from argparse import Namespace
from dataclasses import replace
from typing import Final

from contracts.exit_codes import ExitCode
from planning.hardware import ACCELERATORS
from planning.planner import plan
from planning.types import Plan
from scripts.plan.question import CommandWording, deployment_from

ENOUGH: Final = ExitCode.DONE
NONE: Final = ExitCode.REFUSED


def compare(args: Namespace) -> int:
    """Print the comparison; 0 where something is enough, 2 where nothing is. Raises PlanningError."""
    plans = plans_of(args)
    chosen = cheapest(plans, args)
    if args.json:
        rows = [{**one.to_json(CommandWording()), "enough": is_enough(one, args)} for one in plans]
        print(
            json.dumps(
                {"model": plans[0].model, "cheapest": chosen.accelerator if chosen else None, "rows": rows}, indent=2
            )
        )
    else:
        _table(plans, chosen, args)
    return ENOUGH if chosen else NONE


def plans_of(args: Namespace) -> list[Plan]:
    """A plan for each accelerator, or for the one that was named, cheapest first."""
    asked = deployment_from(args)
    if args.min_context is not None and asked.vllm.max_model_len is None:
        asked = replace(asked, vllm=replace(asked.vllm, max_model_len=args.min_context))
    names = (
        [args.accelerator]
        if args.accelerator
        else [a.name for a in ACCELERATORS.values() if args.platform in {None, *a.platforms}]
    )
    return sorted((plan(replace(asked, accelerator=name)) for name in names), key=lambda one: one.cost.usd_per_hour)


def is_enough(one: Plan, args: Namespace) -> bool:
    """Whether the plan fits and meets every limit that was given."""
    return (
        one.fits
        and (args.min_context is None or one.memory.largest_max_model_len >= args.min_context)
        and (args.min_concurrency is None or one.memory.max_concurrency >= args.min_concurrency)
        and (args.max_usd_per_hour is None or one.cost.usd_per_hour <= args.max_usd_per_hour)
    )


def cheapest(plans: list[Plan], args: Namespace) -> Plan | None:
    """The cheapest plan that is enough."""
    return min((one for one in plans if is_enough(one, args)), key=lambda one: one.cost.usd_per_hour, default=None)


def _table(plans: list[Plan], chosen: Plan | None, args: Namespace) -> None:
    from rich.console import Console  # noqa: PLC0415 - only for people
    from rich.table import Table  # noqa: PLC0415 - only for people

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=140)
    table = Table(
        title=f"{plans[0].model}, requests of {plans[0].vllm.max_model_len or 0:,} tokens", title_justify="left"
    )
    for heading in (
        "accelerator",
        "as",
        "verdict",
        "why",
        "KV tokens",
        "at once",
        "tok/s alone",
        "tok/s full",
        "start",
        "$/h",
        "$/M tokens",
    ):
        table.add_column(heading, justify="right" if heading not in {"accelerator", "as", "verdict", "why"} else "left")
    for one in plans:
        style = "bold green" if one is chosen else "" if is_enough(one, args) else "dim"
        table.add_row(
            f"{one.accelerator}{' *' if one is chosen else ''}",
            one.quantization,
            one.verdict,
            ", ".join(f.id for f in one.stopping),
            f"{one.memory.kv_tokens:,}",
            f"{one.memory.max_concurrency:.1f}",
            f"{one.throughput.decode_tok_per_s:.0f}",
            f"{one.throughput.saturated_tok_per_s:,.0f}",
            f"{one.startup.total_s / 60:.0f} min",
            f"{one.cost.usd_per_hour:.2f}",
            f"{one.cost.usd_per_million_tokens_saturated:.2f}",
            style=style,
        )
    console.print(table)
    if chosen:
        console.print(
            f"* the cheapest that is enough: {chosen.accelerator} on {chosen.platform}, ${chosen.cost.usd_per_hour:.2f}/h"
        )
    else:
        console.print("None of them is enough; ask for less, or for a smaller model.")
