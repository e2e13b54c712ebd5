"""Schedules of `test_capacity_schedules`, drawn from a seed: a cloud, the programs, and what happens in which order."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from gcp_tpu_provider.tests.harness import wanted
from localcloud.world.scenario import ComputeTpu, Form, Scenario, Stock, Tpu, TpuZone
from tests.agreement.capacity_world import PROJECT, Lost

ZONES: Final = ("us-east5-a", "us-east5-b", "europe-west4-a")
MODELS: Final[dict[str, Form]] = {"flex-start": "FLEX_START", "spot": "SPOT", "standard": "STANDARD"}
ORDERS: Final = (
    ("flex-start", "spot", "standard"),
    ("flex-start", "spot", "standard"),
    ("flex-start", "standard"),
    ("spot", "flex-start"),
    ("standard", "flex-start", "spot"),
    ("flex-start",),
)
IMAGE: Final = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
LONGEST_RUN_S: Final = 604_800
"""A run that does not end during a schedule."""
REQUEST_S: Final = 7500
"""Time of one request besides its wait: 1800 s in PROVISIONING, two deletions of 1800 s, and the lost answers of a step."""
Prices = Mapping[tuple[str, str], float]
"""(Google's provisioning model, zone) -> USD per hour."""


@dataclass(frozen=True, kw_only=True)
class FormOfCapacity:
    """One entry of a program's order of forms. `zones`: those in which its price is under the ceiling."""

    model: str
    wait_s: int | None
    zones: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.model} {self.wait_s or '-'} s in {','.join(self.zones) or 'no zone'}"


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program's inputs. `is_word`: it has `provisioningModel`, with its only form, in place of `forms`."""

    forms: tuple[FormOfCapacity, ...]
    is_word: bool
    ceiling_usd: float
    tag: str
    wait_per_zone_s: int

    def __str__(self) -> str:
        listed = "; ".join(map(str, self.forms))
        word = "word " if self.is_word else ""
        return f"{word}[{listed}] {self.wait_per_zone_s} s a zone, at most ${self.ceiling_usd:.0f}, tag {self.tag}"

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones that the inputs list."""
        return self.forms[0].zones if self.is_word else ZONES

    @property
    def order(self) -> list[tuple[str, str]]:
        """(Google's provisioning model, zone) of each request that it allows, in order."""
        return [(MODELS[form.model], zone) for form in self.forms for zone in form.zones]

    @property
    def limit_s(self) -> float:
        """Virtual seconds in which every operation ends, with whatever another program left in each zone."""
        return sum(self.wait_per_zone_s + REQUEST_S for _ in self.order) + REQUEST_S * len(ZONES)

    def inputs(self, api: str, account: str, **more: Any) -> dict[str, Any]:
        """Return the inputs of the resource."""
        has_flex_start = any(form.model == "flex-start" for form in self.forms)
        given: dict[str, Any] = {
            "project": PROJECT,
            "zones": list(self.zones),
            "waitPerZoneS": self.wait_per_zone_s,
            "tags": ["serve", self.tag],
            "serviceAccount": {"email": account},
            # A run can be limited for flex-start only on Cloud TPU.
            "maxRunDurationS": LONGEST_RUN_S if has_flex_start else None,
        }
        if self.is_word:
            given["provisioningModel"] = self.forms[0].model
        else:
            given |= {"provisioningModel": None, "forms": [_entry(form) for form in self.forms]}
        if api == "compute-engine":
            given |= {"runtimeVersion": IMAGE, "api": api}
        return wanted(**given, **more)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One thing that happens: an operation with its end, or an event in the cloud. Times in seconds."""

    do: str
    program: Program
    is_refreshed: bool
    lost: tuple[Lost, ...]
    how: str
    at: int
    timeout_s: float
    passed_s: float

    def __str__(self) -> str:
        parts = [self.do + (" --refresh" if self.is_refreshed else "")]
        if self.do == "up":
            parts.append(str(self.program))
        if self.how:
            parts.append(f"{self.how} at {f'call {self.at}' if self.at else 'the first creation'}")
        parts += [f"{item.verb} loses its answer, effect after {item.after_s} s" for item in self.lost]
        if self.timeout_s:
            parts.append(f"timeout {self.timeout_s:.0f} s")
        return f"{'; '.join(parts)}; then {self.passed_s:.0f} s pass"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One schedule of a seed."""

    seed: int
    api: str
    scenario: Scenario
    prices: Prices
    steps: tuple[Step, ...]
    last: str

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, {self.api}, refuses a deletion in its {self.scenario.tpu.refuses_deletion_in}"]
        for zone, facts in self.scenario.tpu.zones.items():
            lines.append(f"  {zone}: quota {facts.quota_chips}, preemptible {facts.preemptible_quota_chips} chips")
            lines += [
                f"    {model:<10} ${self.prices[model, zone]:.0f} {'any' if stock.chips is None else stock.chips} chips"
                f" after {stock.after_s:.0f} s, dry {stock.dry}, {stock.lost_deletions} deletions lost by {stock.late_s:.0f} s"
                for model, stock in facts.stock.items()
            ]
        compute = self.scenario.tpu.compute
        lines.append(f"  instances: {compute.preemptible_quota_overrides}, family {compute.family_quota_chips} chips")
        return "\n".join([*lines, f"  last: {self.last}"])


def program_of(order: tuple[str, ...], prices: Prices, ceiling_usd: float, **more: Any) -> Program:
    """Return a program with an order of forms, each in the zones under the ceiling."""
    given: dict[str, Any] = {"wait_s": None, "is_word": False, "tag": "a", "wait_per_zone_s": 300, **more}
    wait_s = given.pop("wait_s")
    forms = tuple(
        FormOfCapacity(
            model=model,
            wait_s=wait_s,
            zones=tuple(zone for zone in ZONES if prices[MODELS[model], zone] <= ceiling_usd),
        )
        for model in order
    )
    return Program(forms=forms, ceiling_usd=ceiling_usd, **given)


def drawn(seed: int) -> Schedule:
    """Return the schedule of a seed."""
    random = Random(seed)  # noqa: S311 - a schedule, not a secret
    prices = {(model, zone): float(random.randint(1, 9)) for model in MODELS.values() for zone in ZONES}
    program = _drawn_program(random, prices)
    return Schedule(
        seed=seed,
        api=random.choice(["cloud-tpu", "compute-engine"]),
        scenario=_drawn_scenario(random),
        prices=prices,
        steps=tuple(_drawn_step(random, program, prices) for _ in range(random.randint(2, 7))),
        last=random.choice(["up", "destroy"]),
    )


def _entry(form: FormOfCapacity) -> dict[str, Any]:
    entry: dict[str, Any] = {"provisioningModel": form.model, "zones": list(form.zones)}
    return entry if form.wait_s is None else {**entry, "waitS": form.wait_s}


def _drawn_program(random: Random, prices: Prices) -> Program:
    """Return a program with at least one zone. The dearest zones of its forms are above the ceiling."""
    order = random.choice(ORDERS)
    listed = sorted(prices[MODELS[model], zone] for model in order for zone in ZONES)
    return program_of(
        order,
        prices,
        random.choice(listed[len(listed) // 3 :]),
        wait_s=random.choice([None, 400, 900]) if len(order) > 1 else None,
        # A word has the same zones for its form as `zones`, which cannot be empty.
        is_word=len(order) == 1 and random.random() < 0.5,
        tag=random.choice("ab"),
        wait_per_zone_s=random.choice([300, 900]),
    )


def _drawn_stock(random: Random) -> Stock:
    """Return what a zone has for a form: nothing, enough, or something later; and what it answers when dry."""
    return Stock(
        chips=random.choice([0, 0, 4, None]),
        after_s=random.choice([0, 0, 200, 700, 2000]),
        dry=random.choice(["waits", "fails"]),
        lost_deletions=random.choice([0, 1, 2]),
        late_s=random.choice([30, 300, 1200]),
    )


def _drawn_scenario(random: Random) -> Scenario:
    """Return a cloud with its own stock in each zone and form, and sometimes too little quota."""
    zones = {
        zone: TpuZone(
            accelerator_types=("v6e-1", "v6e-4", "v6e-8"),
            flex_start=True,
            stock={form: _drawn_stock(random) for form in MODELS.values()},
            quota_chips=random.choice([0, 4, 64]),
            preemptible_quota_chips=random.choice([0, 4, 4, 64]),
        )
        for zone in ZONES
    }
    compute = ComputeTpu(
        preemptible_quota_overrides={"us-east5": random.choice([0, 4, 64]), "europe-west4": random.choice([4, 64])},
        family_quota_chips=random.choice([0, 4, 64]),
    )
    refuses = random.choice(["answer", "operation"])
    return Scenario(tpu=Tpu(zones=zones, compute=compute, refuses_deletion_in=refuses))


def _drawn_lost(random: Random) -> Lost:
    """Return a lost answer, whose call takes effect at once, later than the provider looks, or never.

    The real transport repeats a call for two minutes, so few readings are lost.
    """
    verb = random.choice(["POST", "POST", "POST", "POST", "DELETE", "DELETE", "PATCH", "GET"])
    late = [0, 30, 100, 600, 2000, None] if verb == "POST" else [0, None]
    return Lost(verb=verb, after_s=random.choice(late), status=random.choice([0, 503]))


def _drawn_step(random: Random, program: Program, prices: Prices) -> Step:
    """Return a step with the first program or, sometimes, with another."""
    return Step(
        do=random.choice(["up"] * 7 + ["refresh", "destroy", "preempt"]),
        program=_drawn_program(random, prices) if random.random() < 0.3 else program,
        is_refreshed=random.random() < 0.3,
        lost=tuple(_drawn_lost(random) for _ in range(random.choice([0, 0, 0, 1, 2]))),
        how=random.choice([""] * 6 + ["kill before", "kill after", "kill after", "cancel", "preempt"]),
        at=random.choice([*[0] * 15, *range(1, 40)]),
        timeout_s=random.choice([0, 0, 0, 1000]),
        passed_s=random.choice([0, 0, 60, 600, 3600]),
    )
