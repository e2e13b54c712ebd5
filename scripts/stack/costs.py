"""What a stack costs: the rate now, the rate while it runs, the cost so far, and until when or at most.

Every sentence of a command about the cost of a stack is written here. `recorded_costs` reads a state, as of the last `up`, at the prices of its plan.
`cloud.spending` has Google's answer, at known prices. A rate of 0 is known: a request waits, a run ended, or a service keeps no instance.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, cast

from gemma_serving.cloud.kinds import BUCKET, GRANT, REPOSITORY, SERVICE
from gemma_serving.cloud.price_file import book_of
from gemma_serving.cloud.prices import (
    SERVING,
    container_usd_per_hour,
    has_price,
    least_instances,
    node_usd_per_hour,
    total,
    usd_per_hour,
)
from gemma_serving.contracts.capacity_states import ACTIVE, BILLED
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.contracts.resource_types import SERVICE_TYPE
from gemma_serving.contracts.search_results import FoundResource
from gemma_serving.contracts.stack_facts import CloudFacts, FoundPart
from gemma_serving.engine.state import Item, StackState, read
from gemma_serving.planning.cost.capacity_order import known_usd_per_hour
from gemma_serving.planning.data.prices import LIST_PRICES, Price, price_words
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.units import number_of
from gemma_serving.scripts.stack.own_runs import without_file
from gemma_serving.scripts.stack.settings import NO_PROJECT, stack_settings

if TYPE_CHECKING:
    from gemma_serving.cloud.spending import StackSpending
    from gemma_serving.planning.question.types import CostPlan
    from gemma_serving.planning.settings.capacity_form import ProvisioningModel

_SIZED: Final = frozenset({BUCKET, REPOSITORY})
Billing = Literal["running", "waiting", "ended", "unclear"]
"""Whether a server is billed. `unclear`: Google may bill it, such as while capacity is created or deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCosts:
    """Cost of one server in US dollars per hour. None: unknown."""

    billing: Billing
    is_service: bool
    running: float | None
    """Price of the slice, or of one instance of the service."""
    now: float | None
    """Rate now; of a service, while it is idle."""
    most: float | None = None
    """Rate of all instances, or of the most expensive place and form in which capacity may be granted."""
    ends: str = ""
    """Time at which Google deletes the TPU VM (RFC 3339); empty if it has no run limit."""
    form: str = ""
    """Form of the capacity in use, such as `spot`; empty if it is unknown."""

    @property
    def sentence(self) -> str:
        """`text` as a sentence."""
        return f"Costs {self.text}."

    @property
    def text(self) -> str:
        """The cost, and until when it is billed."""
        price = hourly(self.running)
        if self.billing == "ended":
            return "nothing now, because no server runs"
        if self.is_service:
            return f"{price} for each instance that runs, {hourly(self.now)} while idle"
        if self.billing == "waiting":
            return f"nothing until its capacity is {ACTIVE}, then {price}"
        if self.billing == "unclear":
            return f"{price}, if Google bills it"
        if self.ends:
            end = datetime.fromisoformat(self.ends).astimezone()
            return f"{price} until {end:%Y-%m-%d %H:%M} {end.tzname()}, when Google deletes the VM"
        return f"{price} until {'Google reclaims it or ' if self.form == 'spot' else ''}you delete it"

    @property
    def rate(self) -> str:
        """The rate now as text; of a service, while idle and with all instances."""
        return _service_rate(self.now, self.most) if self.is_service else hourly(self.now)


def hourly(usd: float | None) -> str:
    """Return a rate as text, such as "$1.40/h"."""
    return "an unknown price" if usd is None else f"${usd:,.2f}/h"


def rounded(usd_per_hour: float | None) -> float | None:
    """Return a rate for JSON."""
    return None if usd_per_hour is None else round(usd_per_hour, 4)


def cost_columns(usd_per_hour: float | None, usd: float, *, is_least: bool) -> tuple[str, str]:
    """Return the rate now and the cost so far for a table, with `+` if it is a lower bound."""
    rate = "unknown" if usd_per_hour is None else f"{usd_per_hour:.2f}"
    return rate, f"{usd:.2f}{'+' if is_least else ''}"


