"""The README is real: the demo and the planner's examples run, other commands take the options that they are shown with, figures are generated.

tests/scripts/test_commands_page.py reads the other lines of `gemma`.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gemma_serving.contracts.settings_files import settings_file, shipped_files
from gemma_serving.planning.planner import plan
from gemma_serving.planning.units import duration
from gemma_serving.scripts.gemma.__main__ import main, overview
from gemma_serving.scripts.gemma.first import FIRST_DAY
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import headline, to_question
from localcloud import cli
from tests.pictures import words_of
from tests.test_pages import PAGES

ROOT = Path(__file__).resolve().parents[2]
README = "\n".join(page.read_text() for page in (ROOT / "README.md", ROOT / "docs" / "get-started.md")).replace(
    "&nbsp;", " "
)
SIXTY_SECONDS = 240
"""Words that are read in a minute."""
STACKS_PAGE = (ROOT / "docs" / "reference" / "stacks.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
INLINE = re.findall(r"`((?:make|pulumi|python -m) [^`]+)`", README)
LINES = [line.partition("  #")[0].strip() for block in BLOCKS for line in block.splitlines()] + INLINE
PLANS = [line for line in dict.fromkeys(LINES) if line.startswith("./gemma plan")]
CLOUD = re.compile(r"^(?:\.venv/bin/)?python -m localcloud ")
ROW = re.compile(
    r"^\| `([a-z0-9-]+)` \| [^|]* \| [^|]* \| (\d+ min \(\d+ to \d+\)) \| (\$[\d.]+) \| (\$[\d.]+) \| ([^|]*) \|$",
    re.MULTILINE,
)
"""Stack, start, price per hour and per day, and what it costs without requests."""

pytestmark = pytest.mark.engine


@pytest.fixture
def printed(capsys, monkeypatch):
    """Return what `gemma` prints in this checkout, in one line."""
    monkeypatch.chdir(ROOT)

    def answer(*words):
        assert main(words) in {0, 2}
        return " ".join(capsys.readouterr().out.split())

    return answer


@pytest.mark.long
def test_the_demo_does_what_the_readme_says():
    hidden = ("PULUMI_", "GOOGLE_", "CLOUDSDK_")
    done = subprocess.run(
        [sys.executable, "-m", "dev.authors.demo"],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if not key.startswith(hidden)},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "The cloud of this demo is simulated" in done.stdout
    assert done.stdout.count("no leaked resources") >= 2
    assert "all steps succeeded" in done.stdout


def test_the_planners_examples_run(printed):
    assert len(PLANS) >= 2
    for line in PLANS:
        assert "KV cache" in printed(*shlex.split(line)[1:])


def test_every_command_of_the_local_cloud_and_every_make_target_exists():
    lines = [CLOUD.sub("", line) for line in LINES if CLOUD.match(line)]
    targets = {word for line in LINES for word in re.findall(r"make ([a-z]+)", line)}
    assert (len(lines) >= 1, len(targets) >= 2) == (True, True)
    for line in lines:
        cli._parser().parse_args(cli._split(shlex.split(line))[0])
    makefile = (ROOT / "Makefile").read_text()
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, flags=re.MULTILINE)] == []


def test_eight_commands_are_for_a_first_day_and_each_exists():
    shown = set(re.findall(r"(?:^\| `|\./)gemma ([a-z_]+)", README, flags=re.MULTILINE))
    assert len(FIRST_DAY) == 8
    assert shown <= {*FIRST_DAY, "connect"}
    assert [word for word in shown if not re.search(rf"^  {word} ", overview(), flags=re.MULTILINE)] == []


def test_every_file_that_the_documents_link_to_exists():
    links = [
        (document, link)
        for document in PAGES
        for link in re.findall(r"\]\(([^)#\[\]]+)(?:#[^)]*)?\)", document.read_text())
    ]
    assert [str(pair) for pair in links if "://" not in pair[1] and not (pair[0].parent / pair[1]).exists()] == []


def test_the_settings_file_of_the_readme_has_twelve_lines_and_the_plan_of_tpu_v6e1(tmp_path):
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(block.splitlines()) == 12
    (tmp_path / "Pulumi.readme.yaml").write_text(block)
    own, shipped = (
        plan(to_question(from_file(path, project="my-project")))
        for path in (tmp_path / "Pulumi.readme.yaml", ROOT / "Pulumi.tpu-v6e1.yaml")
    )
    assert [finding.id for finding in own.findings if finding.severity == "block"] == []
    assert (own.memory, own.known_startup) == (shipped.memory, shipped.known_startup)


def hand_written_figures(page):
    """Return the figures of a page that no generator wrote: amounts, durations, sizes and counts of stacks."""
    text = re.sub(r"<!-- generated.*?<!-- end -->|```.*?```", "", page, flags=re.DOTALL)
    return re.findall(r"\$\d\S*|\d[\d.,]*(?:&nbsp;| )(?:min|minutes|hours|h|s|GiB|GB|MB|stacks|tokens)\b", text)


def test_every_figure_of_the_readme_is_generated():
    page = (ROOT / "README.md").read_text()
    assert hand_written_figures(page) == []
    for planted in ("$1.05 per hour", "24.9 GiB", "15 stacks", "4&nbsp;min"):
        assert len(hand_written_figures(f"{page}{planted}\n")) == 1


def test_the_readme_says_for_whom_and_what_it_costs_before_anything_is_run():
    page = (ROOT / "README.md").read_text()
    order = (
        "**Status: ",
        "## Is it for you?",
        "**Use something else if**",
        "**It costs** ",
        "![",
        "```sh\nmake demo\nmake test\n```",
    )
    places = [page.index(words) for words in order]
    assert places == sorted(places)
    assert page.count("![") == 1
    assert page.index("```") == places[-1]
    shown = re.sub(r"<!--.*?-->|!\[.*?\)|\]\(.*?\)", "", page[: places[-1]])
    assert len(shown.split()) <= SIXTY_SECONDS


def test_the_picture_of_the_readme_is_what_its_command_prints():
    page = (ROOT / "README.md").read_text()
    (picture,) = re.findall(r"\]\((docs/images/[a-z-]+\.svg)\)", page)
    (command,) = re.findall(r"`(gemma plan [^`]*)`", page)
    first, reason = words_of((ROOT / picture).read_text()).splitlines()[1:4:2]
    assert first == f"$ {command}"
    assert reason.startswith("FIT01 block google/gemma-4-12B-it does not fit on L4: ")


def test_each_price_that_a_page_states_of_a_stack_is_its_plans(printed):
    plans, stated = {}, 0
    for path in shipped_files(ROOT):
        name = path.name.split(".")[1]
        plans[name] = plan(to_question(from_file(path, project="my-project")))
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = page.read_text()
        for wait, name in re.findall(r"(\d+ min \d+ s) for `([a-z0-9-]+)`", text):
            assert wait == duration(plans[name].running.cold_start_s), (page.name, name)
            stated += 1
        for line in text.splitlines():
            names = {*re.findall(r"`([a-z0-9-]+)`", line)} & {*plans}
            if len(names) != 1:
                continue
            found = plans[names.pop()]
            running, usd = found.running, found.cost.usd_per_hour
            kept = sum(part.usd for part in running.bill if part.basis == "month")
            known = {"hour": [usd], "day": [24 * usd], "month": [kept, running.always_on_usd_per_month]}
            for amount, unit in re.findall(r"\$([\d,]+(?:\.\d+)?) per (hour|day|month)", line):
                digits = len(amount.partition(".")[2])
                assert amount in {f"{value:,.{digits}f}" for value in known[unit]}, (page.name, line)
                stated += 1
            if row := re.search(r" per month \| (\d+) s \| (\d+)[^|]*\| ([\d.]+) h", line):
                planned = (running.cold_start_s, running.even_requests_per_day, running.even_hours_per_day)
                assert row.groups() == tuple(map("{:.{}f}".format, planned, (0, 0, 1))), line
                stated += 3
    assert stated >= 19


def test_a_plan_tells_one_wait_after_an_idle_period(printed):
    for path in shipped_files(ROOT):
        shown = printed("plan", path.name.split(".")[1], "--costs")
        cold = re.search(r"A cold start takes (.*?)(?: after the first one)? and costs", shown)
        waits = re.search(r"the first caller after an idle period waits (.*?)\.(?= |$)", shown)
        assert waits is None or cold[1] == waits[1], path.name


def test_stacks_start_cost_and_idle_as_the_readme_says(printed, capsys):
    stacks = {path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in shipped_files(ROOT)}
    assert set(re.findall(r"^\| `([a-z0-9-]+)`", STACKS_PAGE, flags=re.MULTILINE)) == stacks
    rows = ROW.findall(README)
    assert len(rows) == 5
    for name, start, per_hour, per_day, idle in rows:
        (row,) = [line for line in STACKS_PAGE.splitlines() if line.startswith(f"| `{name}` ")]
        assert f"| {start} |" in row, name
        question = to_question(from_file(settings_file(name, ROOT), project="my-project"))
        assert f"Starts in about {start}. " in headline(plan(question)), name
        main(("plan", name, "--json"))
        price = json.loads(capsys.readouterr().out)["cost"]["usd_per_hour"]
        assert (per_hour, per_day) == (f"${price:.2f}", f"${24 * price:.2f}"), name
        shown = printed("plan", name, "--costs")
        month = re.search(r"then costs? (?:only )?(\$[\d.]+ per month)", shown)
        run_h = re.search(r"one run of (\S+) h", printed("plan", name))
        found = (
            f"15 min at full price, then {month[1]}"
            if month
            else f"full price until the run expires ({run_h[1]} h)"
            if run_h
            else "full price: one instance always runs"
        )
        assert idle == found, name
