"""A stack's use of its limits: the verdict, and the sentence with each limit that it exceeds. Use that equals a limit is within it."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gemma_serving.cloud.spending import StackSpending
from gemma_serving.contracts.labels import NO_LIMITS, StackLimits
from gemma_serving.planning.units import duration
from tests.cloud.populated import owner

FEW = st.sampled_from([0, 3600, 7200])
LIMIT = st.none() | FEW
IDLE = st.sampled_from(
    [(None, None), ("idle", 0.0), ("idle", 3600.0), ("idle", 7200.0), ("busy", None), ("unknown", None)]
)


@given(st.tuples(LIMIT, LIMIT, LIMIT), FEW, FEW, IDLE, st.booleans())
def test_each_limit_is_compared_and_an_unknown_figure_exceeds_none(limits, age_s, usd, idle, is_unknown):
    of = StackLimits(max_age_s=limits[0], max_usd=limits[1], idle_after_s=limits[2])
    word, idle_s = idle
    stack = StackSpending(
        owner=owner("x"), limits=of, age_s=age_s, usd=usd, usd_per_hour=None, idle=word, idle_s=idle_s,
        unknown=["It is."] if is_unknown else [], read=["a", "b"],
    )  # fmt: skip
    rows = [
        (limits[0], age_s, f"maxAge {duration(limits[0] or 0)}", f"(age {duration(age_s)})"),
        (limits[1], usd, f"maxUsd {limits[1]}", f"(cost ${usd:,.2f})"),
        (
            limits[2],
            idle_s or 0,
            f"tpu.idleAfter {duration(limits[2] or 0)}",
            f"(no request for {duration(idle_s or 0)})",
        ),
    ]
    named = " and ".join(text for limit, _, text, _ in rows if limit is not None)
    over = [f"{text} {use}" for limit, used, text, use in rows if limit is not None and used > limit]
    so_far = f"{duration(age_s)} old, ${usd:,.2f}"
    so_far += {"idle": f", idle for {duration(idle_s or 0)}", "busy": ", busy"}.get(word, "")
    assert (stack.limits_text, [*stack.exceeded]) == (named, over)
    if of == NO_LIMITS:
        said = ("no limit", f"stack x has no limit; it is {duration(age_s)} old and has cost ${usd:,.2f}.")
    elif over:
        said = ("exceeded", f"stack x exceeds {' and '.join(over)}.")
    elif is_unknown:
        said = ("unknown", f"stack x: use of {named} is unknown; it is at least {so_far}.")
    else:
        said = ("within", f"stack x is within {named}: {so_far}.")
    assert (stack.verdict, stack.sentence()) == said
    proof = stack.proof
    assert (proof is not None) == bool(over)
    if proof is not None:
        assert (f"{proof.claim}.", proof.source, proof.owners) == (said[1], "a; b", {"x": owner("x")})
    assert replace(stack, limits=NO_LIMITS).proof is None
