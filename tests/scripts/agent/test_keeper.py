"""The process that deletes a service: at the limit, when the server ends in any way, and never what a user deployed."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.engine import runner
from gemma_serving.engine.backend import memory
from gemma_serving.engine.runner import PulumiFailedError
from gemma_serving.scripts.agent import keeper, limits
from gemma_serving.scripts.agent.keeper import LOG, Keepers
from gemma_serving.scripts.agent.limits import prove
from gemma_serving.scripts.stack.limit_record import LIMIT, limit_name
from gemma_serving.scripts.stack.unfinished_teardown import forget
from tests.polling import LIMIT_S, until

ROOT = Path(__file__).parents[3]
STACK = "l4-qat"
HOURS = 2.0
ENGINE = runner.query
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
fails = Path("fails")
if fails.exists():
    if fails.read_text() == "once":
        fails.unlink()
    sys.exit(1)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a state in a local backend, and the product, of which `teardown` only writes down its options."""
    (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\nruntime: python\n")
    product = tmp_path / "product" / "gemma_serving"
    (product / "scripts" / "teardown").mkdir(parents=True)
    for made, given in ((product, ROOT / "gemma_serving"), (product / "scripts", ROOT / "scripts")):
        for path in given.iterdir():
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
    monkeypatch.setattr(runner, "query", partial(answer_in, tmp_path))
    return tmp_path


def answer_in(project, words, **_):
    """Answer as `pulumi stack export` and `pulumi stack history --json`, of which each takes the time of two fixed loops. The processes ask the engine."""
    state = project / ".pulumi" / "stacks" / "gemma-serving" / f"{STACK}.json"
    assert words[-1] == STACK
    if not state.exists():
        raise CommandRefusedError(runner.no_such_stack(STACK))
    if words[1] == "export":
        return json.dumps({"version": 3, "deployment": json.loads(state.read_text())["checkpoint"]["latest"]})
    assert words[:3] == ["stack", "history", "--json"]
    files = sorted((project / ".pulumi" / "history" / "gemma-serving" / STACK).glob("*.json"), reverse=True)
    rows = [json.loads(file.read_text()) for file in files]
    for row in rows:
        row["startTime"] = datetime.fromtimestamp(row["startTime"], UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return json.dumps(rows)


def deployed(project, *updates, of=PROJECT, pending=False):
    """Write a state with a service, and the history of its updates, each its message and its age in seconds; the newest is first."""
    urn = f"urn:pulumi:{STACK}::gemma-serving::gcp:cloudrunv2/service:Service::server"
    server = {"urn": urn, "custom": True, "type": urn.split("::")[2], "inputs": {"project": of}}
    manifest = {"time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "version": "v3.256.0"}
    latest = {"manifest": manifest, "secrets_providers": {"type": ""}, "metadata": {}}
    latest |= {"pending_operations": [{"resource": server, "type": "creating"}]} if pending else {"resources": [server]}
    folder = project / ".pulumi" / "stacks" / "gemma-serving"
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = {"stack": f"organization/gemma-serving/{STACK}", "latest": latest}
    (folder / f"{STACK}.json").write_text(json.dumps({"version": 3, "checkpoint": checkpoint}))
    folder = project / ".pulumi" / "history" / "gemma-serving" / STACK
    folder.mkdir(parents=True, exist_ok=True)
    for message, age_s in updates:
        kind, _, text = message.rpartition(":")
        moment = int(time.time() - age_s)
        row = {"kind": kind or "update", "message": text, "startTime": moment, "endTime": moment, "result": "succeeded"}
        (folder / f"{STACK}-{moment}000000000.history.json").write_text(json.dumps({"config": {}, **row}))


def keep(keepers, hours=HOURS, plan=PLAN):
    keepers.keep(STACK, hours, plan_id=plan, project=PROJECT)


def record():
    return memory().path(limit_name(STACK))


def recorded(**changes):
    """Write the record of an approval, as `keep` does."""
    given = {"project": PROJECT, "plans": [PLAN], "since": datetime.fromtimestamp(time.time() - 5, UTC).isoformat()}
    memory().write(limit_name(STACK), json.dumps({**given, **changes}))
    return record()


def calls(project):
    path = project / "calls"
    return path.read_text().splitlines() if path.exists() else []


def ended(project):
    until(lambda: not record().exists(), "the end of the limit")
    return calls(project)


def test_the_answers_in_these_tests_are_those_of_the_engine(project, monkeypatch):
    def seen():
        try:
            return [limits._name(row) for row in limits._history(STACK)], limits.read(STACK)
        except CommandRefusedError as error:
            return str(error)

    deployed(project, ("destroy:", 0), ("refresh:", 1), ("resource-import:", 2), (PLAN, 3), ("", 4))
    names, state = seen()
    (project / ".pulumi" / "stacks" / "gemma-serving" / f"{STACK}.json").rename(project / "state")
    absent = seen()
    monkeypatch.setattr(runner, "query", ENGINE)
    assert seen() == absent
    (project / "state").rename(project / ".pulumi" / "stacks" / "gemma-serving" / f"{STACK}.json")
    engines, read = seen()
    assert (len(set(names)), engines) == (5, names)
    assert replace(read, raw=state.raw) == state


DELETED = [f"--stack={STACK} --yes --keep-bucket"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_is_killed_leaves_a_process_that_deletes_the_stack(project, number):
    """Also if the client kills the process group of its server."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], cwd=project, stdout=subprocess.PIPE, process_group=0)
    assert server.stdout.readline() == b"kept\n"
    deployed(project, (PLAN, 0))
    assert calls(project) == []
    os.killpg(server.pid, number)
    server.wait()
    assert ended(project) == DELETED


def test_a_change_of_the_stack_does_not_extend_the_limit(project):
    keepers, change = Keepers(), "plan-fedcba9876543210"
    keep(keepers)
    process = keepers._started[STACK]
    assert keepers.has(STACK)
    keep(keepers, 2 * HOURS, change)
    assert keepers._started[STACK] is process
    deployed(project, (change, 0), (PLAN, 5))
    assert change in prove(STACK).claim
    forget(STACK)
    process.wait(LIMIT_S)


def test_a_stack_that_a_user_deployed_or_deleted_is_left_alone(project):
    keepers = Keepers()
    keep(keepers)
    forget(STACK)  # as `gemma up` and `gemma teardown` do
    process = keepers._started[STACK]
    assert process.wait(LIMIT_S) == 0
    assert not keepers.has(STACK)
    assert calls(project) == []


def test_nothing_is_deployed_without_a_process_that_can_delete(project):
    (project / "no-teardown").touch()
    with pytest.raises(CommandRefusedError, match="did not start, so nothing was deployed"):
        keep(Keepers())
    (project / "no-teardown").unlink()
    deployed(project, (PLAN, 0))
    memory().folder.chmod(0o777)
    with pytest.raises(CommandRefusedError, match="It is not a folder that only this user can write"):
        keep(Keepers())
    assert calls(project) == []


def test_two_servers_do_not_limit_one_stack(project):
    first = Keepers()
    keep(first)
    with pytest.raises(
        CommandRefusedError, match=f"Another assistant in this folder enforces a limit of stack {STACK}"
    ):
        keep(Keepers())
    Keepers().resume()
    time.sleep(keeper.POLL_S * 2)  # a second process would act within one interval
    assert calls(project) == []
    forget(STACK)
    first._started[STACK].wait(LIMIT_S)


def test_the_next_server_deletes_what_a_killed_process_left(project):
    first = Keepers()
    keep(first)
    deployed(project, (PLAN, 0))
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


def test_a_deletion_that_fails_is_tried_again(project, monkeypatch):
    (project / "fails").write_text("once")
    deployed(project, (PLAN, 1))
    path = recorded()
    monkeypatch.setattr(keeper, "RETRY_S", 0.0)
    assert keeper.main(STACK, 0.0)
    assert calls(project) == DELETED * 2
    assert not path.exists()


OTHER = "2026-11-27T15:00:00.000Z update by hand"


@pytest.mark.parametrize(
    ("updates", "is_deleted"),
    [
        ([(PLAN, 1)], True),
        ([], True),  # the engine was killed before it wrote its history
        ([("destroy:", 0)], True),  # a former attempt of this process failed
        ([("refresh:", 0)], False),
        ([("resource-import:", 0), (PLAN, 1)], True),
        ([("refresh:", 0), (PLAN, 1)], True),
        ([("", 0), (PLAN, 1)], False),
        ([(PLAN, 1), ("by hand", 2)], False),
        ([("plan-fedcba9876543210", 1)], False),  # of another assistant
    ],
)
def test_a_stack_that_a_user_deployed_elsewhere_since_then_stays(project, updates, is_deleted):
    """The backend's history knows all users."""
    path = recorded()
    deployed(project, *updates, pending=not any(message == PLAN for message, _ in updates))
    assert keeper.main(STACK, 0.0)
    assert calls(project) == (DELETED if is_deleted else [])
    assert not path.exists()


@pytest.mark.parametrize(("age_s", "host", "is_deleted"), [(0, "", True), (60, "", False), (0, "another", False)])
def test_a_lock_of_a_killed_update_proves_it_only_if_it_began_after_the_approval_and_here(
    project, age_s, host, is_deleted
):
    recorded()
    deployed(project)
    folder = project / ".pulumi" / "locks" / "organization" / "gemma-serving" / STACK
    folder.mkdir(parents=True)
    since = datetime.fromtimestamp(time.time() - age_s, UTC).isoformat()
    holder = {"pid": 0, "username": "me", "hostname": host or socket.gethostname(), "timestamp": since}
    (folder / "a.json").write_text(json.dumps(holder))
    assert keeper.main(STACK, 0.0) is is_deleted
    assert calls(project) == (DELETED if is_deleted else [])


def link_to(target):
    def replaced(path):
        elsewhere = path.rename(path.parents[2] / "elsewhere")
        path.symlink_to(elsewhere) if target == "link" else path.hardlink_to(elsewhere)

    return replaced


def without_history(project):
    shutil.rmtree(project / ".pulumi" / "history")


def after_a_user(project):
    """Have a stack that a user deployed before the approval, and that nobody changed since."""
    without_history(project)
    deployed(project, ("by hand", 60))
    recorded(before=limits._name(limits._history(STACK)[0]))


UNPROVEN = {
    "an empty file": lambda _: record().write_text(""),
    "another shape": lambda _: record().write_text('{"plans": 1}'),
    "a file that others write": lambda _: record().chmod(0o666),
    "a folder that others write": lambda _: record().parent.chmod(0o777),
    "a link": lambda _: link_to("link")(record()),
    "a hard link": lambda _: link_to("hard link")(record()),
    "another project": lambda _: recorded(project="another-project"),
    "another stack of this name": lambda _: recorded(before=OTHER),
    "no update of the plan": without_history,
    "a user's stack without an update since": after_a_user,
    "no stack": lambda project: shutil.rmtree(project / ".pulumi"),
}


@pytest.mark.parametrize("change", UNPROVEN.values(), ids=UNPROVEN)
def test_a_record_that_proves_nothing_deletes_nothing_and_names_the_command(project, capfd, change):
    """The stack and the record are those of the deletion above, but for one fact."""
    deployed(project, (PLAN, 1))
    path = recorded()
    assert prove(STACK) is not None
    change(project)
    assert not keeper.main(STACK, 0.0)
    Keepers().resume()
    assert calls(project) == []
    assert os.path.lexists(path)
    said = capfd.readouterr().err.splitlines()
    assert f"`gemma teardown {STACK} --keep-bucket`" in said[0]
    assert str(path.parent) in said[1]  # a server that starts names it too


def test_a_file_name_is_no_stack_and_the_log_is_never_a_link(project, capfd):
    recorded()
    deployed(project, (PLAN, 1))
    memory().write(f"{LIMIT}a\nid>PWNED;true\n#", "")
    memory().path(LOG).symlink_to(project / "bashrc")
    Keepers().resume()
    said = capfd.readouterr().err
    assert "becomes part of resource names" in said
    assert f"Cannot open {memory().path(LOG)}" in said
    assert not (project / "bashrc").exists()
    assert calls(project) == []


@pytest.mark.parametrize("read", ["runner.query", "read"])
def test_an_unknown_history_or_state_deletes_nothing_and_is_read_again(project, monkeypatch, read):
    path = recorded()
    deployed(project, (PLAN, 1))
    reader, failures = getattr(limits, read, None) or runner.query, [PulumiFailedError("Pulumi is not logged in.", "")]

    def failing(*words, **options):
        if failures:
            raise failures.pop()
        return reader(*words, **options)

    monkeypatch.setattr(f"{limits.__name__}.{read}", failing)
    monkeypatch.setattr(keeper, "RETRY_S", 0.0)
    assert keeper.main(STACK, 0.0)
    assert calls(project) == DELETED
    assert not path.exists()
