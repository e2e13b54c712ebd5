"""Ask vLLM about drawn stacks, and store its answers for the sixth law.

  python -m dev.judges.configurations --count 2000

Writes tests/planning/configurations.json, and prints which answers contradict
the plan. Exit code 1 if any does.
"""

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final

from msgspec.structs import replace

from dev.judges.configurations.ask import GPU_RELEASES, TPU, refusals_of
from dev.judges.configurations.draws import drawn
from dev.judges.planted import refuse_planted
from dev.judges.tpu_compiler.wheels import WHEELS, wheels_for
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.planning.model.support import version_in_use
from gemma_serving.scripts.cli.command import Command, print_progress, run_command
from gemma_serving.scripts.cli.options import Option
from tests.planning.configured import ANSWERS, Configured, answers, contradictions
from tests.planning.test_remedies import STACKS

_NOWHERE: Final[Mapping[str, str]] = {
    "chat template string": "the template is a file of the image",
    "Invalid repository ID": "config.json of this model is not in the catalog",
}
NOT_JUDGED: Final[Mapping[str, Mapping[str, str]]] = {
    "vllm-cpu": {
        **_NOWHERE,
        "Model Runner V": "the newer model runner needs Triton, which no processor has",
        "only supported on CUDA devices": "a processor is none",
    },
    "vllm-tpu": _NOWHERE,
}
"""Why a refusal here proves nothing about the deployed server, by the package that answered and a part of its sentence."""
HIDDEN: Final[Mapping[str, str]] = {
    "devices": "a processor is one device: sizes of parallelism are compared with each other, not with the accelerator",
    "attention backends": "the processor's own backend is chosen, whatever the words name",
    "weights": "config.json alone is read: a checkpoint that does not match its draft model is accepted",
    "tokenizer": "a tiny one: special tokens of Gemma 4 are not looked up",
}
"""Refusals that the environment cannot judge."""


@dataclass(frozen=True, kw_only=True)
class ConfigurationOptions:
    """Options of the command."""

    count: Annotated[int, Option("Stacks to draw for each platform.", metavar="N", parse=int)] = 2_000


def _run(options: ConfigurationOptions) -> ExitCode:
    planted_lie()
    print_progress("configurations", f"drawing {options.count} stacks for each platform")
    rows = list(drawn(options.count))
    refusals = {"": 0}
    answers = [dict[str, int]() for _ in rows]
    names = [*GPU_RELEASES, *(f"{TPU}{wheels.name}" for wheels in WHEELS)]
    asked = {
        name: [place for place, (stack, _, one) in enumerate(rows) if name in releases_of(stack, one)] for name in names
    }
    for name, places in asked.items():
        print_progress("configurations", f"asking {name} about {len(places)}")
        for place, refusal in zip(places, refusals_of(name, [rows[place][2] for place in places]), strict=True):
            answers[place][name] = refusals.setdefault(sentence(refusal), len(refusals))
    lines = [[stack, edits, one.digest, found] for (stack, edits, one), found in zip(rows, answers, strict=True)]
    _write(list(refusals), lines)
    return _report({name: len(places) for name, places in asked.items()})


def releases_of(stack: str, server: Configured) -> tuple[str, ...]:
    """Return who is asked about a server: both releases for GPUs, or the wheels nearest to the TPU image."""
    if "tpu" not in STACKS[stack]:
        return tuple(GPU_RELEASES)
    return (f"{TPU}{wheels_for(version_of(server)).wheels.name}",)


def version_of(server: Configured) -> str:
    """Return vLLM's version in a server's image."""
    resolved = server.subject.resolved
    return version_in_use(resolved.accelerator, resolved.question.image_version)


def sentence(refusal: str) -> str:
    """Return vLLM's sentence of an error, without the frame and the inputs that pydantic adds."""
    text = refusal.partition(" [type=")[0].removeprefix("ValidationError: ")
    _, found, value = text.partition("Value error, ")
    return value if found else text


def _write(refusals: list[str], lines: Sequence[Sequence[object]]) -> None:
    head = {"made": f"{datetime.now(UTC):%Y-%m-%d}", "not_judged": NOT_JUDGED, "hidden": HIDDEN, "refusals": refusals}
    rows = ",\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    ANSWERS.write_text(f'{json.dumps(head, indent=1)[:-2]},\n "rows": [\n{rows}\n]}}\n', encoding="utf-8")


def _report(asked: Mapping[str, int]) -> ExitCode:
    found = list(contradictions(answers().rows))
    for name, count in asked.items():
        print(f"{name}: {count} asked")
    for text, count in Counter(one.kind for one in found).most_common():
        print(f"{count:6}  {text}")
    return ExitCode.FAILED if found else ExitCode.DONE


def planted_lie() -> None:
    """Refuse the claim that vLLM refuses what fits. The stored rows begin with such stacks, and the last refusal is of no processor's."""
    last = len(answers().refusals) - 1
    rows = [replace(row, answers=dict.fromkeys(row.answers, last)) for row in answers().rows[:10]]
    refuse_planted("the plan agrees with a vLLM that refuses each stack", lambda: contradictions(rows))


COMMAND: Final = Command(name="configurations", help=__doc__, options=ConfigurationOptions, run=_run)

if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
