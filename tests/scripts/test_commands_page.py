"""docs/reference/commands.md names every command with every option that its --help has."""

import re
from pathlib import Path

from scripts.gemma.catalog import ENTRIES
from scripts.gemma.first import FIRST_DAY
from tests.scripts.test_printed_commands import refusal_of
from tests.test_pages import GENERATED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "commands.md").read_text()


def section(title):
    found = re.search(rf"^##+ {re.escape(title)}\n(.*?)(?=^##|\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def title_of(entry):
    command = entry.whole()
    return f"{command.program} {entry.subcommand}".removeprefix("python -m ").strip()


def test_every_command_of_the_launcher_is_in_the_page():
    assert set(FIRST_DAY) <= set(ENTRIES)
    assert [name for name in sorted(ENTRIES) if not section(title_of(ENTRIES[name]))] == []


HAND_WRITTEN = [
    page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if page.name not in GENERATED
]
LINE = re.compile(r"(?:\$ )?(?:\./|\.venv/bin/)?gemma (\w+) (.*)")


def shown_lines(page):
    """Yield the command lines of a page, in blocks and in prose, that have arguments."""
    text = page.read_text()
    blocks = re.findall(r"```(?:sh|console)?\n(.*?)```", text, flags=re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    yield from dict.fromkeys(line for line in lines if LINE.fullmatch(line))


def answer_to(line):
    """What the launcher and the options of a command say against a command line of a page; empty if they accept it."""
    name, words = LINE.fullmatch(line).groups()
    return refusal_of(f"gemma {name} {words}")


GCLOUD = "not run: lines of gcloud or pulumi for one setting, whose form their own documentation has"
OTHER_LINES = {
    "README.md": "tests/engine/test_readme.py",
    "agent.md": "tests/scripts/agent/test_clients.py",
    "ci.md": "tests/tools/test_federation.py",
    "clients.md": "tests/scripts/connect/test_clients_page.py",
    "cloud-run.md": "tests/engine/test_restart.py",
    "components.md": "not run: jq over the output of a command of the same block",
    "evaluate.md": "not run: installs lm-evaluation-harness with PyTorch, 6 GB",
    "gateway.md": "tests/stacks/test_gateway.py",
    "get-started.md": "tests/engine/test_user_install.py",
    "installation-configuration.md": "tests/agreement/registry_pages.py",
    "local-cloud.md": "not run: a shell with variables of a running local cloud; tests start it through its modules",
    "observability.md": "tests/cloud/test_alerts.py",
    "one-evening.md": "not run: needs a real project and ten dollars",
    "recovery.md": "tests/test_recovery_page.py",
    "rollout.md": GCLOUD,
    "secrets.md": GCLOUD,
    "tasks.md": GCLOUD,
    "teardown.md": "tests/cloud/test_teardown_page.py",
    "tpu-advanced.md": GCLOUD,
    "tpu.md": GCLOUD,
}
"""The file of tests that reads each page with other lines than those of `gemma`, or why no test runs them."""


def other_lines(page):
    """Yield the lines of a page's blocks of commands that are none of `gemma`, without comments and the rest of a line before."""
    for lead, block in re.findall(r"^ *```(sh|console)\n(.*?)^ *```", page.read_text(), flags=re.DOTALL | re.MULTILINE):
        for line in map(str.strip, block.replace("\\\n", " ").splitlines()):
            typed = line.removeprefix("$ ") if lead == "sh" or line.startswith("$ ") else ""
            if typed and not typed.startswith("#") and not re.match(r"(?:\./|\.venv/bin/)?gemma\b", typed):
                yield typed


def test_every_other_command_line_of_a_user_page_is_read_by_a_test_or_listed_with_a_reason():
    found = {page.name for page in HAND_WRITTEN if page.parent.name != "authors" and list(other_lines(page))}
    assert found == set(OTHER_LINES)
    for name, by in OTHER_LINES.items():
        assert by.startswith("not run: ") or name in (ROOT / by).read_text(), name


def test_every_command_line_of_the_pages_is_accepted_and_one_with_a_mistake_is_not():
    lines = [(page.name, line) for page in HAND_WRITTEN for line in shown_lines(page)]
    assert len(lines) > 60
    assert len(list(shown_lines(ROOT / "docs" / "tasks.md"))) > 6
    assert {(page, line): said for page, line in lines if (said := answer_to(line))} == {}
    assert answer_to("gemma status --stcak x")
