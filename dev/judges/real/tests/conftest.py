"""The claims about the real parts: what each test shares, and the table of a run. Only a run that names this folder collects them.

A test is one claim, and its docstring is the claim. A judge that this machine cannot have is skipped, with the reason.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from dev.judges.planted import PlantedLieError, refuse_planted
from dev.judges.real.home import RealHome

HOME = RealHome()
REPORT = "report.md"
AGREES, DIFFERS, NOT_JUDGED = "agrees", "DIFFERS", "not judged"


@dataclass
class Claim:
    """A row of the table."""

    part: str
    words: str
    result: str = NOT_JUDGED
    note: str = "interrupted"
    took_s: float = 0.0


CLAIMS = pytest.StashKey[dict[str, Claim]]()
JUDGES = pytest.StashKey[dict[str, str]]()


@pytest.fixture(scope="session")
def home():
    """The folder of the installed parts, with no results of an earlier run. Ctrl-C and SIGTERM end the run, which stops all that it started."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    HOME.empty_results()
    yield HOME
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def judge(request):
    """Return a function that names the judge of this part, with its version, for the table."""
    return lambda name: request.config.stash[JUDGES].update({part_of(request.path): name})


@pytest.fixture
def notes(record_property):
    """A list of what was measured. The table and pytest's results (JUnit XML) show it if the claim holds."""
    found = []
    yield found
    record_property("note", "; ".join(found))


def part_of(path):
    """Return the part of a file of tests, as `make -C dev/judges real PART=...` names it."""
    return path.stem.removeprefix("test_").replace("_", "-")


def pytest_configure(config):
    """Prepare the table."""
    config.stash[CLAIMS], config.stash[JUDGES] = {}, {}


def planted_lie():
    missing = SimpleNamespace(failed=False, skipped=True, when="call")
    refuse_planted("a claim whose judge is missing agrees", lambda: result_of(missing) != AGREES)


def pytest_collection_modifyitems(items):
    """Offer the table and each part their planted lies, before anything is installed."""
    try:
        planted_lie()
        for module in dict.fromkeys(item.module for item in items):
            module.planted_lie()
    except PlantedLieError as accepted:
        pytest.exit(str(accepted), returncode=pytest.ExitCode.TESTS_FAILED)


def result_of(report):
    """Return what one step of a test says of its claim, empty if it says nothing."""
    if report.failed or report.skipped:
        return DIFFERS if report.failed else NOT_JUDGED
    return AGREES if report.when == "call" else ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Add what one step of a test says to the row of its claim."""
    report = yield
    case = f": {item.callspec.id}" if hasattr(item, "callspec") else ""
    words = " ".join(item.function.__doc__.split()).removesuffix(".") + case
    claim = item.config.stash[CLAIMS].setdefault(item.nodeid, Claim(part_of(item.path), words))
    claim.took_s += call.duration
    claim.result = result_of(report) or claim.result
    if report.failed:
        claim.note = (str(call.excinfo.value) or repr(call.excinfo.value)).partition("\n")[0]
    elif report.skipped:
        claim.note = str(call.excinfo.value)
    elif report.when == "call":
        claim.note = ""
    elif report.when == "teardown" and claim.result == AGREES:
        claim.note = dict(item.user_properties).get("note", "")
    return report


def pytest_sessionfinish(session, exitstatus):
    """A run that judged nothing fails."""
    claims = session.config.stash[CLAIMS].values()
    if exitstatus == pytest.ExitCode.OK and not any(claim.result == AGREES for claim in claims):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_terminal_summary(terminalreporter, config):
    """Print the tables, and write them to the results and to the summary of a job on GitHub."""
    claims = list(config.stash[CLAIMS].values())
    if not claims:
        return
    text = report_of(claims, config.stash[JUDGES])
    terminalreporter.section("real parts")
    terminalreporter.write_line(text)
    HOME.results.mkdir(parents=True, exist_ok=True)
    (HOME.results / REPORT).write_text(f"{text}\n", encoding="utf-8")
    if target := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(target).open("a", encoding="utf-8") as stream:
            stream.write(f"{text}\n")


def report_of(claims, judges):
    """Return the table of the parts and the table of the claims, in Markdown."""
    parts = []
    for part in dict.fromkeys(claim.part for claim in claims):
        results = [claim.result for claim in claims if claim.part == part]
        parts.append([part, judges.get(part, ""), *(results.count(one) for one in (AGREES, DIFFERS, NOT_JUDGED))])
    rows = [[claim.part, claim.words, claim.result, claim.note, f"{claim.took_s:.0f}"] for claim in claims]
    heads = ("part", "judge", "agrees", "differs", "not judged"), ("part", "claim", "result", "note", "s")
    return "\n\n".join(table(*given) for given in zip(heads, (parts, rows), strict=True))


def table(head, rows):
    """Return a table in Markdown."""
    lines = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))
