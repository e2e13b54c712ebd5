"""Published vulnerabilities of vLLM that apply to Gemma 4: effect, fixed release, requirements.

Only those that a release with a table of flags (`planning.question.server_flags`) may have. They are in planning/data/advisories.json. When
an advisory is published, add it there: https://osv.dev/list?ecosystem=PyPI&q=vllm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from planning.data.tables import Table, data_file, row_of
from planning.model.support import version_in_use, version_key
from planning.question.resolved import Resolved

Need = Literal["nothing", "no chat template of the server", "video", "trustRemoteCode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisory:
    """One vulnerability."""

    id: str
    aliases: tuple[str, ...]
    first: str
    """First affected release; empty for all before `fixed`."""
    fixed: str
    """First release with the fix."""
    needs: Need
    """Feature that a stack must use for the vulnerability to apply, in addition to the release."""
    what: str
    """Effect, as the end of "a caller can"."""
    source: str
    seen_on: str
    """Date of the source, YYYY-MM-DD."""


ADVISORIES: Final[Mapping[str, Advisory]] = Table(
    lambda: {row["id"]: row_of(Advisory, row) for row in data_file("advisories.json")}
)
"""By id."""


def advisories_of(resolved: Resolved) -> Sequence[Advisory] | None:
    """Return the vulnerabilities of a server; None if its version is unknown.

    A development version of the fixed release counts as affected, because its commit is unknown.
    """
    version = version_key(version_in_use(resolved.accelerator, resolved.deployment.image_version))
    if version is None:
        return None
    return [one for one in ADVISORIES.values() if _has(version, one) and _is_reachable(resolved, one.needs)]


def _has(version: tuple[int, ...], advisory: Advisory) -> bool:
    first, fixed = version_key(advisory.first), version_key(advisory.fixed)
    return (first is None or version >= first) and fixed is not None and version < fixed


def _is_reachable(resolved: Resolved, needs: Need) -> bool:
    match needs:
        case "no chat template of the server":
            return resolved.vllm.chat_template is None
        case "video":
            return resolved.item_limit("video") > 0
        case "trustRemoteCode":
            return bool(resolved.vllm.trust_remote_code)
        case "nothing":
            return True
