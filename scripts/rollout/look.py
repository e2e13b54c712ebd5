"""What a roll-out would do, and what it can cost meanwhile: both revisions may have all their instances."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cloud.google_prices import container_usd_per_hour
from contracts.fields import as_mapping
from contracts.service_traffic import Service, known_shares, short_name
from scripts.cli.looked import look_id
from scripts.rollout.decisions import RolloutState


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLook:
    """What a dry run shows."""

    stack: str
    phase: str
    """`roll out`, `finish`, `not ready`, `nothing serves`; `roll back` with --to."""
    revision: str
    """The revision that would get all requests."""
    serving: str
    """The revision that gets the most requests now."""
    traffic: Mapping[str, int]
    """Percent of the requests of each revision now."""
    steps: Sequence[int]
    """Shares that the revision would get one after another, in percent."""
    again: bool
    usd_per_hour: float | None
    """The most that all revisions with requests, and the new one, cost an hour together; None is unknown."""
    usd_per_hour_after: float | None
    """The most that the revision costs an hour alone; None is unknown."""
    sentence: str = ""
    """What the service says of its last roll-out, such as why a revision is refused."""

    @property
    def plan(self) -> str:
        """The id of what is shown, without the sentence, which names ages."""
        return look_id({key: value for key, value in asdict(self).items() if key != "sentence"})

    def to_json(self) -> dict[str, Any]:
        """Return the look in JSON types."""
        return {"schema_version": 2, "dry_run": True, **asdict(self), "plan": self.plan}


def look_at(
    stack: str,
    service: Service,
    revisions: Sequence[Mapping[str, object]],
    state: RolloutState,
    *,
    steps: Sequence[int],
    again: bool,
    sentence: str,
) -> RolloutLook:
    """Return what a roll-out from this state would do."""
    traffic = known_shares(service) or {}
    region = service_region(str(service.get("name") or ""))
    named = {short_name(each.get("name")): each for each in revisions}
    together = [most_usd_per_hour(named.get(name), region) for name in {state.latest, *traffic}]
    return RolloutLook(
        stack=stack,
        phase=state.phase,
        revision=state.latest,
        serving=state.serving,
        traffic=dict(traffic),
        steps=tuple(steps),
        again=again,
        usd_per_hour=None if None in together else round(sum(rate for rate in together if rate is not None), 4),
        usd_per_hour_after=most_usd_per_hour(named.get(state.latest), region),
        sentence=sentence,
    )


def most_usd_per_hour(revision: Mapping[str, object] | None, region: str) -> float | None:
    """Return what a revision costs an hour with all instances that it may have; None if Google does not say what it has."""
    most = as_mapping((revision or {}).get("scaling")).get("maxInstanceCount")
    rate = container_usd_per_hour({"template": revision}, region) if revision else 0.0
    return round(rate * int(str(most)), 4) if rate and most else None


def service_region(name: str) -> str:
    """Return the region in a service's full name."""
    return name.partition("/locations/")[2].partition("/")[0]
