"""Tables of docs/authors/accuracy.md and GPU constants of docs/authors/planner-internals.md, and the rows behind the page as CSV (`make docs`)."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence

from authors.accuracy.corpus.compared import compared, judged, started
from authors.accuracy.corpus.measured import Boot, Measurements, ReportSource, load, read_off
from authors.accuracy.evidence import CLASSES, evidence_rows, missed
from authors.accuracy.sweeps import all_points, comparisons
from authors.tables import table
from planning.data.gpu_speed import CONSTANTS

COLUMNS = ("class", "source", "url", "row", "figure", "measured", "planned", "within", "remark")


def tables() -> Mapping[str, str]:
    """Return the tables by their markers."""
    return tables_of(load())


def tables_of(measurements: Measurements) -> Mapping[str, str]:
    """Return the tables for a corpus."""
    constants = [
        (f"`{one.name}`", f"{one.value:g}", one.unit, one.what, one.fitted_to, "; ".join(one.sources))
        for one in CONSTANTS.values()
        if one.fitted_to != "assumed"
    ]
    assumed = [one for one in CONSTANTS.values() if one.fitted_to == "assumed"]
    values = " <br> ".join(f"`{one.name}` {one.value:g} {one.unit}: {one.what}" for one in assumed)
    constants.append(("assumed", "", "", values, "", ""))
    return {
        "accuracy-shares": table(
            f"figure | tolerance: | {' | '.join(f'{name}:' for name in CLASSES)}", evidence_rows(measurements)
        ),
        "accuracy-misses": table("what | figure | measured | planned | source", missed(measurements)),
        "gpu-constants": table("name | value: | unit | meaning | fitted to | sources", constants),
    }


def rows_file() -> str:
    """Return every row as CSV: outcomes, figures and points, misses first in each class, with the constants that were set from them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(sorted(_rows(load()), key=_by_importance))
    return text.getvalue()


def _by_importance(row: Sequence[str]) -> tuple[bool, bool]:
    return row[0] != "unseen", row[7] == "yes"


def _rows(measurements: Measurements) -> Iterator[Sequence[str]]:
    fitted = {
        (boot.deployment_id, figure.key): f"set {constant.name}"
        for constant in measurements.constants
        for boot, figure in read_off(constant, measurements)
    }
    for boot in started(measurements.boots):
        row = judged(boot)
        seen = f"crashed ({boot.at}): {boot.message}" if boot.died else "runs"
        reason = boot.superseded or boot.beyond or ("patched image" if boot.patched else "") or boot.ambiguous
        within = ("yes" if row.is_right else "no") if row.is_counted else "not counted"
        yield (*_head(boot), "verdict", seen, row.planned, within, reason)
    for one in compared(measurements.boots):
        remark = one.figure.beyond or fitted.get((one.boot.deployment_id, one.figure.key), "") or one.figure.note
        values = f"{one.figure.measured:.5g}", f"{one.predicted:.5g}", "yes" if one.is_within else "no"
        yield (*_head(one.boot), one.figure.kind.name, *values, remark)
    factors = {"rate": 1.5, "ttft": 2.0, "tpot": 1.5}
    for one in comparisons(all_points()):
        point, source = one.point, measurements.sources[one.point.source]
        name = f"{point.deployment}, {point.input_tokens} in, {point.output_tokens} out, {point.users} users"
        values = f"{one.measured:.5g}", f"{one.predicted:.5g}", "yes" if one.factor <= factors[one.figure] else "no"
        remark = {"fit": "set constants", "band": "set bands", "held-out": ""}[point.split]
        yield (*_source(source), name, one.figure, *values, remark)


def _head(boot: Boot) -> tuple[str, str, str, str]:
    return boot.evidence, *_source(boot.sources[0])[1:], boot.title


def _source(source: ReportSource) -> tuple[str, str, str]:
    return "unseen" if source.unseen else "known", source.citation, source.url
