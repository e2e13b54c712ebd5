"""Shares of the predictions within their tolerance by class of device and by publisher. A start-up figure says how many rows stand behind it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dev.judges.accuracy.bands import bands_of, publisher_of
from gemma_serving.planning.machine.hardware import ACCELERATORS, Accelerator
from gemma_serving.planning.settings.question import Question
from tests.planning.corpus.compared import ComparedFigure, JudgedBoot
from tests.planning.corpus.measured import STARTS, WHOLE_STARTS, load
from tests.planning.corpus.sweeps import ComparedPoint

DEVICE_CLASSES: Final = ("TPU", "L4", "RTX PRO 6000", "others")
"""Classes of the page, in its order: TPUs of any size, the two cards that the project deploys, and every other card."""
COMPARED: Final = (
    "KV cache",
    "weights",
    "verdicts",
    "decoding",
    "throughput",
    "TTFT",
    "start: parts",
    "start: whole",
    "start: set a constant",
)
"""Columns of shares of the first table. A part of a start is the loading of weights, or compilation and warm-up."""
PUBLISHER_COLUMNS: Final = (
    "devices | publisher | throughput: | inside the others' band: | TTFT: | inside the others' band:"
)
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "decoding, one request": ("decode",),
    "start": STARTS,
    "weights": ("checkpoint", "weights", "host_load_peak", "load_peak"),
    "KV cache": ("kv", "kv_tokens", "kv_blocks", "kv_tokens_per_gib", "kv_concurrency", "kv_request"),
    "output rate, 16 or 64 requests": ("decode_16", "decode_64"),
}
"""Figures of the boots by subject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """Everything that the page compares: figures of boots, verdicts, and points of sweeps."""

    figures: Sequence[ComparedFigure]
    verdicts: Sequence[JudgedBoot]
    points: Sequence[ComparedPoint]


def share_text(within: int, count: int) -> str:
    """Return a number of rows within their tolerance as text; empty without rows."""
    return f"{within} of {count} ({within / count:.0%})" if count else ""


def share_of(rows: Iterable[bool]) -> str:
    """Return the share of the rows that are true as text."""
    within = list(rows)
    return share_text(sum(within), len(within))


def device_class(accelerator: Accelerator) -> str:
    """Return the class of a device, by its row of the catalog or by the whole name of the card: an L40S is no L4."""
    if accelerator.is_tpu:
        return "TPU"
    card = accelerator.family or accelerator.name.removeprefix(f"{accelerator.devices} x ")
    return card if card in DEVICE_CLASSES else "others"


def _class_of(question: Question) -> str:
    return device_class(question.facts.device or ACCELERATORS[question.facts.accelerator])


def device_rows(found: Predictions) -> list[Sequence[str]]:
    """Return a row for each class of device and of evidence: sources, publishers, a share for each name in COMPARED, and rows that set a constant."""
    fitted = {(boot.id, figure.key) for one in load().constants for boot, figure in one.read_off}
    rows: list[Sequence[str]] = []
    for name in DEVICE_CLASSES:
        for evidence in ("unseen", "known"):
            own = _predictions_of(found, name, evidence)
            within = {
                group: share_of(one.is_within for one in own.figures if one.figure.key in keys)
                for group, keys in GROUPS.items()
            }
            verdicts = share_of(one.is_right for one in own.verdicts)
            rate, ttft = (
                share_of(one.is_within for one in own.points if one.figure == key) for key in ("rate", "ttft")
            )
            memory = within["KV cache"], within["weights"]
            starts = [one for one in own.figures if one.figure.key in GROUPS["start"]]
            parts, wholes = (
                share_of(one.is_within for one in starts if (one.figure.key in WHOLE_STARTS) is is_whole)
                for is_whole in (False, True)
            )
            cells = (*memory, verdicts, within["decoding, one request"], rate, ttft, parts, wholes)
            set_by = sum((one.boot.id, one.figure.key) in fitted for one in starts)
            rows.append((name, evidence, *_counts(own), *(cell or "no rows" for cell in cells), str(set_by)))
    return rows


def publisher_rows(points: Sequence[ComparedPoint]) -> list[Sequence[str]]:
    """Return a row for each class of device and publisher of load points: shares within the tolerance, and inside the bands of all other publishers."""
    questions = load().deployments
    found: dict[tuple[int, str], list[ComparedPoint]] = defaultdict(list)
    for one in points:
        place = DEVICE_CLASSES.index(_class_of(questions[one.point.deployment]))
        found[place, publisher_of(one)].append(one)
    rows: list[Sequence[str]] = []
    for (place, publisher), own in sorted(found.items()):
        bands = bands_of(points, without=publisher)
        cells: list[str] = []
        for figure in ("rate", "ttft"):
            compared = [one for one in own if one.figure == figure]
            held = [(bands[figure, one.kind], one.ratio) for one in compared if (figure, one.kind) in bands]
            cells += (
                share_of(one.is_within for one in compared),
                share_of(band.low <= ratio <= band.high for band, ratio in held)
                or ("no other publisher" if compared else ""),
            )
        rows.append((DEVICE_CLASSES[place], publisher, *(cell or "no rows" for cell in cells)))
    return rows


def _predictions_of(found: Predictions, name: str, evidence: str) -> Predictions:
    """Return the predictions of a class of devices and a class of evidence, of verdicts those that count."""
    questions = load().deployments
    return Predictions(
        figures=[
            one for one in found.figures if (_class_of(one.boot.deployment), one.boot.evidence) == (name, evidence)
        ],
        verdicts=[
            one
            for one in found.verdicts
            if one.is_counted and (_class_of(one.boot.deployment), one.boot.evidence) == (name, evidence)
        ],
        points=[
            one
            for one in found.points
            if _class_of(questions[one.point.deployment]) == name and one.point.is_unseen is (evidence == "unseen")
        ],
    )


def _counts(own: Predictions) -> tuple[str, str]:
    """Return how many sources and how many publishers have these rows. All field reports count as one publisher."""
    sources = [source for one in (*own.figures, *own.verdicts) for source in one.boot.sources]
    sources += [load().sources[one.point.source] for one in own.points]
    publishers = {"field reports" if one.publisher.startswith("field report ") else one.publisher for one in sources}
    return str(len({one.citation for one in sources})), str(len(publishers))
