"""Rules for a gateway: its backends answer alike, are in its network, and one of them is there when another ends."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Final, TypeAlias, cast

from msgspec import Struct

from gemma_serving.contracts.gateway import CONCURRENCY, LONGEST_REQUEST_S
from gemma_serving.planning.cost.capacity_order import known_usd_per_hour
from gemma_serving.planning.cost.costs import gateway_parts
from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.data.prices import PriceBook, region_of
from gemma_serving.planning.data.tables import Table
from gemma_serving.planning.rules.registry import ALL_RULES
from gemma_serving.planning.settings.capacity_form import ProvisioningModel
from gemma_serving.planning.settings.finding import Finding
from gemma_serving.planning.settings.gateway import GatewaySettings
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.units import DAY_S, HOUR_S, ceil_div, duration

_DAY_H: Final = DAY_S / HOUR_S


class DeployedBackend(Struct, frozen=True, kw_only=True):
    """A backend as its last `up` left it. All values are empty if the stack is not deployed."""

    address: str = ""
    """Address of its TPU VM in the network."""
    state: str = ""
    """State of its capacity."""
    deadline: str = ""
    """Time at which Google deletes the TPU VM (RFC 3339, UTC); empty without a run limit."""
    api_key_secret: str = ""
    """Version in Secret Manager of the API key for its callers; empty without one."""
    provisioning: str = ""
    """Form of its capacity; empty without an order of forms."""
    location: str = ""
    """Zone of its capacity."""


class Backend(Struct, frozen=True, kw_only=True):
    """A stack behind the gateway."""

    stack: str
    settings: Settings | None = None
    """None if they cannot be read or planned."""
    subject: Subject | None = None
    """The settings with all figures; None with them."""
    problem: str = ""
    """Reason for that."""
    deployed: DeployedBackend | None = None
    """None: the deployed stack was not read."""

    @property
    def serves(self) -> bool:
        """True if the backend has an address."""
        return self.deployed is not None and bool(self.deployed.address)


class GatewayQuestion(Struct, frozen=True, kw_only=True):
    """A gateway with its backends."""

    stack: str
    settings: GatewaySettings
    backends: Sequence[Backend]
    prices: PriceBook | None = None


_Found: TypeAlias = Iterator[tuple[str, str]]
"""Message and advice of each finding."""
GATEWAY_RULES: Final = Table(lambda: {name: one for name, one in ALL_RULES.items() if one.on == "gateway"})
"""By id, in the order of their findings. No setting can accept them."""


def gateway_findings(question: GatewayQuestion) -> tuple[Finding, ...]:
    """Return all findings, blocking ones first."""
    return tuple(
        Finding(
            id=rule.id, severity=rule.severities[0], message=message, remedies=(), advice=advice, source=rule.source
        )
        for rule in GATEWAY_RULES.values()
        for message, advice in _CHECKS[rule.id](question)
    )


def _different(question: GatewayQuestion) -> _Found:
    known = [(backend.stack, backend.subject.resolved) for backend in question.backends if backend.subject is not None]
    values: dict[str, tuple[str, list[str]]] = {
        "model name": (
            "vllm.servedModelName",
            [one.deployment.vllm.served_model_name or one.deployment.model for _, one in known],
        ),
        "maximum length": ("vllm.maxModelLen", [str(one.max_model_len) for _, one in known]),
        "API key": ("apiKey", ["set" if one.deployment.has_api_key else "not set" for _, one in known]),
    }
    for what, (key, each) in values.items():
        if len(set(each)) > 1:
            listed = ", ".join(f"{stack} {value}" for (stack, _), value in zip(known, each, strict=True))
            yield (
                f"Backends have a different {what}: {listed}. A request that one of them accepts fails on another.",
                f"Set gemma-serving:{key} to the same value in all of them.",
            )


def _unreachable(question: GatewayQuestion) -> _Found:
    for backend in question.backends:
        file = f"Pulumi.{backend.stack}.yaml"
        if backend.subject is None:
            yield (
                f"The settings of backend {backend.stack} cannot be read. {backend.problem}".rstrip(),
                f"Fix {file}, or remove {backend.stack} from gemma-serving:gateway.backends.",
            )
        elif backend.subject.resolved.platform == "tpu-vm":
            yield from _outside(question, backend, backend.subject, file)
        else:
            yield (
                f"Backend {backend.stack} is a Cloud Run stack, but a gateway serves TPU stacks only.",
                f"Remove {backend.stack} from gemma-serving:gateway.backends.",
            )


def _outside(question: GatewayQuestion, backend: Backend, subject: Subject, file: str) -> _Found:
    tpu = subject.resolved.deployment.tpu
    if tpu.gateway != question.stack:
        named = f"tpu.gateway is {tpu.gateway}" if tpu.gateway else "tpu.gateway is not set"
        yield (
            f"Backend {backend.stack} is not in the gateway's network: {named}.",
            f"In {file}, set gemma-serving:tpu.gateway: {question.stack}. The TPU VM of a deployed stack is replaced.",
        )
    regions = dict.fromkeys(region for zone in tpu.zones if (region := region_of(zone)))
    absent = [region for region in regions if region not in question.settings.regions]
    if absent:
        yield (
            f"The gateway has no subnetwork in {', '.join(absent)}, where backend {backend.stack} has zones.",
            f"Add {', '.join(absent)} to gemma-serving:gateway.regions, or remove those zones in {file}.",
        )
    needs_nat = subject.resolved.weights_mode == "hub" or tpu.api == "compute-engine"
    if needs_nat and not question.settings.internet_egress:
        what = "the docker package" if tpu.api == "compute-engine" else "weights from the Hugging Face hub"
        yield (
            f"Backend {backend.stack} downloads {what}, but gateway.internetEgress is false.",
            "Set gemma-serving:gateway.internetEgress: true.",
        )


def _absent(question: GatewayQuestion) -> _Found:
    absent = {
        one.stack: f"its capacity is {one.deployed.state}" if one.deployed.state else "it is not deployed"
        for one in question.backends
        if one.deployed is not None and not one.serves
    }
    if len(absent) == len(question.backends):
        reasons = "; ".join(f"{stack}: {why}" for stack, why in absent.items())
        yield (
            f"No backend has an address ({reasons}), so `up` creates the network and the account of the gateway only, and deletes a service from before.",
            f"Run `gemma up {next(iter(absent))}`, then `gemma up {question.stack}`.",
        )
        return
    for stack, why in absent.items():
        yield (
            f"Backend {stack} has no address ({why}), so it gets no requests.",
            f"Run `gemma up {stack}`, then `gemma up {question.stack}`.",
        )


def _alone(question: GatewayQuestion) -> _Found:
    if len(question.backends) > 1:
        return
    (server,) = question.backends
    renews = server.subject is not None and server.subject.resolved.deployment.tpu.renew_before_s is not None
    until = f" After a renewal, requests fail until `gemma up {question.stack}`." if renews else ""
    yield (
        f"{server.stack} is the only backend. Its end, restart or change is an outage for callers.{until}",
        "Add a second stack to gemma-serving:gateway.backends.",
    )


def _cut(question: GatewayQuestion) -> _Found:
    for backend in question.backends:
        if backend.subject is not None and backend.subject.known_throughput is not None:
            tokens = backend.subject.resolved.max_model_len
            longest_s = tokens / backend.subject.known_throughput.decode_tok_per_s
            if longest_s > LONGEST_REQUEST_S:
                limit = f"Cloud Run terminates a request after {duration(LONGEST_REQUEST_S)}"
                yield (
                    f"An answer of {tokens:,} tokens takes {duration(longest_s)} on {backend.stack}, but {limit}.",
                    f"Limit max_tokens in requests, or lower gemma-serving:vllm.maxModelLen to {int(tokens * LONGEST_REQUEST_S / longest_s):,}.",
                )
    deadlines = {
        one.stack: one.deployed.deadline for one in question.backends if one.deployed is not None and one.serves
    }
    ends = sorted((datetime.fromisoformat(end), stack) for stack, end in deadlines.items() if end)
    if len(deadlines) < len(question.backends):
        return
    starts = [one.subject.known_startup for one in question.backends if one.subject is not None]
    start_s = max((one.ready_s for one in starts if one is not None), default=0.0)
    for (earlier, first), (later, second) in pairwise(ends):
        gap_s = (later - earlier).total_seconds()
        if gap_s < start_s:
            limit = f"less than the {duration(start_s)} that a new server needs"
            yield (
                f"{first} ends at {earlier:%H:%M} UTC and {second} {duration(gap_s)} later, {limit}.",
                f"Replace one of them earlier, for example with a different maxRunDuration in Pulumi.{first}.yaml.",
            )


def _full(question: GatewayQuestion) -> _Found:
    known = [backend.subject.resolved for backend in question.backends if backend.subject is not None]
    taken = sum(each.max_num_seqs * each.dp for each in known)
    accepted = question.settings.max_instances * CONCURRENCY
    if taken > accepted:
        yield (
            f"The servers run {taken:,} concurrent requests, but {question.settings.max_instances} instances of the gateway have memory for {accepted:,}.",
            f"Set gemma-serving:gateway.maxInstances: {ceil_div(taken, CONCURRENCY)}.",
        )


def usd_per_hour(question: GatewayQuestion, servers: Sequence[Backend]) -> float:
    """Return the price per hour of the gateway's instances that always run and of these servers."""
    each = sum(part.usd_per_hour for part in gateway_parts(question.settings.region, question.prices))
    costs = [_server_usd(backend.subject, backend.deployed) for backend in servers if backend.subject is not None]
    return sum(costs, each * question.settings.min_instances)


