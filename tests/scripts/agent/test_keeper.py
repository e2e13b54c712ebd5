"""The process that deletes a service: at the limit, when the server ends in any way, and never what a user deployed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.engine import runner
from gemma_serving.engine.atomic_file import write_private
from gemma_serving.engine.runner import PulumiFailedError
from gemma_serving.scripts.agent import keeper, limits
from gemma_serving.scripts.agent.keeper import LOG, Keepers
from gemma_serving.scripts.agent.limits import prove
from gemma_serving.scripts.stack.limit_record import LIMITS
from gemma_serving.scripts.stack.unfinished_teardown import forget
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
    monkeypatch.setattr("gemma_serving.scripts.stack.limit_record.project_folder", lambda: tmp_path)
    return tmp_path


def deployed(project, *updates, of=PROJECT, pending=False):
    """Write a state with a service, and the history of its updates, each its message and its age in seconds; the newest is first."""
    urn = f"urn:pulumi:{STACK}::gemma-serving::gcp:cloudrunv2/service:Service::server"
    server = {"urn": urn, "custom": True, "type": urn.split("::")[2], "inputs": {"project": of}}
    manifest = {"time": datetime.now(UTC).isoformat(), "version": "v3.256.0"}
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


def recorded(folder, **changes):
    """Write the record of an approval, as `keep` does."""
    path = folder / LIMITS / STACK
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    given = {"project": PROJECT, "plans": [PLAN], "since": datetime.fromtimestamp(time.time() - 5, UTC).isoformat()}
    write_private(path, json.dumps({**given, **changes}))
    return path


def calls(project):
    path = project / "calls"
    return path.read_text().splitlines() if path.exists() else []


def ended(project):
    until(lambda: not (project / LIMITS / STACK).exists(), "the end of the limit")
    return calls(project)


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
    (project / LIMITS).chmod(0o755)
    with pytest.raises(CommandRefusedError, match="is not a folder that only this user can read and write"):
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
    assert (project / LIMITS / STACK).exists()
    second._started[STACK].kill()
    second._started[STACK].wait()


def test_a_deletion_that_fails_is_tried_again(project, monkeypatch):
    (project / "fails").write_text("once")
    deployed(project, (PLAN, 1))
    path = recorded(project)
    monkeypatch.setattr(keeper, "RETRY_S", 0.0)
    assert keeper.main(STACK, 0.0)
    assert calls(project) == DELETED * 2
    assert not path.exists()


OTHER = "2026-11-27T15:00:00.000Z by hand"


@pytest.mark.parametrize(
    ("updates", "is_deleted"),
    [
        ([(PLAN, 1)], True),
        ([], True),  # the engine was killed before it wrote its history
        ([("resource-import:", 0), (PLAN, 1)], True),
        ([("refresh:", 0), (PLAN, 1)], True),
        ([("", 0), (PLAN, 1)], False),
        ([(PLAN, 1), ("by hand", 2)], False),
        ([("plan-fedcba9876543210", 1)], False),  # of another assistant
    ],
)
def test_a_stack_that_a_user_deployed_elsewhere_since_then_stays(project, updates, is_deleted):
    """The record is in the folder of the assistant. The backend's history knows all users."""
    path = recorded(project)
    deployed(project, *updates, pending=not updates)
    assert keeper.main(STACK, 0.0)
    assert calls(project) == (DELETED if is_deleted else [])
    assert not path.exists()


def tracked(path):
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.com"]
    for words in (["init", "-q"], ["add", "-f", str(path)]):
        subprocess.run([*git, *words], cwd=path.parents[2], check=True)


def link_to(target):
    def replaced(path):
        path.rename(path.parents[2] / "elsewhere")
        path.symlink_to(path.parents[2] / "elsewhere") if target == "link" else path.hardlink_to(
            path.parents[2] / "elsewhere"
        )

    return replaced


UNPROVEN = {
    "an empty file": lambda path: path.write_text(""),
    "another shape": lambda path: path.write_text('{"plans": 1}'),
    "the mode of a checked-out file": lambda path: path.chmod(0o644),
    "a folder that others write": lambda path: path.parent.chmod(0o777),
    "a link": link_to("link"),
    "a hard link": link_to("hard link"),
    "a tracked file": tracked,
    "another project": lambda path: recorded(path.parents[2], project="another-project"),
    "another stack of this name": lambda path: recorded(path.parents[2], before=OTHER),
    "a state from before": lambda path: (
        recorded(path.parents[2], since="2100-01-01T00:00:00+00:00"),
        shutil.rmtree(path.parents[2] / ".pulumi" / "history"),
    ),
    "no stack": lambda path: shutil.rmtree(path.parents[2] / ".pulumi"),
}


@pytest.mark.parametrize("change", UNPROVEN.values(), ids=UNPROVEN)
def test_a_record_that_proves_nothing_deletes_nothing_and_names_the_command(project, capfd, change):
    """The stack and the record are those of the deletion above, but for one fact."""
    deployed(project, (PLAN, 1))
    path = recorded(project)
    assert prove(STACK) is not None
    change(path)
    assert not keeper.main(STACK, 0.0)
    Keepers().resume()
    assert calls(project) == []
    assert os.path.lexists(path)
    said = capfd.readouterr().err.splitlines()
    assert f"`gemma teardown {STACK} --keep-bucket`" in said[0]
    assert str(path) in said[1]  # a server that starts names it too


def test_a_file_name_is_no_stack_and_the_log_is_never_a_link(project, capfd):
    recorded(project)
    deployed(project, (PLAN, 1))
    (project / LIMITS / "a\nid>PWNED;true\n#").write_text("")
    (project / LOG).symlink_to(project / "bashrc")
    Keepers().resume()
    said = capfd.readouterr().err
    assert "becomes part of resource names" in said
    assert f"Cannot open {project / LOG}" in said
    assert not (project / "bashrc").exists()
    assert calls(project) == []


@pytest.mark.parametrize("read", ["runner.query", "read"])
def test_an_unknown_history_or_state_deletes_nothing_and_is_read_again(project, monkeypatch, read):
    path = recorded(project)
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
