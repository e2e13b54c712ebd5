"""Rules for a gateway: its backends answer alike, are in its network, and one of them is there when another ends."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final

from contracts.gateway import CONCURRENCY, LONGEST_REQUEST_S
from planning.cost.costs import gateway_parts
from planning.cost.subject import Subject
from planning.data.prices import PriceBook, region_of
from planning.data.tables import Table
from planning.question.types import Finding
from planning.rules.registry import ALL_RULES
from planning.units import DAY_S, HOUR_S, ceil_div, duration

_DAY_H: Final = DAY_S / HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedBackend:
    """A backend as its last `up` left it. All values are empty if the stack is not deployed."""

    address: str = ""
    """Address of its machine in the network."""
    state: str = ""
    """State of its capacity."""
    deadline: str = ""
    """Time at which Google deletes the machine (RFC 3339, UTC); empty without a run limit."""
    api_key_secret: str = ""
    """Version in Secret Manager of the API key for its callers; empty without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A stack behind the gateway."""

    stack: str
    subject: Subject | None
    """Its settings with all figures; None if they cannot be read."""
    problem: str = ""
    """Reason for that."""
    gateway: str = ""
    """Stack that `tpu.gateway` names, or empty."""
    deployed: DeployedBackend | None = None
    """None: the deployed stack was not read."""

    @property
    def served_model(self) -> str:
        """Name that clients send as `model`; empty if the settings cannot be read."""
        if self.subject is None:
            return ""
        deployment = self.subject.resolved.deployment
        return deployment.vllm.served_model_name or deployment.model

    @property
    def is_tpu(self) -> bool:
        """True for a TPU stack."""
        return self.subject is not None and self.subject.resolved.platform == "tpu-vm"

    @property
    def serves(self) -> bool:
        """True if the backend has an address."""
        return self.deployed is not None and bool(self.deployed.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayQuestion:
    """A gateway with its backends."""

    stack: str
    region: str
    """Region of its service."""
    min_instances: int
    """Instances that always run."""
    max_instances: int
    regions: Sequence[str]
    """Regions with a subnetwork."""
    internet_egress: bool
    backends: Sequence[Backend]
    prices: PriceBook | None = None


_Check = Callable[[GatewayQuestion], Iterator[tuple[str, str]]]
"""Yields message and advice of each finding."""
_CHECKS: Final[dict[str, _Check]] = {}
GATEWAY_RULES: Final = Table(lambda: {name: one for name, one in ALL_RULES.items() if one.on == "gateway"})
"""By id, in the order of their findings. No setting can accept them."""


def _rule(identifier: str) -> Callable[[_Check], _Check]:
    def register(check: _Check) -> _Check:
        _CHECKS[identifier] = check
        return check

    return register


def gateway_findings(question: GatewayQuestion) -> tuple[Finding, ...]:
    """Return all findings, blocking ones first."""
    return tuple(
        Finding(
            id=rule.id, severity=rule.severities[0], message=message, remedies=(), advice=advice, source=rule.source
        )
        for rule in GATEWAY_RULES.values()
        for message, advice in _CHECKS[rule.id](question)
    )


@_rule("GTW01")
def _different(question: GatewayQuestion) -> Iterator[tuple[str, str]]:
    known = [(backend, backend.subject) for backend in question.backends if backend.subject is not None]
    if not known:
        return
    values: dict[str, tuple[str, list[str]]] = {
        "model name": ("vllm.servedModelName", [backend.served_model for backend, _ in known]),
        "maximum length": ("vllm.maxModelLen", [str(subject.resolved.max_model_len) for _, subject in known]),
        "API key": (
            "apiKey",
            ["set" if subject.resolved.deployment.has_api_key else "not set" for _, subject in known],
        ),
    }
    for what, (key, each) in values.items():
        if len(set(each)) > 1:
            listed = ", ".join(f"{backend.stack} {value}" for (backend, _), value in zip(known, each, strict=True))
            yield (
                f"Backends have a different {what}: {listed}. A request that one of them accepts fails on another.",
                f"Set gemma-serving:{key} to the same value in all of them.",
            )


@_rule("GTW02")
def _unreachable(question: GatewayQuestion) -> Iterator[tuple[str, str]]:
    for backend in question.backends:
        file = f"Pulumi.{backend.stack}.yaml"
        if backend.subject is None:
            yield (
                f"The settings of backend {backend.stack} cannot be read. {backend.problem}".rstrip(),
                f"Fix {file}, or remove {backend.stack} from gemma-serving:gateway.backends.",
            )
        elif backend.is_tpu:
            yield from _outside(question, backend, backend.subject, file)
        else:
            yield (
                f"Backend {backend.stack} is a Cloud Run stack, but a gateway serves TPU stacks only.",
                f"Remove {backend.stack} from gemma-serving:gateway.backends.",
            )


def _outside(question: GatewayQuestion, backend: Backend, subject: Subject, file: str) -> Iterator[tuple[str, str]]:
    tpu = subject.resolved.deployment.tpu
    if backend.gateway != question.stack:
        named = f"tpu.gateway is {backend.gateway}" if backend.gateway else "tpu.gateway is not set"
        yield (
            f"Backend {backend.stack} is not in the gateway's network: {named}.",
            f"In {file}, set gemma-serving:tpu.gateway: {question.stack}. The machine of a deployed stack is replaced.",
        )
    regions = dict.fromkeys(region for zone in tpu.zones if (region := region_of(zone)))
    absent = [region for region in regions if region not in question.regions]
    if absent:
        yield (
            f"The gateway has no subnetwork in {', '.join(absent)}, where backend {backend.stack} has zones.",
            f"Add {', '.join(absent)} to gemma-serving:gateway.regions, or remove those zones in {file}.",
        )
    needs_nat = subject.resolved.weights_mode == "hub" or tpu.api == "compute-engine"
    if needs_nat and not question.internet_egress:
        what = "the docker package" if tpu.api == "compute-engine" else "weights from the Hugging Face hub"
        yield (
            f"Backend {backend.stack} downloads {what}, but gateway.internetEgress is false.",
            "Set gemma-serving:gateway.internetEgress: true.",
        )


@_rule("GTW03")
def _absent(question: GatewayQuestion) -> Iterator[tuple[str, str]]:
    absent = [backend for backend in question.backends if backend.deployed is not None and not backend.serves]
    for backend in absent:
        state = (
            f"its capacity is {backend.deployed.state}"
            if backend.deployed and backend.deployed.state
            else "it is not deployed"
        )
        yield (
            f"Backend {backend.stack} has no address ({state}), so it gets no requests.",
            f"Run `pulumi up --stack {backend.stack}`, then `pulumi up --stack {question.stack}`.",
        )
    if absent and len(absent) == len(question.backends):
        yield (
            "No backend has an address, so `up` creates the network and the account of the gateway only, and deletes a service from before.",
            f"After the first backend is up, run `pulumi up --stack {question.stack}` again.",
        )


@_rule("GTW04")
def _alone(question: GatewayQuestion) -> Iterator[tuple[str, str]]:
    if len(question.backends) > 1:
        return
    (server,) = question.backends
    renews = server.subject is not None and server.subject.resolved.deployment.tpu.renew_before_s is not None
    until = f" After a renewal, requests fail until `pulumi up --stack {question.stack}`." if renews else ""
    yield (
        f"{server.stack} is the only backend. Its end, restart or change is an outage for callers.{until}",
        "Add a second stack to gemma-serving:gateway.backends.",
    )


@_rule("GTW05")
def _cut(question: GatewayQuestion) -> Iterator[tuple[str, str]]:
    for backend in question.backends:
        if backend.subject is not None:
            tokens = backend.subject.resolved.max_model_len
            longest_s = tokens / backend.subject.throughput.decode_tok_per_s
            if longest_s > LONGEST_REQUEST_S:
                limit = f"Cloud Run ends a request after {duration(LONGEST_REQUEST_S)}"
                yield (
                    f"An answer of {tokens:,} tokens takes {duration(longest_s)} on {backend.stack}, but {limit}.",
                    f"Limit max_tokens in requests, or lower gemma-serving:vllm.maxModelLen to {int(tokens * LONGEST_REQUEST_S / longest_s):,}.",
                )
    ends = (
        sorted(
            (datetime.fromisoformat(backend.deployed.deadline), backend)
            for backend in question.backends
            if backend.deployed is not None and backend.deployed.deadline
        )
        if all(backend.serves for backend in question.backends)
        else []
    )
    start_s = max((one.subject.startup.ready_s for one in question.backends if one.subject is not None), default=0.0)
    for (earlier, first), (later, second) in pairwise(ends):
        gap_s = (later - earlier).total_seconds()
        if gap_s < start_s:
            limit = f"less than the {duration(start_s)} that a new server needs"
            yield (
                f"{first.stack} ends at {earlier:%H:%M} UTC and {second.stack} {duration(gap_s)} later, {limit}.",
                f"Replace one of them earlier, for example with a different maxRunDuration in Pulumi.{first.stack}.yaml.",
            )


@_rule("GTW07")
def _full(question: GatewayQuestion) -> Iterator[tuple[str, str]]:
    known = [backend.subject.resolved for backend in question.backends if backend.subject is not None]
    taken = sum(each.max_num_seqs * each.dp for each in known)
    accepted = question.max_instances * CONCURRENCY
    if taken > accepted:
        yield (
            f"The servers run {taken:,} requests at once, but {question.max_instances} instances of the gateway have memory for {accepted:,}.",
            f"Set gemma-serving:gateway.maxInstances: {ceil_div(taken, CONCURRENCY)}.",
        )


def usd_per_hour(question: GatewayQuestion, servers: Sequence[Backend]) -> float:
    """Return the price per hour of the gateway's instances that always run and of these servers."""
    each = sum(part.usd_per_hour for part in gateway_parts(question.region, question.prices))
    costs = [backend.subject.cost.usd_per_hour for backend in servers if backend.subject is not None]
    return sum(costs, each * question.min_instances)


@_rule("GTW06")
def _cost(question: GatewayQuestion) -> Iterator[tuple[str, str]]:
    minimum = question.min_instances
    parts = gateway_parts(question.region, question.prices)
    each = sum(part.usd_per_hour for part in parts)
    assumed = f", assumed for {question.region}" if any(part.price.is_assumed for part in parts) else ""
    servers = [backend for backend in question.backends if backend.subject is not None]
    whole = usd_per_hour(question, servers)
    machines = f"{len(servers)} server{'s' if len(servers) != 1 else ''}"
    costs = f"An instance of the gateway costs ${each:.4f}/h (${each * _DAY_H:.2f} per day{assumed})."
    together = f"With gateway.minInstances {minimum}, it and {machines} cost ${whole:.2f}/h while all run."
    waits = "A request after a pause waits a minute or more. To avoid that, set gemma-serving:gateway.minInstances: 1."
    yield f"{costs} {together}", "" if minimum else waits