def spent_sentence(spent: "Sequence[StackSpending]") -> str:
    """Return the rate now and the cost so far of stacks in Google Cloud, as a sentence."""
    rates = [one.usd_per_hour for one in spent]
    least = "at least " if None in rates else ""
    least_so_far = "at least " if any(one.is_least for one in spent) else ""
    usd = sum(one.usd for one in spent)
    at = price_words(price for one in spent for price in one.prices)
    return f"At {at}: {least}{hourly(sum(filter(None, rates)))} now, {least_so_far}${usd:,.2f} so far."


def found_rate(found: Sequence[FoundResource]) -> str:
    """Return the rate now of resources of one kind as text; empty for a kind without a price of its own."""
    priced = [item for item in found if has_price(item)]
    rate = hourly(total(map(usd_per_hour, priced)))
    return "" if not priced else f"{rate} while idle" if found[0].kind == SERVICE else rate


def found_sentence(found: Sequence[FoundResource], unread: str = "") -> str:
    """Return how many resources Google has of a stack, with the rate now of each kind that has a price, or what exists without a server, as sentences.

    `unread`: what could not be read beside them.
    """
    kinds = dict.fromkeys(item.kind for item in found)
    rates = {kind: found_rate([item for item in found if item.kind == kind]) for kind in kinds}
    priced = [f"{kind}, {rate}" for kind, rate in rates.items() if rate]
    if unread:
        return f"{number_of(len(found), 'resource')} found: {'; '.join(priced) or 'none has an hourly price'}; more may exist. {unread.rstrip('.')}."
    if not any(item.kind in SERVING for item in found):
        parts = [(item.kind, item.id) for item in found if item.kind != GRANT]
        return without_server(parts, len(parts))
    return f"{number_of(len(found), 'resource')} in Google Cloud: {'; '.join(priced) or 'none has an hourly price'}."


def without_server(found: Sequence[FoundPart], count: int) -> str:
    """Return what a stack without a server has, as a sentence: the number of its resources, and those that are billed by size."""
    sized = sorted(f"{kind} {name}" for kind, name in found if kind in _SIZED)
    what = [*([number_of(count, "resource")] if count > len(sized) else ()), *([" and ".join(sized)] if sized else ())]
    return f"No server exists, only {', with '.join(what)}{', billed by size' if sized else ''}."


def lost_files(stack: str) -> Sequence[str]:
    """Return a sentence for each server of this folder whose settings file is gone, because the new stack's file may be the same one."""
    found: list[str] = []
    for name in without_file():
        costs = dict.fromkeys(one.sentence for one in recorded_costs(read(name), "unclear"))
        if costs:
            found.append(
                f"Stack {name} was deployed from this folder, and Pulumi.{name}.yaml is gone. {' '.join(costs)} "
                f"If its file is now Pulumi.{stack}.yaml, name it Pulumi.{name}.yaml again: another name is another server."
            )
    return found


def storage_price(bucket: FoundResource) -> Price:
    """Return the price of a bucket per GiB and month."""
    return LIST_PRICES.price("bucket_usd_per_gib_month", bucket.location)


def found_costs(item: FoundResource, spent: "Sequence[StackSpending]") -> dict[str, object]:
    """Return the rate now and the cost so far of a resource for JSON."""
    usd = next((one.usd_by_name[item.name] for one in spent if item.name in one.usd_by_name), None)
    return {"usd_per_hour": rounded(usd_per_hour(item)), "usd_so_far": None if usd is None else round(usd, 2)}


def _service_rate(idle: float | None, most: float | None) -> str:
    return hourly(most) if idle == most else f"{hourly(idle)} while idle, up to {hourly(most)}"


def planned_rate(cost: "CostPlan", instances: tuple[int, int] | None) -> str:
    """Return the rate of a plan as text: in its most expensive zone, or for a service with its least and most `instances`."""
    if not cost.is_known:
        return hourly(None)
    if instances is not None:
        least, most = instances
        return _service_rate(cost.most_usd_per_hour * least, cost.most_usd_per_hour * most)
    most = hourly(cost.most_usd_per_hour)
    return most if most == hourly(cost.lowest_usd_per_hour) else f"up to {most}"


def changed_rate(before: ServerCosts, planned: str, *, stays: bool) -> str:
    """Return the rates before and after an `up`. `stays`: the capacity stays, in its zone and form."""
    if before.now is None:
        return planned
    if before.billing == "running" and (stays or before.rate == planned):
        return f"{before.rate}, as now"
    return f"{before.rate} now; then {planned}"


def at_most(cost: "CostPlan") -> str:
    """Return the maximum cost of a plan, and of what."""
    return f"at most ${cost.most_usd:,.2f} for {cost.most_usd_basis}"


