"""Compare inputs. Each change is in place, replaces the resource, or is rejected because it deletes running capacity."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from gcp_tpu_provider import wire
from gcp_tpu_provider.check import key_path
from gcp_tpu_provider.desired_state import DesiredState
from gcp_tpu_provider.durations import readable
from gcp_tpu_provider.errors import TpuProviderError
from gcp_tpu_provider.properties import DEAD_STATE, Property, inputs
from gcp_tpu_provider.resource_record import FORMER_SECOND, MISSING
from gcp_tpu_provider.tpu_api import ACTIVE, DEAD_NODE, GONE, READY_PHASE

ChangeKind = Literal["add", "delete", "update"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyChange:
    """A changed property path. `input_diff` is False if the cause is an output that refresh read."""

    path: str
    kind: ChangeKind
    replaces: bool = False
    input_diff: bool = True


def diff(
    urn: str, outputs: Mapping[str, Any], old_inputs: Mapping[str, Any], news: Mapping[str, Any]
) -> list[PropertyChange]:
    """Return the changes. Raises TpuProviderError if they replace an ACTIVE queued resource without `allowReplaceActive`."""
    state = cast("wire.Properties", wire.reveal(dict(outputs)))
    olds = cast("wire.Properties", wire.reveal(dict(old_inputs)))
    desired = cast("wire.Properties", wire.reveal(dict(news)))
    if second := state.get(FORMER_SECOND):
        raise TpuProviderError(
            f"A former version requested {second} beside {state.get('name')}, to renew its run. Run `pulumi destroy`, which deletes both."
        )
    active = is_active(state)
    changes = [
        change for item in _compared(olds, desired) for change in _property(item, state, olds, desired, lenient=active)
    ]
    if is_dead(state):
        return [*changes, PropertyChange(path=DEAD_STATE, kind="update", replaces=True, input_diff=False)]
    replacing = [change for change in changes if change.replaces]
    if replacing and active and not desired.get("allowReplaceActive"):
        raise TpuProviderError(_refusal(state, old_inputs, news, replacing[0]))
    owners = state.get("ownerLabels")
    if (
        owners is not None
        and not wire.has_unknown(desired.get("labels"))
        and owners != DesiredState(urn, desired).owner_labels
    ):
        changes.append(PropertyChange(path="ownerLabels", kind="update", input_diff=False))
    return changes or _unfinished(urn, state, olds, desired)


def with_end(changes: list[PropertyChange]) -> list[PropertyChange]:
    """Return the changes for a machine that ended although the state records it as ACTIVE.

    Without a refresh this is an update, which fails (`lifecycle.update`): an `up` without a server never ends as unchanged.
    """
    if any(change.replaces for change in changes):
        return changes
    return [*changes, PropertyChange(path=DEAD_STATE, kind="update", input_diff=False)]


def is_dead(state: Mapping[str, Any]) -> bool:
    """Return whether the queued resource, as last observed, can never serve again."""
    node = state.get("nodeState")
    return state.get("state") in GONE or (state.get("state") == ACTIVE and (node == MISSING or node in DEAD_NODE))


def is_active(state: Mapping[str, Any]) -> bool:
    """Return whether capacity is ACTIVE, as last observed."""
    return state.get("state") == ACTIVE and not is_dead(state)


def _unfinished(
    urn: str, state: wire.Properties, olds: wire.Properties, desired: wire.Properties
) -> list[PropertyChange]:
    """Return an update if the awaited state was not reached because the wait was interrupted or the server is no longer ready.

    The engine's flag for an unfinished creation does not survive a refresh. If the program only waits until a request is accepted,
    each update polls it for capacity.
    """
    wait_for = desired.get("waitFor")
    if "waitFor" not in olds or wire.has_unknown(wait_for):
        return []
    if state.get("state") != ACTIVE:
        return [PropertyChange(path="state", kind="update", input_diff=False)]
    if wait_for != "ready" or wire.has_unknown(desired.get("metadata")) or wire.has_unknown(desired.get("ready")):
        return []
    ready = DesiredState(urn, desired).ready_check
    current = ready is None or not ready.document_hash or ready.document_hash == state.get("documentHash")
    if state.get("phase") == READY_PHASE and current:
        return []
    return [PropertyChange(path="phase", kind=_kind(state.get("phase"), READY_PHASE), input_diff=False)]


def _compared(olds: wire.Properties, desired: wire.Properties) -> list[Property]:
    """Return the inputs to compare. If either side has `forms`, they show a change of the provisioning model, in place."""
    has_forms = "forms" in olds or "forms" in desired
    return [item for item in inputs().values() if not (has_forms and item.name == "provisioningModel")]


def _property(
    item: Property, state: wire.Properties, olds: wire.Properties, desired: wire.Properties, *, lenient: bool
) -> list[PropertyChange]:
    old, new = olds.get(item.name), desired.get(item.name)
    if _same(item, old, new):
        return []
    if item.change == "words":
        return []
    if item.change == "zones":
        return _zones(item, state, olds, desired)
    if item.change == "policy" and item.name != "forms" and old is None:
        return []  # an imported resource has no waiting policy; adding one changes nothing in the cloud
    replaces = item.change == "replace"
    if replaces and lenient and wire.has_unknown(new) and not desired.get("allowReplaceActive"):
        replaces = False  # the value may turn out the same; if not, the update fails before it changes anything
    if isinstance(old, dict) and isinstance(new, dict):
        return _keys(item.name, cast("wire.Properties", old), cast("wire.Properties", new), replaces=replaces)
    return [PropertyChange(path=item.name, kind=_kind(old, new), replaces=replaces)]


def _same(item: Property, old: wire.Value, new: wire.Value) -> bool:
    return old == new or (not old and not new) or (old is None and new == item.default)


def _zones(
    item: Property, state: wire.Properties, olds: wire.Properties, desired: wire.Properties
) -> list[PropertyChange]:
    """Return a replacement if the zone in use is no longer listed. The order and other zones only affect later creations."""
    zone = state.get("zone")
    allowed = cast("list[str]", desired.get("zones") or [desired.get("zone")])
    unknown = wire.has_unknown(allowed)
    imported = "waitFor" not in olds
    if imported and zone in allowed:
        return []
    replaces = item.name in desired and zone is not None and zone not in allowed and not unknown
    return [PropertyChange(path=item.name, kind=_kind(olds.get(item.name), desired.get(item.name)), replaces=replaces)]


def _keys(name: str, old: wire.Properties, new: wire.Properties, *, replaces: bool) -> list[PropertyChange]:
    return [
        PropertyChange(path=key_path(name, key), kind=_kind(old.get(key), new.get(key)), replaces=replaces)
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]


def _kind(old: wire.Value, new: wire.Value) -> ChangeKind:
    if old is None:
        return "add"
    return "delete" if new is None else "update"


def _refusal(
    state: wire.Properties, olds: Mapping[str, Any], desired: Mapping[str, Any], change: PropertyChange
) -> str:
    name = change.path.partition(".")[0].partition("[")[0]
    fix = "Revert the change until this capacity has ended, or set `allowReplaceActive` to true."
    if name == "queuedResourceId":  # often part of it is the stack's name
        fix = "Revert the change. If the stack was renamed, rename it back with `pulumi stack rename`."
    return (
        f"`{change.path}` changes from {_show(name, olds.get(name))} to {_show(name, desired.get(name))}, which replaces "
        f"{state.get('name')} while it is ACTIVE. Its capacity will be deleted, and new capacity may take hours. {fix}"
    )


def _show(name: str, value: wire.Value) -> str:
    if value is None:
        return "nothing"
    if wire.has_secret(value):
        return "a secret"
    if name.endswith("S") and isinstance(value, int):  # the unit of a duration
        return readable(value)
    return "an unknown value" if wire.has_unknown(value) else str(value)[:120]
