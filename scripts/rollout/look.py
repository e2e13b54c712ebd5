"""Dry run of a rollout: its steps, and its maximum cost with all instances of both revisions."""

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
    """Result of a dry run."""

    stack: str
    phase: str
    """`roll out`, `finish`, `not ready`, `nothing serves`; `roll back` with --to."""
    revision: str
    """The revision that will get all traffic."""
    serving: str
    """The revision that has the most traffic now."""
    traffic: Mapping[str, int]
    """Current traffic percentage of each revision."""
    steps: Sequence[int]
    """Traffic percentages of the revision, in order."""
    again: bool
    usd_per_hour: float | None
    """Maximum combined cost per hour of the new revision and all revisions with traffic; None if unknown."""
    usd_per_hour_after: float | None
    """Maximum cost per hour of the revision alone; None if unknown."""
    sentence: str = ""
    """Status of the last rollout, such as why a revision is refused."""

    @property
    def plan(self) -> str:
        """Id of the dry run. It excludes the sentence, which has ages."""
        return look_id({key: value for key, value in asdict(self).items() if key != "sentence"})

    def to_json(self) -> dict[str, Any]:
        """Return the dry run in JSON types."""
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
    """Return the dry run of a rollout from this state."""
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
    """Return the cost per hour of a revision with its maximum number of instances; None if Google does not report it."""
    most = as_mapping((revision or {}).get("scaling")).get("maxInstanceCount")
    rate = container_usd_per_hour({"template": revision}, region) if revision else 0.0
    return round(rate * int(str(most)), 4) if rate and most else None


def service_region(name: str) -> str:
    """Return the region of a service's full name."""
    return name.partition("/locations/")[2].partition("/")[0]
