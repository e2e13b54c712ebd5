"""Query every source for every stack concurrently and combine the results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final, TypedDict

from gemma_serving.cloud.clock import GOOGLE_CLOCK
from gemma_serving.cloud.google_api import connect
from gemma_serving.cloud.served_tokens import served_tokens
from gemma_serving.cloud.simulated import is_simulated
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.contracts.parallel import each, each_within
from gemma_serving.contracts.stack_facts import StackFacts
from gemma_serving.contracts.three_answers import Absent, Answer, Present, Unknown
from gemma_serving.engine import state as states
from gemma_serving.engine.previewed import previewed
from gemma_serving.engine.state import StackState
from gemma_serving.engine.steps import changes_of
from gemma_serving.scripts.logs.api import MeasuredStart, first_start, with_known_cause
from gemma_serving.scripts.stack.costs import lost_files
from gemma_serving.scripts.stack.deployed_server import CAPACITY
from gemma_serving.scripts.stack.facts import facts_of, read_facts, reason_of
from gemma_serving.scripts.stack.labelled import require_name, without_state
from gemma_serving.scripts.stack.serves import require_deployed, serves_now, why_not_asked
from gemma_serving.scripts.status.judge import drift_of, next_command, waits_of
from gemma_serving.scripts.status.price import InOut, token_price
from gemma_serving.scripts.status.report import (
    AGENT,
    ENDPOINT,
    GOOGLE,
    LOST,
    REFRESH,
    STATE,
    ServerAddress,
    ServerFacts,
    StackStatus,
    StatusReport,
    UnansweredSource,
)
from gemma_serving.scripts.status.server_state import server_facts

CALLS: Final = 32
"""Maximum number of concurrent queries."""
ANSWER_LIMIT_S: Final = 60.0
"""Timeout of a source in seconds."""
LONG_LIMIT_S: Final = 600.0
"""The same with a tunnel or a refresh."""
_TO_RETURN_S: Final = 1.0
"""Seconds after the timeout within which the facts are returned with the parts that were read."""

Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRequest:
    """Stacks and sources to query."""

    stack: str | None = None
    """None: all stacks."""
    tunnel: bool = False
    wake: bool = False
    refresh: bool = False
    metrics: bool = False
    api: InOut | None = None

    @property
    def limit_s(self) -> float:
        """Timeout of the query in seconds."""
        return LONG_LIMIT_S if self.tunnel or self.refresh else ANSWER_LIMIT_S


class _Answers(TypedDict, total=False):
    """Answers of Google, the server and the engine. One that did not respond has no entry."""

    facts: StackFacts
    start: Answer[MeasuredStart]
    endpoint: ServerFacts
    refresh: Sequence[str]
    tokens: tuple[Answer[InOut], Answer[InOut]] | None


def collect(request: StatusRequest, *, clock: Clock = GOOGLE_CLOCK.now) -> StatusReport:
    """Return the status of the stacks.

    Raises CommandRefusedError if the stack does not exist or is not deployed, and ScriptError if this machine can read no state.
    """
    found = [states.read(request.stack)] if request.stack else states.all_states()
    if found and all(state.is_out_of_reach for state in found):
        raise ScriptError(found[0].detail)
    if request.stack and found[0].status == "missing":
        raise CommandRefusedError(_without_state(found[0], request.limit_s))
    known = each([partial(_known, state, request, clock) for state in found], workers=CALLS)
    if request.stack and known[0][1].serves.word == "not deployed":
        require_deployed(known[0][0])
    return StatusReport(
        at_s=clock().timestamp(),
        simulated=is_simulated(),
        stacks=tuple(row for _, row in known),
    )


def _without_state(state: StackState, limit_s: float) -> str:
    """Return what Google has of a stack without a state, or that it does not exist, as sentences with the next command."""
    labels = read_facts(state, "labels", limit_s=limit_s).labels
    if isinstance(labels, Present):
        require_name(state.stack)
        return f"{without_state(state.stack, labels.value, labels.unread)} Use that backend, or run `gemma up {state.stack}` to take the stack over."
    unknown = [f"Whether Google has it is unknown: {labels.why}"] if isinstance(labels, Unknown) else []
    return " ".join([state.detail, *unknown, *lost_files(state.stack)])


def _known(state: StackState, request: StatusRequest, clock: Clock) -> tuple[StackFacts, StackStatus]:
    """Ask Google, the server and the engine at the same time. Of a server that Google reports as gone, nothing is kept."""
    facts, not_asked = facts_of(state), None
    outputs, server = facts.deployed, facts.recorded
    queries: dict[str, Callable[[], _Answers]] = {GOOGLE: lambda: _of_google(state, request)}
    if outputs is not None and server is not None:
        not_asked = why_not_asked(outputs, server, tunnel=request.tunnel, wake=request.wake)
        if not_asked is None:
            queries[ENDPOINT] = lambda: _of_server(state, outputs, request)
    if request.refresh and facts.resources:
        queries[REFRESH] = lambda: {"refresh": _query_refresh(facts.stack)}
    answers, unanswered = _Answers(), dict[str, str]()
    found = each_within([*queries.values()], workers=len(queries), limit_s=request.limit_s + _TO_RETURN_S)
    for source, (answer, error) in zip(queries, found, strict=True):
        answers.update(answer or {})
        if answer is None:
            unanswered[source] = reason_of(error)
    facts = answers.get("facts", facts)
    phase = facts.cloud.phase if facts.cloud is not None else None
    read = {STATE: facts.state, GOOGLE: facts.server, LOST: facts.lost, AGENT: phase}
    unanswered |= {source: part.why for source, part in read.items() if isinstance(part, Unknown)}
    if isinstance(facts.lost, Present) and facts.lost.unread:
        unanswered[LOST] = facts.lost.unread
    if facts.cloud is not None and facts.cloud.has_ended:
        not_asked = None
        answers.pop("endpoint", None)
        unanswered.pop(ENDPOINT, None)
    status = replace(
        _status(facts, answers, clock(), request.api),
        server_not_asked=not_asked,
        unanswered=[
            *(UnansweredSource(source=source, why=why) for source, why in unanswered.items()),
            *(UnansweredSource(source=GOOGLE, why=why) for why in (facts.cloud.unknown if facts.cloud else ())),
        ],
    )
    return facts, replace(status, next_command=next_command(status, facts))


def _of_server(state: StackState, outputs: StackOutputs, request: StatusRequest) -> _Answers:
    """Return the health and load of a server. No tunnel is opened to a node that Google reports as gone."""
    cloud = read_facts(state, "server", limit_s=request.limit_s).cloud if request.tunnel else None
    return {} if cloud is not None and cloud.has_ended else {"endpoint": server_facts(outputs, metrics=request.metrics)}


def _of_google(state: StackState, request: StatusRequest) -> _Answers:
    """Return Google's report, and the first start of one stack: Cloud Logging allows 60 reads per minute and project."""
    facts = with_known_cause(state, read_facts(state, "cost", "lost", "locks", limit_s=request.limit_s))
    start = first_start(facts) if request.stack == state.stack else Absent()
    return {"facts": facts, "start": start, "tokens": _tokens(state, facts)}


