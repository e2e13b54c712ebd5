"""Published vulnerabilities of vLLM that a served Gemma 4 can have: what a caller can do, from which release on it is gone, what it needs.

Only those that a release with a table of flags (`planning.question.server_flags`) may have. Add one here when an advisory is published:
https://osv.dev/list?ecosystem=PyPI&q=vllm.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from planning.model.support import version_in_use, version_key
from planning.question.resolved import Resolved

Need = Literal["nothing", "no chat template of the server", "video", "trustRemoteCode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisory:
    """One vulnerability."""

    id: str
    aliases: tuple[str, ...]
    first: str
    """First release that has it; empty for all before `fixed`."""
    fixed: str
    """First release without it."""
    needs: Need
    """What a stack must have besides the release."""
    what: str
    """What a caller can do, as the end of "a caller can"."""
    source: str
    seen_on: str
    """Date of the source, YYYY-MM-DD."""


ADVISORIES: Final = (
    Advisory(
        id="PYSEC-2026-4199",
        aliases=("CVE-2026-105757", "GHSA-85xf-c7hm-whqw"),
        first="",
        fixed="0.30.0",
        needs="nothing",
        what="end the engine by a request for structured output",
        source="https://osv.dev/vulnerability/PYSEC-2026-4199",
        seen_on="2026-10-08",
    ),
    Advisory(
        id="CVE-2026-105754",
        aliases=("GHSA-ph72-cqr5-qpp7", "PYSEC-2026-4353"),
        first="",
        fixed="0.30.0",
        needs="nothing",
        what="end it by forged tensors at /inference/v1/generate",
        source="https://www.tenable.com/cve/CVE-2026-105754",
        seen_on="2026-10-08",
    ),
    Advisory(
        id="CVE-2026-105760",
        aliases=("GHSA-58v5-2m8f-94pr",),
        first="",
        fixed="0.30.0",
        needs="video",
        what="exhaust the host's memory by one small video",
        source="https://github.com/advisories/GHSA-58v5-2m8f-94pr",
        seen_on="2026-10-06",
    ),
    Advisory(
        id="PYSEC-2026-4344",
        aliases=("CVE-2026-115911", "GHSA-542m-9234-8gvf"),
        first="0.19.0",
        fixed="0.32.0",
        needs="no chat template of the server",
        what="stall all chat requests by a chat template of its own",
        source="https://osv.dev/vulnerability/PYSEC-2026-4344",
        seen_on="2026-10-29",
    ),
    Advisory(
        id="PYSEC-2026-4349",
        aliases=("CVE-2026-115918", "GHSA-x567-49g5-p4cf"),
        first="0.16.0",
        fixed="0.32.0",
        needs="no chat template of the server",
        what="stall all chat requests by a chat template of its own",
        source="https://osv.dev/vulnerability/PYSEC-2026-4349",
        seen_on="2026-10-29",
    ),
    Advisory(
        id="CVE-2026-114053",
        aliases=(),
        first="0.7.3",
        fixed="0.31.0",
        needs="trustRemoteCode",
        what="choose the revision of the checkpoint's code that runs",
        source="https://github.com/CVEProject/cvelistV5, cves/2026/114xxx/CVE-2026-114053.json",
        seen_on="2026-10-27",
    ),
)


def advisories_of(resolved: Resolved) -> Sequence[Advisory] | None:
    """Return the vulnerabilities of a server; None if its version is not known.

    A development version of the release with the repair counts as one without: which commit it was built from is not known.
    """
    version = version_key(version_in_use(resolved.accelerator, resolved.deployment.image_version))
    if version is None:
        return None
    return [one for one in ADVISORIES if _has(version, one) and _is_reachable(resolved, one.needs)]


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
