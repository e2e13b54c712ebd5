"""The accuracy page counts each row once, in the class of its device and of its source."""

import re
import tomllib
from collections import Counter

import pytest

from dev.judges.accuracy.shares import COMPARED, GROUPS, Predictions, device_class, device_rows
from gemma_serving.planning.machine.hardware import ACCELERATORS
from tests.planning.corpus.compared import compared_figures, judge_boot, started_boots
from tests.planning.corpus.measured import BOOTS, FILE, KINDS, WHOLE_STARTS, load
from tests.planning.corpus.sweeps import all_comparisons

MEASURED = load()
FOUND = Predictions(
    figures=tuple(compared_figures(MEASURED.boots)),
    verdicts=tuple(map(judge_boot, started_boots(MEASURED.boots))),
    points=all_comparisons(),
)
TABLE = device_rows(FOUND)
ROWS = {(name, evidence): dict(zip(COMPARED, cells, strict=True)) for name, evidence, _, _, *cells in TABLE}
SOURCES = {
    key: source
    for path in (FILE, *BOOTS.glob("*.toml"))
    for key, source in tomllib.loads(path.read_text(encoding="utf-8")).get("sources", {}).items()
}
"""As written in the files, without the project's reader."""
CARDS = {"L4": "L4", "L4x2": "L4", "L4x4": "L4", "RTX PRO 6000": "RTX PRO 6000"}
"""Class of each card of the catalog that has its own."""


def counted(cell: str) -> int:
    """Return the rows behind a share."""
    return 0 if cell == "no rows" else int(cell.split()[2])


def written_class(deployment_id: str) -> str:
    """Return the class of a deployment by its name alone."""
    facts = MEASURED.deployments[deployment_id].facts
    name = facts.device.name if facts.device else facts.accelerator
    return "TPU" if re.match(r"v5e|v6e|tpu7x", name) else CARDS.get(name, "others")


def written_evidence(citations: set[str]) -> str:
    """Return the class of the sources with these citations, by their own lines in the files."""
    own = [source for source in SOURCES.values() if source["citation"] in citations]
    return "unseen" if all(source.get("unseen") for source in own) else "known"


def test_each_size_of_the_catalog_has_the_class_of_its_chip():
    own = {name: device_class(accelerator) for name, accelerator in ACCELERATORS.items()}
    assert {name for name, found in own.items() if found == "TPU"} == {n for n, a in ACCELERATORS.items() if a.is_tpu}
    assert {name: found for name, found in own.items() if found not in {"TPU", "others"}} == CARDS


def test_each_row_is_counted_once_in_the_class_of_its_device_and_of_its_source(subtests: pytest.Subtests):
    expected: Counter[tuple[str, str, str]] = Counter()
    columns = {"KV cache": "KV cache", "weights": "weights", "decoding": "decoding, one request"}
    keys = {name: GROUPS[group] for name, group in columns.items()}
    keys |= {"start: parts": ("load", "compile"), "start: whole": WHOLE_STARTS}
    for boot in MEASURED.boots:
        row = written_class(boot.deployment_id), written_evidence({source.citation for source in boot.sources})
        expected.update((*row, name) for figure in boot.figures for name in keys if figure.key in keys[name])
    for judged in FOUND.verdicts:
        boot = judged.boot
        row = written_class(boot.deployment_id), written_evidence({source.citation for source in boot.sources})
        expected[(*row, "verdicts")] += judged.is_counted
    for one in FOUND.points:
        row = written_class(one.point.deployment), written_evidence({SOURCES[one.point.source]["citation"]})
        expected[(*row, {"rate": "throughput", "ttft": "TTFT", "tpot": ""}[one.figure])] += 1
    for row, cells in ROWS.items():
        for name in COMPARED[:-1]:
            with subtests.test(f"{row}: {name}"):
                assert counted(cells[name]) == expected[(*row, name)]


def test_a_source_counts_once_and_so_does_its_publisher():
    counts = {(name, evidence): (int(sources), int(publishers)) for name, evidence, sources, publishers, *_ in TABLE}
    cited = {
        source.citation
        for boot in MEASURED.boots
        if written_class(boot.deployment_id) == "L4" and boot.evidence == "unseen" and boot.outcome != "files"
        for source in boot.sources
    }
    assert counts["L4", "unseen"] == (len(cited), len({one.split("/")[0] for one in cited}))
    assert counts["TPU", "known"][0] > 5 * counts["TPU", "known"][1]


def test_every_kind_of_figure_is_of_one_subject():
    assert Counter(key for keys in GROUPS.values() for key in keys) == Counter(list(KINDS))


def test_a_constant_of_starts_is_set_from_known_rows_only():
    used = {(boot.id, figure.key) for one in MEASURED.constants for boot, figure in one.read_off}
    starts = sum(key in GROUPS["start"] for _, key in used)
    set_by = {row: int(cells["start: set a constant"]) for row, cells in ROWS.items()}
    assert sum(set_by.values()) == starts > 0
    assert {row for row, count in set_by.items() if count} <= {row for row in set_by if row[1] == "known"}


def relabelled(sources: dict[str, dict[str, object]]) -> set[str]:
    """Return the later sources that are not unseen and do not say what they were used for, or that claim both."""
    return {key for key, source in sources.items() if bool(source.get("unseen")) is bool(source.get("used"))}


def later_sources() -> dict[str, dict[str, object]]:
    founding = tomllib.loads(FILE.read_text(encoding="utf-8"))["sources"]
    return {key: dict(source) for key, source in SOURCES.items() if key not in founding}


def test_a_source_stays_unseen_until_it_says_what_was_set_from_it():
    later = later_sources()
    assert sum(bool(source.get("unseen")) for source in later.values()) > 25
    assert relabelled(later) == set()
