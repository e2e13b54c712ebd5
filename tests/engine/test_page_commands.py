"""Each `gemma` command in a code block of a user page runs on one local cloud and ends as its page says.

A new command runs by default. What this test cannot run is listed with the reason; tests/scripts/test_commands_page.py reads all of them.
"""

import re
import shlex
import shutil

import pytest

from tests.engine.conftest import ROOT, open_workspace
from tests.scripts.test_commands_page import HAND_WRITTEN, block_commands

pytestmark = [pytest.mark.engine, pytest.mark.long]

READERS_FILE = "reads a file of the reader"
OWN_MODEL = "needs the reader's checkpoint; tests/engine/test_any_model.py"
UNTIL_CTRL_C = "runs until Ctrl-C"
COMPILER = "installs and runs Google's compiler for minutes; dev/judges/tpu_compiler"
AGENTS = "needs packages of its own; dev/judges/real/tests/test_agents.py"
LOAD = "sends load for minutes; tests/scripts/bench"
NOT_RUN = {
    "gemma agent": "serves until its client leaves; tests/scripts/agent",
    "gemma connect tpu-v6e4": UNTIL_CTRL_C,
    "gemma status tpu-v6e1 --watch": UNTIL_CTRL_C,
    "gemma status tpu-v6e4 --watch": UNTIL_CTRL_C,
    "gemma logs tpu-v6e1 --follow": UNTIL_CTRL_C,
    "gemma logs tpu-v6e4 --follow": UNTIL_CTRL_C,
    "gemma bench tpu-v6e4 --preset quick --out results/quick": LOAD,
    "gemma bench tpu-v6e1 --preset grid": LOAD,
    "gemma bench l4-qat --request-rate 0.5,1,2 --duration 60 --slo ttft=1,tpot=0.05 --out results/open": LOAD,
    "gemma bench --url http://127.0.0.1:8000 --concurrency 1,8,64 --input-tokens 128,1024 --output-tokens 128 --out results/a": LOAD,
    "gemma bench report results/a": "reads the results of the line before",
    "gemma smoke --url http://127.0.0.1:8000 --model google/gemma-4-E2B-it --max-ttft-s 0.5 --min-decode-tok-per-s 40": "checks the reader's server",
    "gemma plan tpu-v6e4-31b --compile": COMPILER,
    "gemma plan --model google/gemma-4-31B-it --accelerator v6e-4 --compile all --json": COMPILER,
    "gemma connect tpu-v6e1 -- python my_program.py": READERS_FILE,
    "gemma connect tpu-v6e1 -- .venv/bin/python examples/batch.py requests.jsonl results.jsonl": READERS_FILE,
    """gemma connect tpu-v6e1 -- sh -c 'VLLM_BASE_URL="${OPENAI_BASE_URL%/v1}" exec python /path/to/server.py'""": READERS_FILE,
    "gemma init chat --from deployment.yaml": READERS_FILE,
    "gemma connect tpu-v6e1 -- adk web examples/agents": AGENTS,
    "gemma connect tpu-v6e1 --require-key -- litellm --config team/config.yaml --host 127.0.0.1 --port 4000": AGENTS,
    "gemma chat tpu-v6e1 --image photo.jpg 'Describe this picture.'": READERS_FILE,
    "gemma plan --config Llama-8B/config.json --accelerator 'RTX PRO 6000' --json": READERS_FILE,
    "gemma init sql --model my-org/gemma-4-E4B-sql --config models/sql --accelerator L4": OWN_MODEL,
    "gemma stage_model sql --from ./checkpoint": OWN_MODEL,
    "gemma up sql": OWN_MODEL,
    "gemma chat sql 'Say hello.'": OWN_MODEL,
    "gemma smoke sql": OWN_MODEL,
    "gemma stage_model big --from gs://vertex-model-garden-public-us/gemma4/gemma-4-31B-it": (
        "reads a bucket of Google; tests/cloud/test_staging_from_bucket.py"
    ),
}
CODES = {
    "plan": {0, 2},  # 2: a finding blocks
    "doctor": {0, 1},  # 1: a hub or registry that this machine does not reach
    "alerts": {0, 1},  # 1: an alert fires, or it is unknown
    "smoke": {0, 1},  # 1: a busy machine misses a threshold
}
CODES_OF = {
    "gemma teardown --all --over-limit --dry-run": {0, 1},  # 1: a stack exceeds a limit
    "gemma teardown tpu-v6e1 --dry-run": {1},  # it counts the resources that exist
    "gemma teardown --all --dry-run": {1},  # the same
    "gemma stage_model l4-qat --remove gemma-4-12B-it-5f2c09d1a3b4e677": {2},  # a folder of another checkpoint
}
ASK = {"up", "teardown", "restart"}
"""Commands that ask a question."""
ORDER = ("stage_model", "up", "", "save_token", "teardown --all", "teardown")
"""Beginnings of the commands, in the order in which they run. The empty one stands for all others."""


def place(command):
    words = command.removeprefix("gemma ")
    return max(at for at, start in enumerate(ORDER) if words.startswith(start))


def commands():
    """The commands of the user pages, with a stack for each placeholder, in an order in which they can run."""
    # The commands of folder.md run in tests/authors/release/test_project_folder.py.
    pages = [page for page in HAND_WRITTEN if "dev" not in page.relative_to(ROOT).parts and page.name != "folder.md"]
    lines = [
        "gemma stage_model l4-qat",
        "gemma up tpu-v6e4",
        "gemma up l4-qat",
        *(line for page in pages for line in block_commands(page)),
    ]
    typed = dict.fromkeys(re.sub(r"\b(?:NAME|STACK)\b", "tpu-v6e1", line) for line in lines)
    return sorted(typed, key=lambda line: (place(line), "--dry-run" not in line))


def test_the_commands_of_the_user_pages_run(tmp_path, subtests):
    found = commands()
    not_run = {line for line in found if line in NOT_RUN or "lm_eval" in line or re.search(r"\b(?:M|REVISION)\b", line)}
    assert set(NOT_RUN) <= not_run, "a page no longer has a listed command"
    run = [line for line in found if line not in not_run]
    assert len(run) > 45
    with open_workspace(tmp_path, "--speed", "200") as workspace:
        for stack in ("tpu-v6e1", "tpu-v6e4"):
            workspace.configure(stack, **{"tpu.maxRunDuration": "7d"})  # longer than this test on a busy machine
        shutil.copy(workspace.settings("l4-qat"), workspace.settings("l4-eu"))  # as docs/tasks.md
        workspace.configure("l4-eu", **{"cloudRun.region": "europe-west4"})
        for line in run:
            words = shlex.split(line)[1:]
            yes = ["--yes"] if words[0] in ASK and not {"--yes", "--dry-run"} & set(words) else []
            with subtests.test(line):
                token = "hf_pagesPagesPAGES0123456789\n"
                done = workspace.script("gemma", *words, *yes, stdin=token, expect=None)
                assert done.code in CODES_OF.get(line, CODES.get(words[0], {0})), f"{done.code}\n{done.text[-2000:]}"
                assert "See --help." not in done.text
