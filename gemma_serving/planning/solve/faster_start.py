"""The next faster way to read the weights on Cloud Run: the start that it saves, and its price in words."""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from gemma_serving.planning.cost.loading_modes import LoadingMode, loading_modes
from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.rules.findings import accepted_by, detected_findings
from gemma_serving.planning.settings.google_limits import PROBE_PERIOD_S
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.solve.remedy_wording import Wording
from gemma_serving.planning.units import duration

_LEAST_GAIN_S: Final = PROBE_PERIOD_S
"""Cloud Run sees a started server at the next attempt of its probe, so it does not see a smaller difference."""
_CENT: Final = 0.01
_SHOWN_GIB: Final = 0.05
_OF_DIRECT_VPC: Final = "after a teardown Google holds its subnetwork for up to two hours, at no cost"
"""Ledger: run-direct-vpc-holds-the-subnetwork."""


class FasterStart(Struct, frozen=True, kw_only=True):
    """A mode whose start is shorter than that of the deployment, and that fits."""

    present: LoadingMode
    mode: LoadingMode
    changes: Mapping[str, object]
    """The fields that differ, by path."""
    warns: tuple[str, ...]
    """Ids of the warnings that it adds."""

    @property
    def title(self) -> str:
        """What changes: the mode, Direct VPC, or both."""
        mode = self.mode.mode if self.mode.mode != self.present.mode else ""
        vpc = "Direct VPC" if self.mode.direct_vpc != self.present.direct_vpc else ""
        return " and ".join(filter(None, (mode, vpc)))

    def text(self, wording: Wording) -> str:
        """Return title, both starts, the price and the change in one paragraph, with the caller's keys."""
        change = wording.change(self.changes)
        starts = f"{duration(self.mode.start_s)} instead of {duration(self.present.start_s)}"
        what = f"{self.title}: {starts}; {'; '.join(self._price())}."
        return f"{what} {change[:1].upper()}{change[1:]}." if change else what

    def to_json(self, wording: Wording) -> dict[str, object]:
        """Return the mode in JSON types: its start and that of the deployment in seconds, its price and the change in words."""
        return {
            "title": self.title,
            "start_s": round(self.mode.start_s, 1),
            "present_start_s": round(self.present.start_s, 1),
            "price": list(self._price()),
            "change": wording.change(self.changes),
            "warns": list(self.warns),
        }

    def _price(self) -> Iterator[str]:
        """Yield what the mode costs: money, host memory, what Direct VPC delays, and new warnings."""
        extra_usd, extra_gib = self.mode.extra_usd_per_hour, self.mode.host_gib - self.present.host_gib
        if extra_usd is not None and extra_usd >= _CENT:
            yield f"${extra_usd:.2f}/h more ({self.mode.memory_gib:g} GiB, {self.mode.vcpu:g} vCPU)"
        else:
            more = f", {extra_gib:.1f} GiB more of the container's memory" if extra_gib >= _SHOWN_GIB else ""
            yield f"the same price per hour{more}"
        if self.mode.direct_vpc and not self.present.direct_vpc:
            yield _OF_DIRECT_VPC
        if self.mode.nat_start_usd:
            yield f"Cloud NAT adds ${self.mode.nat_start_usd:.2f} per start"
        if self.warns:
            yield f"{', '.join(self.warns)} then {'warn' if self.warns[1:] else 'warns'}"


def faster_start(subject: Subject) -> FasterStart | None:
    """Return the faster mode with the smallest price that fits; None if the fastest one is in use, or the deployment has no such modes.

    The price is compared in this order: dollars per hour, a change to Direct VPC, a change of the mode, then the start.
    """
    modes = loading_modes(subject)
    present = next((one for one in modes if one.is_chosen), None)
    if present is None:
        return None
    order = sorted(
        (one for one in modes if _is_faster(one, present)),
        key=lambda one: (
            round(one.extra_usd_per_hour or 0, 2),
            one.direct_vpc != present.direct_vpc,
            one.mode != present.mode,
            one.start_s,
        ),
    )
    return next((found for one in order if (found := _tried(subject, present, one)) is not None), None)


def _is_faster(mode: LoadingMode, present: LoadingMode) -> bool:
    """Return whether a mode starts noticeably sooner, in a container that exists. No file cache is new: it is a slower use of more memory."""
    is_new_cache = mode.mode == "fuse-cached" != present.mode
    return mode.start_s <= present.start_s - _LEAST_GAIN_S and mode.memory_gib is not None and not is_new_cache


def _tried(subject: Subject, present: LoadingMode, mode: LoadingMode) -> FasterStart | None:
    """Return the mode with its changes; None if a finding then blocks."""
    changes = dict(_changes(subject, present, mode))
    after = examine(with_changes(subject.resolved.question, changes))
    found = detected_findings(after)
    if {name for name, severity in found.items() if severity == "block"} - accepted_by(after):
        return None
    warned = {name for name, severity in found.items() if severity == "warn"}
    new = warned - detected_findings(subject).keys() - accepted_by(subject)
    return FasterStart(present=present, mode=mode, changes=changes, warns=tuple(sorted(new)))


def _changes(subject: Subject, present: LoadingMode, mode: LoadingMode) -> Iterator[tuple[str, object]]:
    resolved = subject.resolved
    if mode.mode != present.mode:
        yield "weights_mode", mode.mode
        if resolved.question.settings.vllm.load_format is not None:
            yield "vllm.load_format", None
    if mode.direct_vpc != present.direct_vpc:
        yield "cloud_run.direct_vpc", mode.direct_vpc
    if mode.memory_gib != resolved.host_memory_gib:
        yield "cloud_run.memory_mib", round((mode.memory_gib or 0) * 1024)
    if mode.vcpu != resolved.vcpu:
        yield "cloud_run.cpu", round(mode.vcpu or 0)
