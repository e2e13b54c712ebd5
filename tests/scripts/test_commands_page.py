"""docs/reference/commands.md names every command with every option that its --help has."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.cli.options import option_fields
from gemma_serving.scripts.gemma.__main__ import main
from gemma_serving.scripts.gemma.arguments import call_of, with_stack
from gemma_serving.scripts.gemma.catalog import ENTRIES
from tests.scripts.gemma.test_gemma import LEADS
from tests.scripts.test_printed_commands import refusal_of, typed_form

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "commands.md").read_text()
SCREEN_LINES = 60


def faults_of(text):
    """What a help text lacks: an example that is accepted, and exit codes on the page only."""
    examples = re.findall(r"^ {2}(gemma .*)$", re.sub(r" *\\\n +", " ", text), re.MULTILINE)
    no_example = "no example: write one with two spaces in front, and below it a sentence without"
    yield from [no_example] * (not examples)
    yield from (said for line in examples if (said := refusal_of(typed_form(line))))
    *others, last = text.strip().splitlines()
    if last != "Exit codes: docs/reference/commands.md" or re.search(r"(?i)exit(s|ed)? (code|with)", " ".join(others)):
        yield "exit codes"


@pytest.mark.parametrize("lead", LEADS, ids=" ".join)
def test_each_help_has_an_example_and_leaves_exit_codes_to_the_page(lead, capsys):
    with pytest.raises(SystemExit):
        main([*lead, "--help"])
    said = capsys.readouterr().out
    assert list(faults_of(said)) == []
    assert len(said.splitlines()) <= SCREEN_LINES
    with pytest.raises(SystemExit):
        main([*lead, "--help", "--all"])
    options = option_fields(call_of(ENTRIES[lead[0]], lead[1:]).command.options).values()
    hidden = {option.flag for option in options if option.option.hidden}
    flags = {option.flag for option in options if not option.option.positional}
    shown = {*re.findall(r"--[a-z-]+", capsys.readouterr().out)}
    assert flags & shown == flags - hidden
    assert all(f"`{flag} " in PAGE for flag in hidden)


def test_two_options_of_authors_keep_their_names_without_a_line_of_help():
    kinds = [call_of(ENTRIES[lead[0]], lead[1:]).command.options for lead in LEADS]
    hidden = {one.flag for kind in kinds for one in option_fields(kind).values() if one.option.hidden}
    assert hidden == {"--device", "--draft-config"}


NO_JSON = {("agent",), ("agent", "code"), ("preview", "plans")}
"""A server, a code for a person's eyes, and a file for programs."""


@pytest.mark.parametrize("lead", sorted({*LEADS} - NO_JSON - {("preview",)}), ids=" ".join)
def test_each_command_prints_an_error_as_one_json_object(lead, capsys):
    """With an unknown option, so nothing else runs."""
    assert main([*lead, "--json", "--nonsense"]) == ExitCode.REFUSED
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert said == {"error": said["error"], "exit_code": 2}
    assert err.endswith(f": {said['error']}\n")
    flags = {option.flag for option in option_fields(call_of(ENTRIES[lead[0]], lead[1:]).command.options).values()}
    assert "--json" in flags


GOOD = "usage: gemma x\n\n  gemma status tpu-v6e1\n\nExit codes: docs/reference/commands.md\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  gemma status tpu-v6e1\n", ""),
        ("tpu-v6e1", "tpu-v6e1 --stcak"),
        ("Exit codes: docs/reference/commands.md", ""),
        ("tpu-v6e1\n", "tpu-v6e1\n\nExit code\n1: it failed.\n"),
        ("tpu-v6e1\n", "tpu-v6e1\n\n  --gate  Exit with 0.\n"),
    ],
)
def test_a_planted_fault_of_a_help_is_seen(old, new):
    assert list(faults_of(GOOD)) == []
    assert len(list(faults_of(GOOD.replace(old, new)))) == 1


GENERATED = {"accuracy.md", "assumptions.md", "checkpoints.md", "commands.md", "rules.md", "settings.md", "stacks.md"}
HAND_WRITTEN = [
    page
    for page in [
        ROOT / "README.md",
        ROOT / "SECURITY.md",
        *sorted(ROOT.glob("docs/**/*.md")),
        *sorted(ROOT.glob("dev/docs/**/*.md")),
    ]
    if page.name not in GENERATED
]
GEMMA = re.compile(r"(?:\./|\.venv/bin/)?gemma")
ENDS = {"|", "||", "&", "&&", ";", "(", ")"}
"""Words of a shell that end a command."""


def block_lines(page):
    """Yield the command lines in a page's blocks, continued lines as one."""
    fences = re.split(r"^ *```", page.read_text(), flags=re.MULTILINE)
    for language, _, block in (fence.partition("\n") for fence in fences[1::2]):
        if language in {"", "sh", "bash", "console"}:
            yield from (line.strip().removeprefix("$ ") for line in block.replace("\\\n", " ").splitlines())


