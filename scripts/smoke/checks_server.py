"""Checks of the context, adapters, speculative decoding, metrics and options of a server."""

import math
from http import HTTPStatus
from typing import Final

from gemma_serving.contracts.features import Speculation
from gemma_serving.planning.numbers import as_number
from gemma_serving.planning.speed.residuals import KV_TOLERANCE
from gemma_serving.planning.units import number_of
from gemma_serving.scripts.cli.check_result import Values
from gemma_serving.scripts.smoke.chat_request import (
    StatusError,
    answered,
    content_of,
    prompt_tokens_of,
    request,
    send,
    shorten,
    succeeded,
    user,
)
from gemma_serving.scripts.smoke.context import CheckContext, SmokeTarget, percent_over
from gemma_serving.scripts.smoke.results import Outcome, failed, failed_or_passed, passed, skipped, warned
from loadtest.client.events import served_models
from loadtest.client.json_values import as_list, as_mapping
from loadtest.client.metrics import CACHE_CONFIG, GENERATION_TOKENS, KV_USAGE, RUNNING, WAITING, Scrape

SCRAPE_LIMIT_S: Final = 30.0
CALL_LIMIT_S: Final = 60.0
ROUNDING: Final = 1e-6
FACT: Final = "marigold"
FACT_SENTENCE: Final = f"Remember this: the password of the archive is {FACT}."
FACT_QUESTION: Final = "What is the password of the archive? Answer with one word."
FILLER: Final = "The river runs past the mill and the old stone bridge. "
PROBE_FILLERS: Final = 32
CONTEXT_TOKENS: Final = 32
CONTEXT_SLACK: Final = 32
"""Tokens left free, because the tokens of a filler are measured and rounded."""
LEAST_FILLED: Final = 0.95
"""Minimum share of max-model-len that the prompt and its response fill."""
SLOWEST_PREFILL: Final = 500.0
"""Tokens per second for the time limit. A slower server cannot use such a long context."""
MOST_CONTEXT_S: Final = 900.0
UNKNOWN_LENGTH_S: Final = 200.0

DRAFTED: Final = ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens")
DRAFTS: Final = ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts")
ACCEPTED: Final = ("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens")
REPEATED: Final = "Write this line five times: one two three four five six seven eight nine ten."
"""A request whose response repeats its prompt, so n-grams find proposals too."""
USEFUL_ACCEPTANCE: Final = 0.10
"""Below it, proposals cost more time than they save (assumed; one of ten proposed tokens)."""
FEWEST_DRAFTED: Final = 20
"""Proposed tokens from which the accepted share is judged."""
MISSING_ADAPTER: Final = "smoke-no-such-adapter"
ADAPTER_PROMPTS: Final = ("Say hello.", "Write a short poem about the sea.", "What should I cook tonight?")


def context_limit_s(target: SmokeTarget) -> float:
    """Return the time limit of the context check."""
    length = target.thresholds.max_model_len
    return UNKNOWN_LENGTH_S if length is None else min(CALL_LIMIT_S + length / SLOWEST_PREFILL, MOST_CONTEXT_S)


async def context_length(context: CheckContext) -> Outcome:
    """Check that a prompt of max-model-len is read from its start."""
    context.features()
    length = context.length
    if length is None:
        return skipped("neither the server nor the settings report a length")
    context.wanted = f"{LEAST_FILLED:.0%} of {length} tokens or more, {FACT!r} from the start"
    base, probed = [
        prompt_tokens_of(await send(context, _long_request(context, fillers, 1), limit_s=CALL_LIMIT_S))
        for fillers in (0, PROBE_FILLERS)
    ]
    per_filler = (probed - base) / PROBE_FILLERS
    if per_filler <= 0:
        return failed("no usage", "without usage, the prompt's length is unknown.")
    fillers = max(math.floor((length - CONTEXT_TOKENS - CONTEXT_SLACK - base) / per_filler), 0)
    about = f"a prompt of about {base + fillers * per_filler:.0f} tokens"
    body = _long_request(context, fillers, CONTEXT_TOKENS)
    answer = await send(context, body, limit_s=context_limit_s(context.target))
    if answer.status != HTTPStatus.OK or answer.usage is None:
        return failed(f"status {answer.status}", f"{about} was rejected: {answer.message}")
    prompt, said = answer.usage.prompt_tokens, content_of(answer)
    filled = (prompt + CONTEXT_TOKENS + CONTEXT_SLACK + per_filler) / length
    is_found = FACT in said.lower()
    values = {"prompt_tokens": prompt, "seconds": round(answer.elapsed_s, 3), "found": is_found}
    measured = f"{prompt} tokens in {answer.elapsed_s:.1f} s, {shorten(said, 30)!r}"
    if filled < LEAST_FILLED:
        return failed(measured, f"the server counts {prompt} prompt tokens in {about}: it cut the prompt.", values)
    if not is_found:
        detail = "the whole prompt was accepted, but the fact was not found. Small models lose facts in a long context."
        return warned(measured, detail, values)
    return passed(measured, values)


