"""The README's commands are real: the demo runs, the planner's examples run, and every other command takes the options that it is shown with."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.gemma.first import FIRST_DAY

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs" / "get-started.md")
README = "\n".join(page.read_text() for page in PAGES)
BLOCKS = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
INLINE = re.findall(r"`((?:make|pulumi|python -m) [^`]+)`", README)
GEMMA = sorted(set(re.findall(r"(?:^\| `|\./)gemma ([a-z_]+)", README, flags=re.MULTILINE)))
"""Words after `gemma` in the examples."""

pytestmark = pytest.mark.engine


def lines():
    found = [line.partition("  #")[0].strip() for block in BLOCKS for line in block.splitlines()]
    return [line for line in dict.fromkeys([*found, *INLINE]) if line]


def environment():
    hidden = ("PULUMI_", "GOOGLE_", "CLOUDSDK_")
    return {key: value for key, value in os.environ.items() if not key.startswith(hidden)}


def run(arguments, limit_s=120):
    return subprocess.run(
        arguments,
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )


MODULES = sorted({match for line in lines() for match in re.findall(r"-m ([a-z_.]+)", line)})
PLANS = [line for line in lines() if line.startswith("./gemma plan")]


@pytest.mark.long
def test_the_demo_does_what_the_readme_says():
    done = run([sys.executable, "-m", "authors.demo"], limit_s=1500)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "The cloud of this demo is simulated" in done.stdout
    assert done.stdout.count("no leaked resources") >= 2
    assert "all steps succeeded" in done.stdout


def test_the_readme_has_commands_to_check():
    assert len(BLOCKS) >= 4
    assert len(PLANS) >= 2


@pytest.mark.parametrize("line", PLANS)
def test_the_planners_examples_run(line):
    done = run([sys.executable, "-m", "scripts.gemma", *shlex.split(line)[1:]])
    assert done.returncode in {0, 2}, done.stderr
    assert "KV cache" in done.stdout


@pytest.mark.parametrize("module", MODULES)
def test_every_command_exists_and_takes_the_options_that_it_is_shown_with(module):
    used = {
        option
        for line in lines()
        if f"-m {module}" in line
        for option in re.findall(r"(?<=\s)--[a-z-]+", line.partition(" -- ")[0])
    }
    helps = [run([sys.executable, "-m", module, "--help"])]
    subcommands = {"localcloud": ["run", "serve", "env"], "scripts.preview": ["run", "comment"]}.get(module, [])
    helps += [run([sys.executable, "-m", module, name, "--help"]) for name in subcommands]
    assert all(done.returncode == 0 for done in helps), [done.stderr for done in helps]
    text = "".join(done.stdout for done in helps)
    assert [option for option in sorted(used) if option not in text] == []


def test_eight_commands_are_for_a_first_day_and_each_exists():
    assert len(FIRST_DAY) == 8
    assert set(GEMMA) <= set(FIRST_DAY) | {"connect"}
    shown = run([sys.executable, "-m", "scripts.gemma", "help"]).stdout
    assert [word for word in GEMMA if not re.search(rf"^  {word} ", shown, flags=re.MULTILINE)] == []


@pytest.mark.parametrize("target", sorted({word for line in lines() for word in re.findall(r"make ([a-z]+)", line)}))
def test_every_make_target_exists(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


def test_every_file_that_the_documents_link_to_exists():
    links = [
        (document, link)
        for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        for link in re.findall(r"\]\(([^)#\[\]]+)(?:#[^)]*)?\)", document.read_text())
    ]
    missing = [
        f"{document.name}: {link}"
        for document, link in links
        if "://" not in link and not (document.parent / link).exists()
    ]
    assert missing == []


def test_every_stack_of_the_readme_has_settings_and_every_settings_file_is_in_the_page():
    named = set(re.findall(r"^\| `([a-z0-9-]+)` \| Gemma", README, flags=re.MULTILINE))
    stacks = {path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in ROOT.glob("Pulumi.*.yaml")}
    assert named
    assert named <= stacks
    page = (ROOT / "docs" / "reference" / "stacks.md").read_text()
    assert set(re.findall(r"^\| `([a-z0-9-]+)`", page, flags=re.MULTILINE)) == stacks


def test_what_the_readme_shows_is_what_the_planner_prints():
    """The page wraps lines at 80 columns, and marks lines that it leaves out by `...`."""
    (shown,) = re.findall(r"```console\n\$ gemma (plan [^\n]+)\n(.*?)```", README, flags=re.DOTALL)
    printed = " ".join(run([sys.executable, "-m", "scripts.gemma", *shown[0].split()]).stdout.split())
    parts = [" ".join(part.split()) for part in shown[1].split("\n...\n")]
    assert len(parts) == 3
    assert [part for part in parts if part not in printed] == []


def test_the_prices_of_the_readme_are_those_of_the_planner():
    page = (ROOT / "docs" / "reference" / "stacks.md").read_text()
    priced = dict(re.findall(r"^\| `([a-z0-9-]+)` .*\| (\$[\d.,]+) per hour", page, flags=re.MULTILINE))
    shown = dict(re.findall(r"^\| `([a-z0-9-]+)` \| Gemma .*\| (\$[\d.,]+) per hour", README, flags=re.MULTILINE))
    assert shown
    assert shown == {name: priced[name] for name in shown}


def test_start_run_and_idle_cost_what_the_readme_says():
    rows = re.findall(
        r"^\| `([a-z0-9-]+)` \| Gemma [^|]*\| [^|]* \| (\d+ min \d+ s) \| (\$[^|]*) \| ([^|]*) \|$",
        README,
        flags=re.MULTILINE,
    )
    assert len(rows) == 5
    for name, start, running, idle in rows:
        shown = " ".join(run([sys.executable, "-m", "scripts.gemma", "plan", name, "--costs"]).stdout.split())
        page = (ROOT / "docs" / "reference" / "stacks.md").read_text()
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` ")]
        assert f"| {start} |" in row, name
        for figure in re.findall(r"\$[\d.]+", running):
            assert figure in row, (name, figure)
        hour, month = (
            re.search(r"An idle hour costs (\$[\d.]+)\.", shown),
            re.search(r"then costs (\$[\d.]+ per month)", shown),
        )
        found = f"{hour[1]} per hour" if hour else f"15 min at that price, then {month[1]}"
        assert idle.startswith(found), name