def _server_usd(subject: Subject, deployed: DeployedBackend | None) -> float:
    """Return the price of a server per hour: of the form of capacity in use, or of the most expensive one if that price is unknown."""
    if deployed is None or not deployed.provisioning:
        return subject.cost.usd_per_hour
    form = cast("ProvisioningModel", deployed.provisioning)
    usd = known_usd_per_hour(subject.resolved.accelerator.name, form, deployed.location, subject.resolved.prices)
    return subject.cost.most_usd_per_hour if usd is None else usd


def _cost(question: GatewayQuestion) -> _Found:
    minimum = question.settings.min_instances
    parts = gateway_parts(question.settings.region, question.prices)
    each = sum(part.usd_per_hour for part in parts)
    assumed = f", assumed for {question.settings.region}" if any(part.price.is_assumed for part in parts) else ""
    servers = [backend for backend in question.backends if backend.subject is not None]
    whole = usd_per_hour(question, servers)
    machines = f"{len(servers)} server{'s' if len(servers) != 1 else ''}"
    costs = f"An instance of the gateway costs ${each:.4f}/h (${each * _DAY_H:.2f} per day{assumed})."
    together = f"With gateway.minInstances {minimum}, it and {machines} cost ${whole:.2f}/h while all run."
    waits = "A request after a pause waits a minute or more. To avoid that, set gemma-serving:gateway.minInstances: 1."
    yield f"{costs} {together}", "" if minimum else waits


_CHECKS: Final[Mapping[str, Callable[[GatewayQuestion], _Found]]] = {
    "GTW01": _different,
    "GTW02": _unreachable,
    "GTW03": _absent,
    "GTW04": _alone,
    "GTW05": _cut,
    "GTW06": _cost,
    "GTW07": _full,
}
