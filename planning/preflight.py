"""All preflight rules, in the order in which findings are shown: what stops first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from planning import preflight_fit as fit
from planning import preflight_platform as platform

if TYPE_CHECKING:
    from collections.abc import Callable

    from planning.subject import Subject
    from planning.types import Finding

    Rule = Callable[[Subject], Finding | None]

RULES: Final[tuple[Rule, ...]] = (
    fit.fit01_weights,
    fit.fit02_offload,
    fit.fit03_host_memory,
    fit.fit04_one_request,
    fit.fit05_headroom,
    fit.fit06_quantized_on_tpu,
    fit.fit07_fp8_kv_on_tpu,
    fit.fit08_parallelism,
    fit.len02_multimodal_item,
    fit.len03_model_length,
    platform.prb01_budget,
    platform.prb02_limits,
    platform.scl01_queueing,
    platform.scl02_quota,
    platform.scl03_region,
    platform.tpu01_parallelism,
    platform.tpu02_run_duration,
    platform.tpu04_zones,
    fit.tpu06_compile_cache,
    platform.net01_localhost,
    platform.net02_private_access,
    platform.sec01_token,
    platform.sec02_public,
    platform.fus01_owner,
    platform.cst01_whole_bill,
)

_ORDER: Final = {"block": 0, "warn": 1, "info": 2}


def findings_of(subject: Subject) -> tuple[Finding, ...]:
    """Everything that a person should know, blocking findings first."""
    found = [finding for rule in RULES if (finding := rule(subject)) is not None]
    return tuple(sorted(found, key=lambda finding: _ORDER[finding.severity]))
