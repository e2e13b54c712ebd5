"""What a change of inputs means: in place, a replacement, or a refusal because running capacity would be given up."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from gcp_tpu_provider import wire
from gcp_tpu_provider.check import key_path
from gcp_tpu_provider.errors import ProviderError
from gcp_tpu_provider.properties import DEAD_STATE, INPUTS, Property
from gcp_tpu_provider.record import MISSING
from gcp_tpu_provider.request import Wish
from gcp_tpu_provider.tpu_api import ACTIVE, DEAD, DEAD_NODE

Kind = Literal["add", "delete", "update"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One changed property path. `input_diff` is False where an output, seen by refresh, is the reason."""

    path: str
    kind: Kind
    replaces: bool = False
    input_diff: bool = True


def diff(urn: str, outputs: Mapping[str, Any], old_inputs: Mapping[str, Any], news: Mapping[str, Any]) -> list[Change]:
    """Compare. Raises ProviderError when an ACTIVE queued resource would be replaced without `allowReplaceActive`."""
    state = cast("wire.Properties", wire.reveal(dict(outputs)))
    olds = cast("wire.Properties", wire.reveal(dict(old_inputs)))
    wanted = cast("wire.Properties", wire.reveal(dict(news)))
    dead = is_dead(state)
    active = state.get("state") == ACTIVE and not dead
    changes = [change for item in INPUTS for change in _property(item, state, olds, wanted, lenient=active)]
    if dead:
        return [*changes, Change(path=DEAD_STATE, kind="update", replaces=True, input_diff=False)]
    replacing = [change for change in changes if change.replaces]
    if replacing and active and not wanted.get("allowReplaceActive"):
        raise ProviderError(_refusal(state, old_inputs, news, replacing[0]))
    owners = state.get("ownerLabels")
    if owners is not None and not wire.has_unknown(wanted.get("labels")) and owners != Wish(urn, wanted).owner_labels:
        changes.append(Change(path="ownerLabels", kind="update", input_diff=False))
    return changes or _unfinished(urn, state, olds, wanted)


def is_dead(state: Mapping[str, Any]) -> bool:
    """Whether the queued resource, as it was last seen, can never serve again."""
    node = state.get("nodeState")
    return state.get("state") in DEAD or (state.get("state") == ACTIVE and (node == MISSING or node in DEAD_NODE))


def _unfinished(urn: str, state: wire.Properties, olds: wire.Properties, wanted: wire.Properties) -> list[Change]:
    """What was waited for and is not so (a wait that was cut off, a server that is no longer ready) is an update that waits on.

    The engine's own mark of an unfinished creation does not survive a refresh, so it cannot be left to that.
    """
    wait_for = wanted.get("waitFor")
    if "waitFor" not in olds or wait_for == "accepted" or wire.has_unknown(wait_for):
        return []
    if state.get("state") != ACTIVE:
        return [Change(path="state", kind="update", input_diff=False)]
    if wait_for != "ready" or wire.has_unknown(wanted.get("metadata")) or wire.has_unknown(wanted.get("ready")):
        return []
    ready = Wish(urn, wanted).ready_check
    current = ready is None or not ready.document_hash or ready.document_hash == state.get("documentHash")
    if state.get("phase") == "ready" and current:
        return []
    return [Change(path="phase", kind=_kind(state.get("phase"), "ready"), input_diff=False)]


def _property(
    item: Property, state: wire.Properties, olds: wire.Properties, wanted: wire.Properties, *, lenient: bool
) -> list[Change]:
    old, new = olds.get(item.name), wanted.get(item.name)
    if _same(item, old, new):
        return []
    if item.change == "zones":
        return _zones(item, state, olds, wanted)
    if item.change == "policy" and old is None:
        return []  # an imported resource has no waiting policy; giving it one changes nothing in the cloud
    replaces = item.change == "replace"
    if replaces and lenient and wire.has_unknown(new) and not wanted.get("allowReplaceActive"):
        replaces = False  # it may turn out the same; if it does not, the update refuses before anything is touched
    if isinstance(old, dict) and isinstance(new, dict):
        return _keys(item.name, cast("wire.Properties", old), cast("wire.Properties", new), replaces=replaces)
    return [Change(path=item.name, kind=_kind(old, new), replaces=replaces)]


def _same(item: Property, old: wire.Value, new: wire.Value) -> bool:
    return old == new or (not old and not new) or (old is None and new == item.default)


def _zones(item: Property, state: wire.Properties, olds: wire.Properties, wanted: wire.Properties) -> list[Change]:
    """The order and the other zones guide later creations only."""
    zone = state.get("zone")
    allowed = cast("list[str]", wanted.get("zones") or [wanted.get("zone")])
    unknown = wire.has_unknown(allowed)
    imported = "waitFor" not in olds
    if imported and zone in allowed:
        return []
    replaces = item.name in wanted and zone is not None and zone not in allowed and not unknown
    return [Change(path=item.name, kind=_kind(olds.get(item.name), wanted.get(item.name)), replaces=replaces)]


def _keys(name: str, old: wire.Properties, new: wire.Properties, *, replaces: bool) -> list[Change]:
    return [
        Change(path=key_path(name, key), kind=_kind(old.get(key), new.get(key)), replaces=replaces)
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]


def _kind(old: wire.Value, new: wire.Value) -> Kind:
    if old is None:
        return "add"
    return "delete" if new is None else "update"


def _refusal(state: wire.Properties, olds: Mapping[str, Any], wanted: Mapping[str, Any], change: Change) -> str:
    name = change.path.partition(".")[0].partition("[")[0]
    return (
        f"`{change.path}` changes from {_show(olds.get(name))} to {_show(wanted.get(name))}, which would replace "
        f"{state.get('name')} while it is ACTIVE: its capacity would be given up and may take hours to get again. "
        "Take the change back, or set `allowReplaceActive` to true."
    )


def _show(value: wire.Value) -> str:
    if value is None:
        return "nothing"
    if wire.has_secret(value):
        return "a secret"
    return "a value that is not known yet" if wire.has_unknown(value) else str(value)[:120]
