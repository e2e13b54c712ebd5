"""Query every source for every stack concurrently and combine the results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Final, TypedDict

from gemma_serving.cloud import google_api
from gemma_serving.cloud.clock import GOOGLE_CLOCK
from gemma_serving.cloud.simulated import is_simulated
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.contracts.parallel import each, each_within
from gemma_serving.engine import state as states
from gemma_serving.engine.locks import StackLock, stack_locks
from gemma_serving.engine.previewed import previewed
from gemma_serving.engine.state import StackState
from gemma_serving.engine.steps import changes_of
from gemma_serving.scripts.status.cloud import CAPACITY, DeployedServer, cloud_facts, lost_buckets, serving
from gemma_serving.scripts.status.judge import backends_of, drift_of, judged_gateway, next_command, waits_of
from gemma_serving.scripts.status.report import (
    BUCKETS,
    ENDPOINT,
    GOOGLE,
    REFRESH,
    STATE,
    CloudFacts,
    ServerFacts,
    StackStatus,
    StatusReport,
    UnansweredSource,
)
from gemma_serving.scripts.status.server import server_facts, why_not_asked
from gemma_serving.scripts.status.serves import reason_of, serves_now

CALLS: Final = 32
"""Maximum number of concurrent queries."""
ANSWER_LIMIT_S: Final = 60.0
"""Timeout of a source in seconds."""
LONG_LIMIT_S: Final = 600.0
"""The same with a tunnel or a refresh."""

Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRequest:
    """Stacks and sources to query."""

    stack: str | None = None
    """None: all stacks."""
    tunnel: bool = False
    wake: bool = False
    refresh: bool = False

    @property
    def limit_s(self) -> float:
        """Timeout of the query in seconds."""
        return LONG_LIMIT_S if self.tunnel or self.refresh else ANSWER_LIMIT_S


class _SourceAnswers(TypedDict, total=False):
    """Answers of the sources of a stack, by source. A source that did not respond has no entry."""

    google: CloudFacts
    endpoint: ServerFacts
    refresh: Sequence[str]
    lost: Sequence[str]
    """Sentences about buckets that no longer exist."""


@dataclass(slots=True, kw_only=True)
class _Known:
    """Results of one stack while its sources are queried."""

    state: StackState
    locks: tuple[StackLock, ...]
    serves: DeployedServer | None
    not_asked: str | None = None
    answers: _SourceAnswers = field(default_factory=_SourceAnswers)
    unanswered: list[UnansweredSource] = field(default_factory=list[UnansweredSource])


def collect(request: StatusRequest, *, clock: Clock = GOOGLE_CLOCK.now) -> StatusReport:
    """Return the status of the stacks.

    Raises CommandRefusedError if the stack does not exist or is not deployed, and ScriptError if this machine can read no state.
    """
    found = [states.read(request.stack)] if request.stack else states.all_states()
    if found and all(state.is_out_of_reach for state in found):
        raise ScriptError(found[0].detail)
    if request.stack:
        if not found[0].lacks_capacity:
            states.require_deployed(found[0])
        found = [*found, *each([partial(states.read, stack) for stack in backends_of(found[0])], workers=CALLS)]
    known = each([partial(_known, state) for state in found], workers=CALLS)
    tasks = [(one, source, query) for one in known for source, query in _sources(one, request).items()]
    answers = each_within([query for _, _, query in tasks], workers=CALLS, limit_s=request.limit_s)
    for (one, source, _), (answer, error) in zip(tasks, answers, strict=True):
        if answer is not None:
            one.answers.update(answer)
        elif error is not None:
            one.unanswered.append(UnansweredSource(source=source, why=reason_of(error)))
    now = clock()
    rows = [_status(one, now) for one in known]
    return StatusReport(
        at_s=now.timestamp(),
        simulated=is_simulated(),
        stacks=tuple(
            judged_gateway(row, one.state, rows) if one.state.is_gateway else row
            for row, one in zip(rows, known, strict=True)
        ),
    )


def _known(state: StackState) -> _Known:
    deployed = state.status in {"read", "unreadable", "no engine"}
    return _Known(state=state, locks=stack_locks(state.stack) if deployed else (), serves=serving(state))


def _sources(one: _Known, request: StatusRequest) -> Mapping[str, Callable[[], _SourceAnswers]]:
    """Return the queries for a stack by source."""
    stack = one.state.stack
    outputs = one.state.outputs
    found = one.serves
    queries: dict[str, Callable[[], _SourceAnswers]] = {}
    if found is not None:
        queries[GOOGLE] = lambda: {"google": _query_google(found, stack)}
        queries[BUCKETS] = lambda: {"lost": lost_buckets(one.state)}  # calls nothing without a bucket
    if outputs is not None and found is not None:
        one.not_asked = why_not_asked(outputs, found, tunnel=request.tunnel, wake=request.wake)
        if one.not_asked is None:
            queries[ENDPOINT] = lambda: {"endpoint": server_facts(outputs)}
    if request.refresh and one.state.resources:
        queries[REFRESH] = lambda: {"refresh": _query_refresh(stack)}
    # Without an engine, the file of a local backend is the state itself.
    if one.state.status == "unreadable" or (one.state.status == "no engine" and not one.state.raw):
        one.unanswered.append(UnansweredSource(source=STATE, why=one.state.detail))
    return queries


def _query_google(found: DeployedServer, stack: str) -> CloudFacts:
    return cloud_facts(google_api.connect(found.project), found, stack=stack)


def _query_refresh(stack: str) -> Sequence[str]:
    """Return the changes of the next `pulumi up --refresh`, one sentence each. Raises ScriptError if the preview fails."""
    changes, _, _ = changes_of(previewed(stack, "--refresh"))
    return [f"{change.name} ({change.type}): {change.op}." for change in changes if change.op != "read"]


def _status(one: _Known, now: datetime) -> StackStatus:
    outputs = one.state.outputs
    found = one.serves
    answers = one.answers
    facts, refreshed = answers.get(GOOGLE), answers.get(REFRESH)
    target = outputs.target if outputs else None if found is None else "tpu" if found.kind in CAPACITY else "cloud-run"
    if one.state.is_gateway:
        target = "gateway"
    unknown = [UnansweredSource(source=GOOGLE, why=why) for why in (facts.unknown if facts else ())]
    failed = next((item.why for item in one.unanswered if item.source == GOOGLE), "")
    status = StackStatus(
        stack=one.state.stack,
        deployed=outputs is not None and found is not None,
        target=target,
        model=outputs.model if outputs else None,
        accelerator=outputs.plan.accelerator if outputs and target != "gateway" else None,
        address=_address(outputs),
        serves=serves_now(one.state, facts, why_unknown=failed),
        cloud=facts,
        server=answers.get(ENDPOINT),
        server_not_asked=one.not_asked,
        drift=(*drift_of(facts, target), *answers.get("lost", ()), *(refreshed or ())),
        refreshed=refreshed is not None,
        waits=tuple(waits_of(one.state, one.locks, facts, now)),
        unanswered=(*one.unanswered, *unknown),
    )
    return replace(
        status, next_command=next_command(status, one.state, one.locks, lost_bucket=bool(answers.get("lost")))
    )


def _address(outputs: StackOutputs | None) -> str:
    if outputs is None:
        return ""
    return outputs.endpoint if outputs.target == "cloud-run" else outputs.address or ""
