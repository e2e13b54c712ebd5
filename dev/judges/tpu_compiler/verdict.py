"""The verdict: the plan's figures against the server that was built."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from dev.judges.planted import refuse_planted
from dev.judges.tpu_compiler.answer import Built, CompileAnswer, Done
from gemma_serving.contracts.exit_codes import ExitCode

Word = Literal["agrees", "differs", "refused", "compiles", "not judged"]
"""`agrees`, `differs`: built and compiled, as the plan allows. `refused`: vLLM's code or the compiler refuses the server. `compiles`: built and
compiled, although the plan blocks. `not judged`: no answer."""
TOLERANCE: Final = 0.002
"""Allowed relative difference of weights and KV cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The plan's figures, of one device in GiB."""

    fits: bool
    weights_gib: float
    kv_gib: float
    kv_blocks: int
    outside_gib: float
    """Memory outside the budget."""
    outside_minimum_gib: float
    outside_recommended_gib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileVerdict:
    """The verdict, with the sentence that says it and the exit code of the command."""

    word: Word
    sentence: str
    exit_code: ExitCode


def judgement(planned: Planned, answer: CompileAnswer) -> CompileVerdict:
    """Return the verdict about a plan. A missing answer never passes."""
    plans = ExitCode.DONE if planned.fits else ExitCode.REFUSED
    if answer.refusal is not None:
        refusal = answer.refusal
        where = refusal.program or refusal.stage
        what = "what the plan allows" if planned.fits else "this deployment, as the plan does"
        return CompileVerdict(
            word="refused",
            sentence=f"Refused: vLLM or Google's compiler rejects {what}, at {where}: {refusal.words.rstrip('.')}.",
            exit_code=ExitCode.REFUSED,
        )
    if answer.reason or answer.built is None:
        code = ExitCode.FAILED if planned.fits else plans
        return CompileVerdict(word="not judged", sentence=f"Not judged: {answer.reason}.", exit_code=code)
    done = "Built and compiled" if answer.programs else "Built, without compiling a program"
    if not planned.fits:
        sentence = f"{done}, although the plan blocks it. To compile is less than to start: the plan's verdict stays."
        return CompileVerdict(word="compiles", sentence=sentence, exit_code=plans)
    differences = list(_differences(planned, answer.built))
    if differences:
        sentence = f"{done}, but the plan differs: {'; '.join(differences)}."
        return CompileVerdict(word="differs", sentence=sentence, exit_code=plans)
    sentence = f"{done}. The plan agrees: weights and KV cache within 0.2%, blocks equal."
    return CompileVerdict(word="agrees", sentence=sentence, exit_code=plans)


def _differences(planned: Planned, built: Built) -> Iterator[str]:
    # The plan states the memory that is free for the KV cache, of which vLLM uses whole blocks.
    block_gib = built.kv_gib / max(built.kv_blocks, 1)
    for name, plan_gib, built_gib, rest_gib in (
        ("weights", planned.weights_gib, built.weights_gib, 0.0),
        ("KV cache", planned.kv_gib, built.kv_gib, block_gib),
    ):
        if abs(plan_gib - built_gib) > TOLERANCE * built_gib + rest_gib:
            yield f"{name} {plan_gib:.3f} GiB planned, {built_gib:.3f} GiB built"
    if planned.kv_blocks != built.kv_blocks:
        yield f"blocks {planned.kv_blocks:,} planned, {built.kv_blocks:,} built"


def planted_lie() -> None:
    """Refuse the claim that a plan agrees with a server of twice its weights."""
    budget = {"weights_gib": 2.0, "kv_gib": 4.0, "kv_blocks": 64}
    outside = dict.fromkeys(("outside_gib", "outside_minimum_gib", "outside_recommended_gib"), 1.0)
    built = Built(
        **{**budget, "weights_gib": 4.0},
        **dict.fromkeys(("architecture", "kv_dtype", "platform_version"), ""),
        **dict.fromkeys(("token_paddings", "request_paddings", "replicated"), ()),
        path="jax",
        block_size=16,
        sequences=1,
        mesh={},
        versions={},
    )
    answer = CompileAnswer(built=built, done=Done(seconds=1, cpu_s=1, peak_memory_gib=1))
    planned = Planned(fits=True, **budget, **outside)
    refuse_planted("twice the weights are the plan's", lambda: judgement(planned, answer).word == "differs")