def gemma_in(line):
    """Yield the commands of `gemma` in a command line: alone, in a pipe, after `&&` or variables, behind `--`, in `$(...)`."""
    for inner in re.findall(r"\$\(([^)]*)\)", line):
        yield from gemma_in(inner)
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    command = []
    for word in [*words, ";"]:
        if word not in ENDS:
            command.append(word)
            continue
        while command and re.match(r"[A-Z_]+=", command[0]):
            command.pop(0)
        starts = [at for at, one in enumerate(command) if GEMMA.fullmatch(one) and (at == 0 or command[at - 1] == "--")]
        yield from (shlex.join(["gemma", *command[at + 1 :]]) for at in starts)
        command = []


def block_commands(page):
    """The commands of `gemma` in the blocks of a page. Output below a prompt is not read as one: it has quotes that nothing ends."""
    found = {}
    for line in block_lines(page):
        if re.search(r"\bgemma ", line):
            found |= dict.fromkeys(gemma_in(line))
    return found


def inline_commands(page):
    """The commands of `gemma` in the prose of a page that have arguments."""
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return {f"gemma {found}": None for found in re.findall(r"`(?:\./|\.venv/bin/)?gemma (\w+ [^`\n]*)`", prose)}


CHANGING = [name for name, entry in ENTRIES.items() if entry.whole().changes]


def answer_to(line):
    """What the launcher, the options of a command and the keys of `--set` say against a command; empty if they accept it."""
    words = line.split()
    said = "no stack named" if len(words) == 2 and words[1] in CHANGING else refusal_of(line)
    keys = re.findall(r"--set[ =]'?(\S+?)'?(?= |$)", line)
    if said or not keys:
        return said
    own = shlex.split(re.sub(r"\b(?:NAME|STACK)\b", "tpu-v6e1", line))[2:]
    given = with_stack(call_of(ENTRIES["plan"], own))
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
        code = run_command(ENTRIES["plan"].whole(), given)
    return "" if code == ExitCode.DONE else printed.getvalue()  # with --gke, findings are on stderr


GCLOUD = "not run: lines of gcloud or pulumi for one setting, whose form their own documentation has"
OTHER_LINES = {
    "README.md": "tests/engine/test_readme.py",
    "agent.md": "tests/scripts/agent/test_clients.py",
    "agents.md": "tests/scripts/connect/test_clients_page.py",
    "ci.md": "tests/tools/test_federation.py",
    "clients.md": "tests/scripts/connect/test_clients_page.py",
    "cloud-run.md": "tests/engine/test_restart.py",
    "components.md": "not run: jq over the output of a command of the same block",
    "evaluate.md": "not run: installs lm-evaluation-harness with PyTorch, 6 GB",
    "folder.md": "tests/authors/release/test_project_folder.py",
    "get-started.md": "tests/engine/test_user_install.py",
    "grow.md": "not run: lines of gcloud and kubectl for a cluster, which the local cloud does not simulate",
    "local-cloud.md": "not run: a shell with variables of a running local cloud; tests start it through its modules",
    "observability.md": "tests/cloud/test_alerts.py",
    "one-evening.md": "tests/engine/test_one_evening.py",
    "package.md": "tests/engine/test_package_programs.py",
    "recovery.md": "tests/test_recovery_page.py",
    "secrets.md": GCLOUD,
    "tasks.md": "tests/scripts/connect/test_clients_page.py",
    "teardown.md": "tests/cloud/test_teardown_page.py",
    "tpu-advanced.md": GCLOUD,
    "tpu.md": GCLOUD,
    "upgrade-vllm.md": "tests/agreement/test_registries.py",
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
    found = {
        page.name for page in HAND_WRITTEN if "dev" not in page.relative_to(ROOT).parts and list(other_lines(page))
    }
    assert found == set(OTHER_LINES)
    for name, by in OTHER_LINES.items():
        assert by.startswith("not run: ") or name in (ROOT / by).read_text(), name


def test_every_command_of_the_pages_is_accepted():
    found = {(page.name, line) for page in HAND_WRITTEN for line in (*block_commands(page), *inline_commands(page))}
    assert len(found) > 150
    assert len(block_commands(ROOT / "docs" / "tasks.md")) > 12
    assert {(page, line): said for page, line in found if (said := answer_to(line))} == {}


PLANTED = (
    "gemma plan NAME --set acceleratorType=v5e-4 --costs",
    "gemma status --stcak x",
    "gemma stage_model",
    "gemma deplyo NAME",
    "cd x && gemma smok NAME",
    "echo hf_x | gemma save_token NAME hftoken",
    "python -m localcloud run -- gemma plan NAME NAME",
    'eval "$(gemma completion tcsh)"',
)


@pytest.mark.parametrize("line", PLANTED)
def test_a_planted_wrong_command_of_a_page_is_refused(tmp_path, line):
    page = tmp_path / "page.md"
    page.write_text(f"1. Do it:\n\n   ```sh\n   gemma up NAME   # right\n   {line}\n   ```\n")
    _, wrong = block_commands(page)
    assert answer_to(wrong)


def test_a_login_names_a_node_and_not_its_request():
    """The node of the queued resource `gemma-NAME` is `gemma-NAME-node`."""
    found = [name for page in HAND_WRITTEN for name in re.findall(r"tpu-vm ssh (\S+)", page.read_text())]
    assert len(found) > 1
    assert [name for name in found if name != "NODE" and not name.endswith("-node")] == []
