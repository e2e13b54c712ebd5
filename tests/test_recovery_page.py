"""Each row of docs/recovery.md quotes a message that some code has, and names commands that exist with their options.

The tests of each room produce the messages. Those of the engine and of Google are asserted by a test, because no code of this project has them.
"""

import ast
import os
import re
import shlex
import socket
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from gcp_tpu_provider import capacity
from gcp_tpu_provider.forms import Form
from gemma_serving.cloud.spending import StackSpending
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.labels import StackLimits
from gemma_serving.engine import locks
from localcloud import cli
from tests.cloud.populated import owner
from tests.records import replace
from tests.scripts.test_printed_commands import refusal_of
from tests.tracked import tracked

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "recovery.md"
CODE = re.compile(r"`([^`]+)`")
CELL = re.compile(r"(?<!\\)\|")
ROOMS = (
    "components",
    "gemma_serving",
    "scripts",
    "stacks",
    "packages/gcp-tpu/gcp_tpu_provider",
    "packages/localcloud",
)
OF_OTHERS = {
    "Attempting to deploy or update resources with ... pending operations": "engine/test_recovery_words.py",
    "Failed to impersonate": "agreement/test_federated_tunnel.py",
    "^C received; terminating": "engine/test_recovery_words.py",
    "before it opened: ... gcloud crashed (AttributeError)": "scripts/smoke/test_reach.py",
    "deleted:serviceAccount:": "cloud/test_inventory.py",
    "exited prematurely": "engine/test_recovery_words.py",
    "failed to load checkpoint: EOF": "engine/test_coming_back.py",
    "incorrect passphrase": "engine/test_recovery_words.py",
    "is already being used by": "cloud/test_deletion.py",
    "the stack is currently locked by ... lock(s)": "engine/test_recovery_words.py",
}
"""Messages of the engine, of gcloud and of Google, and the tests that assert them."""
PULUMI = {
    ("up",): {"--stack", "--refresh"},
    ("destroy",): {"--stack"},
    ("cancel",): {"--yes", "--stack"},
    ("login",): set(),
    ("config", "refresh"): {"--stack", "--force"},
    ("whoami",): {"--verbose"},
    ("stack", "init"): set(),
    ("stack", "output"): {"--stack"},
    ("stack", "rename"): {"--stack"},
    ("stack", "rm"): {"--preserve-config", "--yes"},
}
"""The commands of Pulumi that the page names, with the options that it uses; `test_pulumi_knows...` asks the CLI."""


def refused(holders):
    with pytest.raises(CommandRefusedError) as raised:
        locks.require_dead("dev", holders)
    return str(raised.value)


def composed():
    """Return texts that no literal has whole: of locks, of limits, and of zones that have no capacity."""
    now = datetime.now(UTC).isoformat()
    live = locks.StackLock(place="", user="me", host=socket.gethostname(), pid=os.getpid(), since=now)
    yield from map(refused, ([live], [replace(live, host="another-machine")], ()))
    for limits in (StackLimits(max_age_s=60), StackLimits(max_usd=1), StackLimits(idle_after_s=600)):
        yield StackSpending(owner=owner("x"), limits=limits, age_s=90, usd=2, usd_per_hour=1, idle_s=700).sentence()
    answers = [
        capacity.Refused(
            "us-east5-a",
            "WAITING_FOR_RESOURCES for 30m: the wait for this zone timed out.",
            "flex-start",
        ),
        capacity.Refused("us-east5-a", "Google returned 403: not here.", "flex-start"),
        capacity.Refused(
            "us-east5-b", "Quota limit 'TPUV6E' has been exceeded. Limit: 0 in zone us-east5-b.", "flex-start"
        ),
    ]
    inputs = {"provisioningModel": "flex-start", "acceleratorType": "v6e-4"}
    forms = (Form("flex-start", None, ("us-east5-a", "us-east5-b")),)
    yield capacity._table(SimpleNamespace(project="p", inputs=inputs, forms=forms, next_steps=()), answers)


def rows():
    """Return the cells of each row of the page's tables."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [
        [cell.strip() for cell in CELL.split(line)[1:-1]]
        for line in lines
        if not line.startswith(("| message", "| ---"))
    ]


MESSAGES = [CODE.fullmatch(row[0])[1] for row in rows()]


def pattern(message):
    return re.compile(".*".join(re.escape(part) for part in message.split("...")), re.DOTALL)


def literals(path):
    """Yield the texts of a module, without its docstrings; a value that is put in is a hole."""
    tree = ast.parse(path.read_text())
    described = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
            yield node.value


@cache
def texts():
    """Return the texts of the code, those of a module one after the other, because some messages are put together."""
    paths = [path for path in tracked(*ROOMS) if "tests" not in path.parts]
    return [*composed(), *("\n".join(literals(path)) for path in paths)]


def commands():
    """Yield every command of the page: those of its blocks, and those in backticks."""
    text = PAGE.read_text()
    for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL):
        yield from (line.partition("#")[0].strip() for line in block.splitlines())
    for code in CODE.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if re.match(r"(python|pulumi|gcloud|make) [\w-]", code) and code != "pulumi up":
            yield code


@pytest.mark.parametrize("message", MESSAGES)
def test_the_message_is_one_of_the_code_or_is_asserted_by_a_test(message):
    of_test = OF_OTHERS.get(message)
    found = [(ROOT / "tests" / of_test).read_text().replace("\\", "")] if of_test else texts()
    assert any(pattern(message).search(text) for text in found)


def test_each_message_is_on_the_page_once_and_its_row_says_what_to_do():
    assert len(MESSAGES) == len(set(MESSAGES)) > 35
    assert OF_OTHERS.keys() <= set(MESSAGES)
    for message, meaning, remedy in rows():
        assert meaning.endswith((".", "it.")), message
        assert CODE.search(remedy) or remedy.startswith(("Wait", "The same")), message


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_every_command_exists_with_its_options(command):
    words = shlex.split(command)
    if words[:3] == ["python", "-m", "localcloud"]:
        cli._parser().parse_args(cli._split(words[3:])[0])
    elif words[0] == "gemma":
        assert refusal_of(command) == ""
    elif words[0] == "make":
        assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text()
    else:
        assert words[0] == "pulumi"
        options = {word for word in words if word.startswith("--")}
        known = PULUMI[tuple(words[1:3])] if words[1] in {"config", "stack"} else PULUMI[(words[1],)]
        assert options <= known
        assert all(following == "NAME" for word, following in pairwise(words) if word == "--stack")


@pytest.mark.engine
def test_pulumi_knows_the_commands_and_the_options():
    for words, options in PULUMI.items():
        done = subprocess.run(
            [Path(sys.executable).with_name("pulumi"), *words, "--help"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "true"},
        )
        assert re.search(r"Usage:\n  pulumi" + r" [a-z]+" * len(words), done.stdout), "the help of another command"
        assert [option for option in sorted(options) if not re.search(rf"{option}\b", done.stdout)] == []