def _tokens(state: StackState, facts: StackFacts) -> tuple[Answer[InOut], Answer[InOut]] | None:
    """Return the tokens served since the first start and in the last day; None if no server has started."""
    server, cloud = facts.recorded, facts.cloud
    if server is None or cloud is None or cloud.age_s is None:
        return None
    namespace = Names(project=server.project, stack=state.former_name or state.stack).base
    return served_tokens(connect(server.project), server.project, namespace, cloud.age_s)


def _query_refresh(stack: str) -> Sequence[str]:
    """Return the changes of the next `pulumi up --refresh`, one sentence each. Raises ScriptError if the preview fails."""
    changes, _, _ = changes_of(previewed(stack, "--refresh"))
    return [f"{change.name} ({change.type}): {change.op}." for change in changes if change.op != "read"]


def _status(facts: StackFacts, answers: _Answers, now: datetime, api: InOut | None) -> StackStatus:
    outputs, cloud, server = facts.deployed, facts.cloud, answers.get("endpoint")
    tokens = answers.get("tokens")
    counted = (server.tokens, server.started_s) if server and server.tokens and server.started_s else None
    found = facts.declared if facts.recorded is not None or facts.is_unrecorded else None
    target = outputs.target if outputs else None if found is None else "tpu" if found.kind in CAPACITY else "cloud-run"
    return StackStatus(
        stack=facts.stack,
        deployed=outputs is not None and facts.recorded is not None,
        target=target,
        model=outputs.model if outputs else None,
        accelerator=outputs.plan.accelerator if outputs else None,
        address=_address(outputs) if outputs else None,
        serves=serves_now(facts),
        cloud=cloud,
        server=server,
        start=answers.get("start", Absent()),
        price=token_price(cloud, outputs, counted, tokens, api=api, now=now) if cloud and outputs and tokens else None,
        drift=(
            *drift_of(facts, target),
            *facts.losses,
            *answers.get("refresh", ()),
        ),
        refreshed="refresh" in answers,
        waits=tuple(waits_of(facts, now)),
    )


def _address(outputs: StackOutputs) -> ServerAddress:
    return ServerAddress(
        endpoint=outputs.endpoint,
        auth=outputs.auth,
        served_model=outputs.served_model,
        max_model_len=outputs.smoke.max_model_len,
        image=outputs.image,
        connect=outputs.connect,
    )