def _long_request(context: CheckContext, fillers: int, max_tokens: int) -> dict[str, object]:
    prompt = f"{FACT_SENTENCE}\n\n{FILLER * fillers}\n\n{FACT_QUESTION}"
    return request(context, [user(prompt)], max_tokens=max_tokens)


async def adapters(context: CheckContext) -> Outcome:
    """Check that each LoRA adapter is listed, answers under its name, and differs from the base model."""
    names = context.features().adapters
    if not names:
        return skipped("no LoRA adapters in the settings")
    context.wanted = f"{len(names)} adapters by name, not as the base model, 404 for others"
    listed = await context.client.get("/v1/models", limit_s=CALL_LIMIT_S)
    known = {model.id for model in served_models(listed.body)}
    faults = [f"/v1/models does not list {name}" for name in names if name not in known]
    _, base = await _answers_of(context, context.target.model)
    unchanged: list[str] = []
    for name in names:
        try:
            served, answers = await _answers_of(context, name)
        except StatusError as error:
            faults.append(f"{name} returned {error.status}: {error}")
            continue
        if served != name:
            faults.append(f"a request for {name} was answered by {served}")
        elif answers == base:
            unchanged.append(name)
    body = request(context, [user("Say hello.")], max_tokens=1, model=MISSING_ADAPTER)
    missing = await send(context, body, limit_s=CALL_LIMIT_S)
    if missing.status != HTTPStatus.NOT_FOUND:
        faults.append(f"an unknown adapter returned {missing.status}, so a wrong name is not noticed")
    measured = f"{', '.join(names)}; unknown name: {missing.status}"
    if unchanged and not faults:
        same = f"{', '.join(unchanged)}: same answers as the base model. The weights' names may not match its layers."
        return warned(measured, same, {"adapters": len(names)})
    return failed_or_passed(measured, "; ".join(faults), {"adapters": len(names)})


async def _answers_of(context: CheckContext, name: str) -> tuple[str, list[object]]:
    """Return the model that answered, its texts, and their rounded log probabilities if the server has them. Raises StatusError."""
    served, found = "", list[object]()
    for prompt in ADAPTER_PROMPTS:
        body = request(context, [user(prompt)], max_tokens=32, model=name)
        answer = await send(context, {**body, "logprobs": True}, limit_s=CALL_LIMIT_S)
        if answer.status == HTTPStatus.BAD_REQUEST:
            answer = await send(context, body, limit_s=CALL_LIMIT_S)
        served = str(as_mapping(succeeded(answer).body).get("model"))
        found.append(content_of(answer))
        for choice in as_list(as_mapping(answer.body).get("choices")):
            tokens = map(as_mapping, as_list(as_mapping(as_mapping(choice).get("logprobs")).get("content")))
            found += [round(as_number(token.get("logprob")) or 0.0, 1) for token in tokens]
    return served, found


async def speculation(context: CheckContext) -> Outcome:
    """Check that tokens are proposed, and the share that the model accepts."""
    method = context.features().speculation
    if method == "none":
        return skipped("no speculative decoding in the settings")
    context.wanted = f"proposals ({method}), {USEFUL_ACCEPTANCE:.0%} accepted or more"
    before = await context.client.scrape(limit_s=SCRAPE_LIMIT_S)
    await answered(context, request(context, [user(REPEATED)], max_tokens=256), limit_s=CALL_LIMIT_S)
    after = await context.client.scrape(limit_s=SCRAPE_LIMIT_S)
    return judged_drafts(method, counter_growth(before, after, DRAFTED), counter_growth(before, after, ACCEPTED))


def judged_drafts(method: Speculation, drafted: float | None, accepted: float | None) -> Outcome:
    """Return the result for the numbers of proposed and accepted tokens of one request; None if the server has no such counter.

    vLLM has the counters only with speculative decoding. A draft model proposes tokens in each step, n-grams only if a text repeats itself.
    """
    if drafted is None or accepted is None:
        return failed("no counters", "`vllm.speculative` is not in effect.")
    if drafted == 0 and method == "draft-model":
        return failed("0 tokens proposed", "`vllm.speculative` is not in effect.")
    share = accepted / drafted if drafted > 0 else 0.0
    values = {"proposed": drafted, "accepted": accepted, "acceptance": round(share, 4)}
    measured = f"{accepted:.0f} of {drafted:.0f} proposed tokens accepted ({share:.0%})"
    if drafted < FEWEST_DRAFTED:
        return warned(measured, "too few tokens were proposed to judge the share.", values)
    if share < USEFUL_ACCEPTANCE:
        doubt = "so few accepted tokens make responses slower."
        return warned(measured, f"{doubt} Measure with and without `vllm.speculative` (`gemma bench`).", values)
    return passed(measured, values)