def reported_costs(server: CloudFacts, *, is_service: bool) -> ServerCosts:
    """Return the cost of a server by Google's report."""
    billing: Billing = "waiting" if server.usd_per_hour == 0 else "unclear"
    if server.has_ended and server.state not in BILLED:
        billing = "ended"
    elif is_service or (server.state == ACTIVE and not server.has_ended):
        billing = "running"
    return ServerCosts(
        billing=billing,
        is_service=is_service,
        running=server.running_usd_per_hour,
        now=server.usd_per_hour,
        ends=server.deadline or "",
        form=server.form or "",
    )


def recorded_costs(state: StackState, billing: Billing = "running") -> Sequence[ServerCosts]:
    """Return the costs of each server in a state, created or pending, as of the last `up`."""
    return [_recorded(state, item, billing) for item in state.servers]


def _recorded(state: StackState, item: Item, billing: Billing) -> ServerCosts:
    inputs, made = as_mapping(item.get("inputs")), as_mapping(item.get("outputs"))
    deployed = state.outputs
    if item.get("type") == SERVICE_TYPE:
        return _recorded_service(deployed, inputs, billing)
    running = _in_use(state.stack, deployed, inputs, made) if deployed else _listed(inputs, made)
    return ServerCosts(
        billing=billing,
        is_service=False,
        running=running,
        now=0.0 if billing == "waiting" else running,
        most=running,
        ends=(deployed and deployed.deadline) or "",
        form=form_in_use(inputs, made),
    )


def _recorded_service(outputs: StackOutputs | None, inputs: Item, billing: Billing) -> ServerCosts:
    listed = container_usd_per_hour(inputs, str(inputs.get("location") or ""))
    running = (outputs.plan.cost.usd_per_hour if outputs else listed) or None
    least = least_instances(inputs)
    most = as_mapping(as_mapping(inputs.get("template")).get("scaling")).get("maxInstanceCount")
    return ServerCosts(
        billing=billing,
        is_service=True,
        running=running,
        now=0.0 if not least else None if running is None else running * least,
        most=running * most if running is not None and isinstance(most, int | float) else None,
    )


def form_in_use(inputs: Item, outputs: Item) -> str:
    """Return the form of capacity that a queued resource in a state has, or requests; empty if it may be one of several."""
    return str(outputs.get("provisioningModelInUse") or inputs.get("provisioningModel") or "")


def _in_use(stack: str, outputs: StackOutputs, inputs: Item, made: Item) -> float | None:
    """Return the price of the form of capacity in use in its zone. The price of a plan is of its first form and its most expensive zone."""
    form = form_in_use(inputs, made) or outputs.provisioning
    usd = _zone_price(stack, outputs.plan.accelerator, form, outputs.location) if form else None
    has_order = bool(inputs.get("forms")) or outputs.provisioning is not None
    return usd if usd is not None or has_order else outputs.plan.cost.usd_per_hour or None


def _zone_price(stack: str, accelerator: str, form: str, zone: str) -> float | None:
    """Return the price in the stack's price file, or the shipped one; None if its zone has none, or the file cannot be read."""
    try:
        prices = book_of(stack_settings(stack, project=NO_PROJECT).prices) or LIST_PRICES
    except (CommandRefusedError, PlanningError):
        return None
    return known_usd_per_hour(accelerator, cast("ProvisioningModel", form), zone, prices)


def _listed(inputs: Item, made: Item) -> float | None:
    """Return the highest known price of the places in which a stack without outputs has or may get its capacity."""
    rates = [node_usd_per_hour(inputs, form, zone) for form, zone in _places(inputs, made)]
    known = [rate for rate in rates if rate is not None]
    return max(known) if known and len(known) == len(rates) else None


def _places(inputs: Item, made: Item) -> Iterator[tuple[str, str]]:
    """Yield the form of the capacity in use with each zone, or each form that may be requested with its zones if none was yet."""
    zones = [str(zone) for zone in (made.get("zone") or inputs.get("zone"), *as_sequence(inputs.get("zones"))) if zone]
    listed = [as_mapping(form) for form in as_sequence(inputs.get("forms"))]
    in_use = form_in_use(inputs, made)
    for form in [{"provisioningModel": in_use or "standard"}] if in_use or not listed else listed:
        listed_zones = form.get("zones")
        for zone in zones if listed_zones is None else as_sequence(listed_zones):
            yield str(form.get("provisioningModel")), str(zone)
