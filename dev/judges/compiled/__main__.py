"""Judge rows, and write the answers that dev/docs/compiled.md shows.

  python -m dev.judges.compiled --row tpu-v6e1 --row tpu-v6e4-31b
  python -m dev.judges.compiled
  python -m dev.judges.compiled --compare newest --limit-s 5h

Without --row, judges every row without an answer. --compare judges the
shipped stacks again, with the wheels nearest to their images or the newest
locked ones, writes nothing, and prints what differs from the stored answers.
Exit code 1 if anything differs.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Final, cast

from dev.judges.compiled.rows import ROWS, JudgedRow
from dev.judges.compiled.stored_answers import ANSWERS, read_answers
from dev.judges.planted import refuse_planted
from dev.judges.tpu_compiler.judged_plan import compiler_answer
from dev.judges.tpu_compiler.verdict import TOLERANCE
from dev.judges.tpu_compiler.wheels import NEWEST, Wheels
from dev.judges.tpu_compiler.words import compiled_json
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.planner import plan_of
from gemma_serving.planning.units import HOUR_S, parse_duration_s
from gemma_serving.scripts.cli.command import Command, print_progress, run_command
from gemma_serving.scripts.cli.options import Option
from gemma_serving.scripts.plan.plan_options import Judging
from gemma_serving.scripts.plan.question import question_from

_COMPARED: Final = ("weights_gib", "kv_gib", "kv_blocks", "block_size", "path", "kv_dtype")
_STORED: Final = (*_COMPARED, "token_paddings")
"""Fields of a built server that the comparison or the page reads."""


def compared_wheels(text: str) -> str:
    """Return `nearest` or `newest`. Raises ValueError with the allowed words."""
    if text not in {"nearest", "newest"}:
        raise ValueError("nearest, to the image of each stack, or newest")
    return text


@dataclass(frozen=True, kw_only=True)
class CompiledOptions:
    """Options of the command."""

    row: Annotated[tuple[str, ...], Option("Only this row. Repeatable.", metavar="NAME", repeated=True)] = ()
    compare: Annotated[
        str | None,
        Option(
            "Judge the shipped stacks with these wheels, and compare with the stored answers.",
            metavar="WHEELS",
            parse=compared_wheels,
        ),
    ] = None
    cache: Annotated[
        Path | None,
        Option("Also store the compiled programs in this folder, as a server on a TPU does.", metavar="DIR"),
    ] = None
    limit_s: Annotated[
        int, Option("With --compare: time after which no stack is begun.", metavar="DURATION", parse=parse_duration_s)
    ] = 5 * HOUR_S


def _run(options: CompiledOptions) -> ExitCode:
    planted_lie()
    answers = dict(read_answers())
    if options.compare is not None:
        return _compare(answers, NEWEST if options.compare == "newest" else None, options.limit_s)
    wanted = [row for row in ROWS if row.name in options.row or (not options.row and row.name not in answers)]
    for row in wanted:
        print_progress("compiled", row.name)
        answers[row.name] = judge(row, cache=options.cache)
        ANSWERS.write_text(json.dumps(dict(sorted(answers.items())), indent=1) + "\n")
    return ExitCode.DONE


def judge(row: JudgedRow, wheels: Wheels | None = None, cache: Path | None = None) -> dict[str, Any]:
    """Return the judge's answer about a row, as `gemma plan --compile --json` has it, with only the read fields of the built server."""
    subject = examine(question_from(row.question))
    options = Judging(compile=row.programs, yes=True)
    found = compiler_answer(row.question, options, subject, plan_of(subject), wheels=wheels, cache=cache)
    answer = compiled_json(found, explains=False)
    built = cast("Mapping[str, Any] | None", answer["built"])
    return {**answer, "built": built and {name: built[name] for name in _STORED}}


def _compare(stored: Mapping[str, Any], wheels: Wheels | None, limit_s: int) -> ExitCode:
    """Print what differs from the stored answers of the shipped stacks, and which stacks were skipped."""
    has_changed, began_s = False, monotonic()
    for row in ROWS:
        if row.group != "stack":
            continue
        if row.name not in stored:
            print_progress("compiled", f"{row.name}: skipped, no stored answer")
            continue
        if monotonic() - began_s > limit_s:
            print_progress("compiled", f"{row.name}: skipped, no time left")
            continue
        for line in changes(stored[row.name], judge(row, wheels)):
            has_changed = True
            print(f"{row.name}: {line}")
    return ExitCode.FAILED if has_changed else ExitCode.DONE


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield what another version of the wheels answers differently."""
    if before["verdict"] != now["verdict"]:
        yield f"{before['verdict']} before, {now['verdict']} now: {now['sentence']}"
    if not before["built"] or not now["built"]:
        return
    for name in _COMPARED:
        old, new = before["built"][name], now["built"][name]
        is_same = abs(old - new) <= TOLERANCE * abs(old) if isinstance(old, float) else old == new
        if not is_same:
            yield f"{name} {old} before, {new} now"


def planted_lie() -> None:
    """Refuse the claim that a server with one block more is the stored one."""
    before = next(one for one in read_answers().values() if one["built"])
    now = {**before, "built": {**before["built"], "kv_blocks": before["built"]["kv_blocks"] + 1}}
    refuse_planted("a server with one block more is the stored one", lambda: changes(before, now))


COMMAND: Final = Command(name="compiled", help=__doc__, options=CompiledOptions, run=_run)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(COMMAND, arguments)


if __name__ == "__main__":
    sys.exit(main())