def counter_growth(before: Scrape | None, after: Scrape | None, names: tuple[str, ...]) -> float | None:
    """Return the growth of a counter; None if the server does not have it."""
    last = after.total(names) if after is not None else None
    first = before.total(names) if before is not None else None
    return None if last is None else last - (first or 0.0)


async def metrics(context: CheckContext) -> Outcome:
    """Check that the metrics of load are readable."""
    context.wanted = "KV use, waiting and running requests, counted tokens"
    scrape = await context.client.metrics(limit_s=SCRAPE_LIMIT_S)
    kv = scrape.highest(KV_USAGE)
    waiting = scrape.total(WAITING)
    running = scrape.total(RUNNING)
    tokens = scrape.total(GENERATION_TOKENS)
    found = {KV_USAGE: kv, WAITING: waiting, RUNNING: running, GENERATION_TOKENS: tokens}
    missing = [names[0] for names, value in found.items() if value is None]
    if missing:
        return failed(f"missing: {', '.join(missing)}", "Check --disable-log-stats and the vLLM version.")
    measured = f"KV {kv or 0:.1%}, waiting {waiting:.0f}, running {running:.0f}, {tokens:.0f} tokens"
    return passed(measured, {"kv_cache_usage": kv, "waiting": waiting, "running": running, "generated_tokens": tokens})


async def options(context: CheckContext) -> Outcome:
    """Compare `cache_config_info` with the plan. The block count has a tolerance."""
    memory = context.target.memory
    replicas = context.target.replicas
    planned = context.target.cache_options
    wanted = [f"{replicas} engines"] if replicas > 1 else []
    wanted += [f"{memory.kv_blocks} blocks ± {KV_TOLERANCE:.0%}"] if memory is not None else []
    context.wanted = ", ".join([*wanted, *(f"{name} {value}" for name, value in planned.items())])
    scrape = await context.client.scrape(limit_s=SCRAPE_LIMIT_S)
    found = scrape.labels(CACHE_CONFIG) if scrape is not None else None
    if scrape is None or found is None:
        return skipped("the server does not export its cache configuration", "no cache_config_info")
    engines = scrape.series(CACHE_CONFIG)
    blocks = _whole(found.get("num_gpu_blocks"))
    block_size = _whole(found.get("block_size"))
    values: dict[str, float | None] = {"num_gpu_blocks": blocks, "block_size": block_size, "engines": engines}
    if memory is not None and blocks is not None:
        values["planned_blocks"] = memory.kv_blocks
    used = f"utilization {found.get('gpu_memory_utilization', '?')}"
    each = f"{engines} engines, each " if engines > 1 else ""
    measured = f"{each}{blocks} blocks of {block_size}, {found.get('cache_dtype', '?')}, {used}"
    differing = [
        f"{name} is {found[name]}, planned {value}"
        for name, value in planned.items()
        if not _same(found.get(name), value)
    ]
    faults: list[str] = []
    if engines != replicas:
        faults.append(
            f"the plan has {number_of(replicas, 'engine')} (`vllm.dataParallelSize`), but {engines} export metrics."
        )
    if differing:
        faults.append(f"not in effect: {'; '.join(differing)}.")
    return failed(measured, " ".join(faults), values) if faults else _blocks(context, measured, blocks, values)


def _blocks(context: CheckContext, measured: str, blocks: float | None, values: Values) -> Outcome:
    """Compare the blocks of the KV cache with the plan."""
    memory = context.target.memory
    if memory is None or blocks is None:
        state = "passed" if context.target.cache_options else "skipped"
        return Outcome(state, "no plan to compare the blocks with", values=values, measured=measured)
    if abs(blocks / memory.kv_blocks - 1) <= KV_TOLERANCE:
        return passed(measured, values)
    # Only a warning: on a model with several layer groups (sliding and full attention), a block is a page of one group. How the
    # groups share the pool differs between vLLM versions.
    side = "more" if blocks > memory.kv_blocks else "fewer"
    differs = f"{percent_over(blocks, memory.kv_blocks)} {side} than planned."
    why = "On models with sliding windows, a block is a page of one layer group."
    log = f"Compare the log line 'GPU KV cache size' with the planned {memory.kv_tokens:,} tokens."
    return warned(measured, f"{differs} {why} {log}", values)


def _same(actual: str | None, wanted: str) -> bool:
    """Return whether an option is as planned, or not exported."""
    if actual is None:
        return True
    try:
        return abs(float(actual) - float(wanted)) < ROUNDING
    except ValueError:
        # vLLM reports the type that fp8 resolved to on this hardware, such as fp8_e4m3.
        return actual == wanted or actual.startswith(f"{wanted}_")


def _whole(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdecimal() else None
