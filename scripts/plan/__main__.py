"""Say before the first dollar whether a deployment fits, how long it starts, what it costs, and what is wrong with it.

    python -m scripts.plan --stack NAME [--fix [--write]]
    python -m scripts.plan --model google/gemma-4-31B-it --accelerator H100 --set maxModelLen=32768 --json
    python -m scripts.plan --model google/gemma-4-12B-it --compare --min-concurrency 8 --max-usd-per-hour 6

Exit codes: 0 it fits, 2 it is blocked, out of memory, or the question is wrong.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from contracts.exit_codes import ExitCode
from planning.errors import PlanningError
from planning.planner import plan_of
from planning.subject import examine
from planning.wording import worded
from scripts.plan.question import CommandWording, deployment_from, set_keys, wording_of

FITS: Final = ExitCode.DONE
BLOCKED: Final = ExitCode.REFUSED


class _Parser(argparse.ArgumentParser):
    """argparse with our exit code and one sentence for a mistake."""

    def error(self, message: str) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - it exits, as the original does
        sentence = message[:1].upper() + message[1:].rstrip(".")
        self.exit(BLOCKED, f"plan: {sentence}; --help lists what is allowed.\n")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = _Parser(prog="python -m scripts.plan", description="Plan a deployment: fit, start-up, speed, cost, findings.")
    what = p.add_argument_group("what to plan")
    what.add_argument("--stack", metavar="NAME", help="the settings of Pulumi.NAME.yaml")
    what.add_argument("--model", metavar="ID", help="Hugging Face id, such as google/gemma-4-12B-it")
    what.add_argument(
        "--accelerator",
        metavar="NAME",
        help='v5e-1, v5e-4, v5e-8, v6e-1, v6e-4, v6e-8, L4, L4x2, "RTX PRO 6000", A100-80GB, H100, H200',
    )
    what.add_argument("--platform", metavar="P", help="tpu-vm, cloud-run or gce; follows from the accelerator")
    what.add_argument("--quantization", metavar="Q", help="bf16, fp8 or w4a16; follows from the checkpoint")
    what.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="one of " + ", ".join(set_keys()) + "; the value none leaves it out; may be repeated",
    )
    what.add_argument("--config", metavar="FILE", type=Path, help="config.json of a model that is not in the catalog")
    what.add_argument(
        "--index", metavar="FILE", type=Path, help="its model.safetensors.index.json (default: beside --config)"
    )
    what.add_argument("--prices", metavar="FILE", type=Path, help="JSON with prices that replace the list prices")
    how = p.add_argument_group("how to show it")
    how.add_argument("--json", action="store_true", help="one JSON object on stdout")
    how.add_argument(
        "--fix", action="store_true", help="with --stack: the change of its file that removes what blocks, as a diff"
    )
    how.add_argument("--write", action="store_true", help="with --fix: make that change")
    how.add_argument("--explain", action="store_true", help="the formulas with their numbers, line by line")
    how.add_argument("--compare", action="store_true", help="this model on all accelerators")
    how.add_argument("--min-context", metavar="TOKENS", type=int, help="with --compare: requests at least this long")
    how.add_argument(
        "--min-concurrency", metavar="N", type=float, help="with --compare: so many of the longest requests at once"
    )
    how.add_argument("--max-usd-per-hour", metavar="USD", type=float, help="with --compare: at most this price")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    args = parser().parse_args(argv)
    try:
        _check(args)
        if args.compare:
            from scripts.plan.compare import compare

            return compare(args)
        if args.fix:
            from scripts.plan.fix import fix

            return fix(args.stack, write=args.write)
        deployment = deployment_from(args)
        subject = examine(deployment)
        wording = wording_of(args, deployment)
    except PlanningError as error:
        print(f"plan: {worded(str(error), CommandWording())}", file=sys.stderr)
        return BLOCKED
    if args.explain:
        from planning.explain import explain

        for title, lines in explain(subject):
            print(title)
            print("".join(f"  {line}\n" for line in lines))
        return FITS if plan_of(subject).fits else BLOCKED
    plan = plan_of(subject)
    if args.json:
        print(json.dumps(plan.to_json(wording), indent=2))
    else:
        from scripts.plan.table import show

        show(plan, wording)
    return FITS if plan.fits else BLOCKED


def _check(args: argparse.Namespace) -> None:
    if args.stack is not None:
        also = [
            name
            for name in ("model", "accelerator", "platform", "quantization", "config")
            if getattr(args, name) is not None
        ]
        if also or args.set or args.compare:
            given = f"--{also[0]}" if also else "--set" if args.set else "--compare"
            raise PlanningError(f"--stack takes everything from the stack's settings; leave out {given}.")
        if args.fix and (args.json or args.explain):
            raise PlanningError("--fix prints a diff; leave out --json and --explain.")
        if args.write and not args.fix:
            raise PlanningError("--write belongs to --fix; give both.")
        return
    if args.fix or args.write:
        raise PlanningError("--fix and --write change a stack's settings; name it: --stack NAME.")
    if args.model is None and args.config is None:
        raise PlanningError("Say what to plan: --stack NAME, or --model ID --accelerator NAME.")
    if args.accelerator is None and not args.compare:
        raise PlanningError("Say on what: --accelerator NAME, or --compare for all of them.")
    if args.json and args.explain:
        raise PlanningError("--explain is for people and --json for programs; choose one.")
    limits = ("min_context", "min_concurrency", "max_usd_per_hour")
    if not args.compare and any(getattr(args, name) is not None for name in limits):
        raise PlanningError("--min-context, --min-concurrency and --max-usd-per-hour belong to --compare.")


if __name__ == "__main__":
    sys.exit(main())
