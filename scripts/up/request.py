"""What a deployment may do, the plan that it may run, and the form of its output."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from gemma_serving.cloud.prices import total
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.resource_types import SERVER_TYPES
from gemma_serving.engine.state import read
from gemma_serving.engine.steps import changes_of, steps_of
from gemma_serving.planning.errors import PlanningError
from gemma_serving.scripts.cli.command import print_progress, print_result, print_text
from gemma_serving.scripts.cli.hidden import environment_secrets
from gemma_serving.scripts.stack.costs import recorded_costs
from gemma_serving.scripts.stack.frozen import FrozenProject, most_usd_per_hour, write_settings

_LOSES: Final = frozenset({"replace", "create-replacement", "delete"})
"""Operations listed first."""
SCHEMA_VERSION: Final = 3
Document = Mapping[str, object]
"""A preview in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpRequest:
    """What a deployment may do."""

    yes: bool = False
    refreshes: bool = False
    dry_run: bool = False
    as_json: bool = False
    given: str | None = None
    """Id of the plan that may run."""
    changes: Mapping[str, object] = field(default_factory=dict[str, object])
    """Settings that are written to the stack's file before the deployment."""
    frozen: FrozenProject | None = None
    """The copy of the project in which the engine runs; None for the project itself."""

    def plan_of(self, document: Document) -> str:
        """Return the id of a preview; empty without a copy. Raises CommandRefusedError if it is not the given one."""
        plan = self.frozen.plan_id(steps_of(document)) if self.frozen else ""
        if self.given and self.given != plan:
            raise CommandRefusedError(
                f"{self.given[:60]} is stale: the program, the settings, the packages or the planned steps have changed. Nothing was changed. "
                "Make a new plan and review it."
            )
        return plan

    def write_settings(self) -> None:
        """Write the changed settings to the project's file, which then has what is deployed."""
        if self.frozen and self.changes:
            write_settings(self.frozen.root / f"Pulumi.{self.frozen.stack}.yaml", self.changes)

    def tell(self, text: str) -> None:
        """Print sentences of the result, or with JSON of the progress."""
        if self.as_json:
            print_progress("up", text)
        else:
            print_result(text)

    def show(
        self, headline: str, sentences: Sequence[str], document: Document, plan: str, *, effect: Sequence[str] = ()
    ) -> None:
        """Print the end of the result. With JSON, a dry run has its effect on the server, each change, and the price before and after."""
        if not self.as_json:
            print_result("\n".join(sentences))
            return
        found: dict[str, object] = {"schema_version": SCHEMA_VERSION, "dry_run": self.dry_run, "plan": plan or None}
        found |= {"headline": headline, "sentences": list(sentences)}
        if self.dry_run and self.frozen is not None:
            found |= {"effect": list(effect or [f"{headline}."]), **_plan_facts(self.frozen, document)}
        print_text(json.dumps(found))


def _plan_facts(frozen: FrozenProject, document: Document) -> Document:
    """Return what a reader has to know about a preview before it runs."""
    changes, unchanged, _ = changes_of(document, environment_secrets())
    in_order = sorted(changes, key=lambda change: (change.op not in _LOSES, change.type not in SERVER_TYPES))
    try:
        price = round(most_usd_per_hour(frozen.settings, frozen.folder), 4)
    except PlanningError:
        price = None
    return {
        "stack": frozen.stack,
        "is_disruptive": any(change.is_disruptive for change in changes),
        "usd_per_hour_now": total(costs.most for costs in recorded_costs(read(frozen.stack))),
        "usd_per_hour": price,
        "changes": [asdict(change) for change in in_order],
        "unchanged": unchanged,
        "steps": [asdict(step) for step in steps_of(document)],
    }
