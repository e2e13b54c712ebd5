"""The process that deletes a service: at the limit, when the server ends in any way, and never what a user deployed."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.memory import Memory
from gemma_serving.contracts.proof import Proof
from gemma_serving.engine import runner
from gemma_serving.engine.backend import memory
from gemma_serving.scripts.agent import keeper
from gemma_serving.scripts.agent.keeper import LOG, Keepers
from gemma_serving.scripts.agent.limits import prove, read_record
from gemma_serving.scripts.stack.limit_record import LIMIT, limit_name
from gemma_serving.scripts.stack.unfinished_teardown import forget
from tests.laws import examples
from tests.polling import LIMIT_S, until

ROOT = Path(__file__).parents[3]
STACK = "l4-qat"
HOURS = 2.0
PLAN, PROJECT = "plan-0123456789abcdef", "my-project"
SERVER = f"""
import time
from gemma_serving.scripts.agent.keeper import Keepers
Keepers().keep("{STACK}", {HOURS}, plan_id="{PLAN}", project="{PROJECT}")
print("kept", flush=True)
time.sleep(600)
"""
TEARDOWN = """
import sys
from pathlib import Path
if sys.argv[-1] == "--help":
    sys.exit(Path("no-teardown").exists())
with Path("calls").open("a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
sys.exit(Path("fails").exists())
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a state in a local backend, and the product, of which `teardown` only writes down its options."""
    (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\nruntime: python\n")
    product = tmp_path / "product" / "gemma_serving"
    (product / "scripts" / "teardown").mkdir(parents=True)
    for made, shipped in ((product, ROOT / "gemma_serving"), (product / "scripts", ROOT / "scripts")):
        for path in shipped.iterdir():
            if not (made / path.name).exists():
                (made / path.name).symlink_to(path)
    (product / "scripts" / "teardown" / "__init__.py").touch()
    (product / "scripts" / "teardown" / "__main__.py").write_text(TEARDOWN)
    for name in ("scripts", "components", "stacks"):  # the user's own
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('a module of the user')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(product.parent))
    monkeypatch.setattr(runner, "project_folder", lambda: tmp_path)
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path}")
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "of this test")
    return tmp_path


def deployed(project):
    """Write a state with a service, and a history with the update of the plan."""
    urn = f"urn:pulumi:{STACK}::gemma-serving::gcp:cloudrunv2/service:Service::server"
    server = {"urn": urn, "custom": True, "type": urn.split("::")[2], "inputs": {"project": PROJECT}}
    manifest = {"time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "version": "v3.256.0"}
    latest = {"manifest": manifest, "secrets_providers": {"type": ""}, "metadata": {}, "resources": [server]}
    checkpoint = {"stack": f"organization/gemma-serving/{STACK}", "latest": latest}
    moment = int(time.time())
    row = {"kind": "update", "message": PLAN, "startTime": moment, "endTime": moment, "result": "succeeded"}
    for name, document in (
        (f"stacks/gemma-serving/{STACK}", {"version": 3, "checkpoint": checkpoint}),
        (f"history/gemma-serving/{STACK}/{STACK}-{moment}000000000.history", {"config": {}, **row}),
    ):
        path = project / ".pulumi" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document))


def keep(keepers, hours=HOURS, plan=PLAN):
    keepers.keep(STACK, hours, plan_id=plan, project=PROJECT)


def record():
    return memory().path(limit_name(STACK))


def calls(project):
    path = project / "calls"
    return path.read_text().splitlines() if path.exists() else []


ANSWER = st.sampled_from(["proved", "proved", "not an assistant's", "unproven", "unknown"])


@contextmanager
def proving(folder, answers):
    """Give a stack a record, and each look for its proof the next of these answers."""
    records, left = Memory(folder / "private"), iter(answers)
    records.write(limit_name(STACK), "")

    def proved(_stack):
        match next(left):
            case "unproven":
                raise CommandRefusedError("It proves nothing.")
            case "unknown":
                raise ScriptError("Pulumi is not logged in.")
            case answer:
                return Proof(claim="c", source="s", owners={}) if answer == "proved" else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeper, "memory", lambda: records)
        patch.setattr(keeper, "prove", proved)
        yield patch, records.path(limit_name(STACK))


@effort(max_examples=examples(test=60, part=300, night=2000))
@given(st.lists(st.tuples(ANSWER, st.booleans()), min_size=1, max_size=4), st.booleans(), st.booleans())
def test_a_stack_is_deleted_only_with_a_proof_and_until_that_succeeds(
    tmp_path_factory, attempts, can_start, has_record
):
    """Each attempt: what the proof says, and whether the deletion works. A user's `up` or `teardown` removes the record."""
    works, ran, wanted = [is_working for answer, is_working in attempts if answer == "proved"], [], []
    pauses = []
    is_done = can_start and not has_record
    for answer, is_working in attempts if can_start and has_record else ():
        wanted += ["deletion"] if answer == "proved" else []
        is_done = answer == "not an assistant's" or (answer == "proved" and is_working)
        if is_done or answer == "unproven":
            break

    def run(words):
        if words[-1] == "--help":
            return int(not can_start)
        assert words[-3:] == [f"--stack={STACK}", "--yes", "--keep-bucket"]
        ran.append("deletion")
        if works[len(ran) - 1] and len(ran) > 1:
            path.unlink()  # as `gemma teardown` does
        return int(not works[len(ran) - 1])

    with proving(tmp_path_factory.mktemp("k"), [answer for answer, _ in attempts]) as (patch, path):
        patch.setattr(keeper, "_run", run)
        patch.setattr(keeper, "ATTEMPTS", len(attempts))
        patch.setattr(keeper, "select", SimpleNamespace(select=lambda *_: pytest.fail("It waits after its limit.")))
        if not has_record:
            path.unlink()
        assert (keeper.main(STACK, 0.0, sleep=pauses.append), ran) == (is_done, wanted)
        assert path.exists() is (has_record and not is_done)
        assert {*pauses} <= {60.0}


@effort(max_examples=examples(test=40, part=100, night=500))
@given(st.lists(st.sampled_from(["nothing", "a byte", "the end"]), max_size=5), st.integers(0, 6))
def test_a_limit_ends_at_its_moment_or_with_the_server_and_not_before(tmp_path_factory, looks, until_s):
    """One look a second at the input, which ends with the server."""
    seen = []

    def look(inputs, _outputs, _errors, limit_s):
        assert (inputs, limit_s) == ([0], 1.0)
        seen.append(looks[len(seen)] if len(seen) < len(looks) else "nothing")
        return [inputs if seen[-1] != "nothing" else [], [], []]

    def read(file, count):
        assert (file, count) == (0, 1)
        return b"" if seen[-1] == "the end" else b"x"

    with proving(tmp_path_factory.mktemp("k"), ["proved"]) as (patch, path):
        patch.setattr(keeper, "_run", lambda _: 0)
        patch.setattr(keeper, "select", SimpleNamespace(select=look))
        patch.setattr(keeper, "os", SimpleNamespace(read=read))
        assert keeper.main(STACK, float(until_s), now_s=lambda: float(len(seen)), sleep=pytest.fail)
        assert not path.exists()
    ends = looks.index("the end") + 1 if "the end" in looks else until_s
    assert len(seen) == min(ends, until_s)


def test_a_deletion_that_fails_has_its_exit_code():
    assert keeper._run([sys.executable, "-c", "raise SystemExit(3)"]) == 3


@effort(max_examples=examples(test=40, part=100, night=500))
@given(ANSWER, st.booleans(), st.booleans())
def test_a_new_server_starts_the_process_of_a_record_unless_it_runs_or_the_stack_is_not_an_assistants(
    tmp_path_factory, answer, is_locked, is_started
):
    started, said = [], []
    begins = not is_locked and answer in {"proved", "unknown"}
    ended = "deleting stack l4-qat: " if is_started else "The process that deletes stack l4-qat at its limit did not "
    lines = {"unproven": ["It proves nothing."], "unknown": ["Pulumi is not logged in."]}.get(answer, [])
    with proving(tmp_path_factory.mktemp("k"), [answer]) as (patch, path):
        patch.setattr(keeper, "_is_locked", lambda _lock: not is_locked)
        patch.setattr(keeper, "print_progress", lambda _command, text: said.append(text))
        patch.setattr(Keepers, "_start", lambda _self, *given: started.append(given[:2]) or is_started)
        Keepers().resume()
        assert path.exists() is (is_locked or answer != "not an assistant's")
    assert started == ([(STACK, 0.0)] if begins else [])
    assert said[: len(lines)] == ([] if is_locked else lines)
    assert [text.startswith(ended) for text in said[len(lines) :]] == [True] * begins


DELETED = [f"--stack={STACK} --yes --keep-bucket"]


def test_a_server_that_is_killed_leaves_a_process_that_deletes_the_stack(project):
    """Also if the client kills the process group of its server."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], cwd=project, stdout=subprocess.PIPE, process_group=0)
    assert server.stdout.readline() == b"kept\n"
    deployed(project)
    assert calls(project) == []
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    until(lambda: not record().exists(), "the end of the limit")
    assert calls(project) == DELETED


def test_a_change_of_the_stack_does_not_extend_the_limit_and_a_users_deployment_ends_it(project):
    keepers, change = Keepers(), "plan-fedcba9876543210"
    keep(keepers)
    process = keepers._started[STACK]
    assert os.getsid(process.pid) == process.pid, "Ctrl-C does not reach it"
    keep(keepers, 2 * HOURS, change)
    assert (keepers._started[STACK], read_record(STACK).plans) == (process, (PLAN, change))
    with pytest.raises(
        CommandRefusedError, match=f"Another assistant in this folder enforces a limit of stack {STACK}"
    ):
        keep(Keepers())
    assert keepers.has(STACK)
    forget(STACK)  # as `gemma up` and `gemma teardown` do
    assert process.wait(LIMIT_S) == 0
    assert not keepers.has(STACK)
    assert calls(project) == []


def test_nothing_is_deployed_without_a_process_that_can_delete(project):
    (project / "no-teardown").touch()
    with pytest.raises(CommandRefusedError, match="did not start, so nothing was deployed"):
        keep(Keepers())
    (project / "no-teardown").unlink()
    folder = memory().folder
    folder.chmod(0o777)
    with pytest.raises(CommandRefusedError, match=f"^Cannot open {folder}: It is not a folder that only this user"):
        keep(Keepers())
    assert calls(project) == []


def test_the_next_server_deletes_what_a_killed_process_left(project):
    first = Keepers()
    keep(first)
    deployed(project)
    first._started[STACK].kill()
    first._started[STACK].wait()
    assert not first.has(STACK)
    (project / "fails").touch()
    second = Keepers()
    second.resume()
    until(lambda: calls(project) == DELETED, "an attempt")
    assert record().exists()
    second._started[STACK].kill()
    second._started[STACK].wait()


def test_a_record_that_others_can_have_written_proves_nothing_and_the_command_is_named(project, capfd):
    path = record()
    memory().write(limit_name(STACK), "{}")
    deployed(project)
    with pytest.raises(CommandRefusedError, match=f"`gemma teardown {STACK} --keep-bucket`"):
        prove(STACK)
    Keepers().resume()
    assert f"{path} does not prove that an assistant deployed stack {STACK}" in capfd.readouterr().err
    assert (calls(project), path.exists()) == ([], True)


def test_a_file_name_is_no_stack_and_the_log_is_never_a_link(project, capfd, monkeypatch):
    monkeypatch.setattr(keeper, "prove", lambda _stack: Proof(claim="c", source="s", owners={}))
    memory().write(limit_name(STACK), "{}")
    memory().write(f"{LIMIT}a\nid>PWNED;true\n#", "")
    memory().path(LOG).symlink_to(project / "bashrc")
    Keepers().resume()
    said = capfd.readouterr().err
    assert "becomes part of resource names" in said
    assert f"Cannot open {memory().path(LOG)}" in said
    assert not (project / "bashrc").exists()
    assert calls(project) == []
