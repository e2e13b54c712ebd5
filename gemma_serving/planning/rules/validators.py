"""Rule for settings that vLLM's own configuration refuses, each check a row of planning/data/validators.json."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Final, cast

from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.question.extra_arguments import extra_arguments
from gemma_serving.planning.question.releases import is_before
from gemma_serving.planning.question.validators import SPECULATIVE, Facts, Validator, fact_of, facts_of, refused_by
from gemma_serving.planning.rules.arguments import kept_arguments
from gemma_serving.planning.rules.registry import RuleResult, rule
from gemma_serving.planning.settings.finding import Remedy
from gemma_serving.planning.settings.vllm_args import KEY_OF
from gemma_serving.planning.settings.vllm_blocks import PROPOSED_TOKENS

_TOKENS: Final = f"{SPECULATIVE}.num_speculative_tokens"
_MOST_WAYS: Final = 16
"""Ways that are tried where several checks refuse."""
Values = Mapping[str, object]
"""New values of facts; None removes one."""


def server_facts(subject: Subject) -> Facts:
    """Return the facts of the planned server."""
    resolved, spec = subject.resolved, subject.resolved.spec
    gpus: dict[str, object] = {} if resolved.is_tpu else {"gpus": resolved.accelerator.devices}
    heads = max((group.attention.kv_heads for group in spec.groups if group.owns_kv), default=0)
    return facts_of(
        resolved.vllm,
        extra_arguments(resolved),
        **gpus,
        is_tpu=resolved.is_tpu,
        kv_heads=heads,
        experts=int(spec.is_moe),
    )


@rule("ARG06")
def _refused(subject: Subject) -> RuleResult | None:
    facts = server_facts(subject)
    rows = [row for row in refused_by(facts) if not is_before(subject.resolved, row.first)]
    if not rows:
        return None
    said = " ".join(
        f"{_keys(subject, row, facts)}: {' '.join(row.sentence(facts).split()).rstrip('.')}." for row in rows
    )
    ways = islice(product(*(_ways(row, facts) for row in rows)), _MOST_WAYS)
    return RuleResult(
        f"vLLM's configuration refuses {said} The server will not start.",
        remedies=[_remedy(subject, facts, {name: value for one in way for name, value in one.items()}) for way in ways],
        last_resorts=[_remedy(subject, facts, {SPECULATIVE: None})],
        advice=" ".join(row.advice for row in rows if row.advice),
        source=f"vLLM, {', '.join(dict.fromkeys(row.source for row in rows))}",
    )


def _names(row: Validator, facts: Facts) -> list[str]:
    """Return the facts that a check compares and the server states."""
    compared = [word for name, _, *value in row.conditions for word in (name, *value) if isinstance(word, str)]
    return [name for name in dict.fromkeys(compared) if name in facts or name == _TOKENS]


def _keys(subject: Subject, row: Validator, facts: Facts) -> str:
    """Return the keys and arguments whose values a check compares."""
    arguments = {fact_of(one.name): one.written for one in extra_arguments(subject.resolved)}
    question = subject.resolved.question
    unknown = [
        f".{key}"
        for name, comparison, *other in row.conditions
        if comparison == "has other than"
        for key in _others(facts[name], other[0])
    ]
    whole = [name.partition(".")[0] for name in _names(row, facts)]
    keys = [arguments.get(name) or (question.vllm_key(name) if name in KEY_OF else "") for name in whole]
    return ", ".join(f"{key}{part}" for key in dict.fromkeys(keys) if key for part in unknown or [""])


def _others(config: object, known: Sequence[str]) -> list[str]:
    """Return the keys of a map that a check does not know."""
    return sorted(set(cast("Mapping[str, object]", config)) - set(known))


def _ways(row: Validator, facts: Facts) -> Iterator[Values]:
    """Yield new values of one fact after which a check may accept the server."""
    for name, comparison, *value in row.conditions:
        other = value[0] if value else None
        if name == _TOKENS:
            yield {name: PROPOSED_TOKENS}
        elif comparison == "has other than":
            yield dict.fromkeys((f"{name}.{key}" for key in _others(facts[name], cast("list[str]", other))), None)
        elif isinstance(other, str) and other in facts and name in KEY_OF and other in KEY_OF:
            raised, lowered = {name: facts[other]}, {other: facts[name]}  # of two, the one that needs less memory first
            yield from (raised, lowered) if comparison == ">" else (lowered, raised)
        elif name != SPECULATIVE:
            yield {name: None}


def _remedy(subject: Subject, facts: Facts, values: Values) -> Remedy:
    """Return the change of settings that gives facts new values."""
    read = [one for one in extra_arguments(subject.resolved) if fact_of(one.name) in values]
    changes: dict[str, object] = {"vllm.extra_args": kept_arguments(subject, read)} if read else {}
    changes |= {f"vllm.{name}": value for name, value in values.items() if name in KEY_OF}
    parts = {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{SPECULATIVE}.")}
    if parts:
        given = cast("Mapping[str, object]", facts[SPECULATIVE])
        changes[f"vllm.{SPECULATIVE}"] = {key: one for key, one in {**given, **parts}.items() if one is not None}
    return Remedy(changes=changes)
