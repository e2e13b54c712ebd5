"""Each row of docs/recovery.md quotes a message that some code really produces, and names commands that exist with their options.

A message is either produced here, or asserted by a test that `NAMED` names.
"""

import ast
import asyncio
import importlib
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pulumi
import pytest

from cloud.spending import StackSpending
from contracts.errors import CommandRefusedError, ScriptError
from contracts.labels import StackLimits
from contracts.run_record import RecordError
from engine import deployment, locks, runner
from gcp_tpu_provider import capacity, refusals, transport
from localcloud import cli
from localcloud.world.scenario import Fault, OperationDurations, Scenario
from localcloud.world.state import StateError, description
from scripts.cli.command import run_command
from scripts.recover.__main__ import COMMAND as RECOVER
from scripts.teardown.__main__ import COMMAND as TEARDOWN
from stacks.hooks.run_keeper import RunKeeper
from stacks.project import propagation
from tests.cloud.populated import PROJECT, open_world, owner
from tests.scripts.test_printed_commands import refusal_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "recovery.md"
CODE = re.compile(r"`([^`]+)`")
CELL = re.compile(r"(?<!\\)\|")

PULUMI = {
    ("up",): {"--stack", "--refresh"},
    ("destroy",): {"--stack"},
    ("cancel",): {"--yes", "--stack"},
    ("whoami",): {"--verbose"},
    ("stack", "init"): set(),
    ("stack", "output"): {"--stack"},
    ("stack", "rm"): {"--preserve-config", "--yes"},
}
"""The commands of Pulumi that the page names, with the options that it uses; `test_pulumi_knows...` asks the CLI."""

NAMED = {
    message: test
    for test, messages in {
        (
            "tests/engine/test_recovery_words.py",
            "test_a_request_in_a_zone_that_was_moved_away_from_is_found_after_kills",
        ): [
            "the stack is currently locked by ... lock(s)",
            "Attempting to deploy or update resources with ... pending operations",
            "exited prematurely",
            "TPU queued resource",
        ],
        (
            "tests/engine/test_recovery_words.py",
            "test_after_a_lost_passphrase_nothing_stays_and_the_stack_can_be_made_again",
        ): ["^C received; terminating", "incorrect passphrase"],
        (
            "tests/engine/test_bound_weights.py",
            "assert_nothing_replaces_the_bucket",
        ): ["unable to replace resource"],
        (
            "tests/engine/test_recover.py",
            "test_what_the_engine_was_making_is_taken_over_and_up_goes_on",
        ): ["failed to load checkpoint: EOF"],
        (
            "tests/agreement/test_provider_engine.py",
            "test_ctrl_c_in_the_wait_keeps_the_request_and_the_next_up_goes_on_with_it",
        ): ["The request is kept in the state"],
        (
            "tests/scripts/smoke/test_reach.py",
            "test_a_tunnel_that_gcloud_refuses_is_unknown",
        ): ["before it opened: ... gcloud crashed (AttributeError)"],
        (
            "tests/agreement/test_federated_tunnel.py",
            "test_who_may_not_make_its_own_tokens_cannot_impersonate_itself",
        ): ["Failed to impersonate"],
        (
            "tests/scripts/smoke/test_reach.py",
            "test_a_caller_that_cloud_run_refuses_is_unknown",
        ): ["Grant roles/run.invoker to the caller"],
        (
            "tests/scripts/recover/test_rounds.py",
            "test_a_state_that_changed_meanwhile_is_not_overwritten",
        ): ["The state of stack ... changed during the recovery"],
        (
            "tests/scripts/recover/test_rounds.py",
            "test_the_command_says_what_it_did",
        ): ["does not have the labels of this stack. It was not modified."],
        (
            "packages/gcp-tpu/gcp_tpu_provider/tests/test_faults.py",
            "test_running_capacity_in_a_dropped_zone_is_not_given_up_without_permission",
        ): ["An interrupted Pulumi run created it, but ... no longer lists its zone"],
        (
            "packages/gcp-tpu/gcp_tpu_provider/tests/test_lifecycle.py",
            "test_an_update_of_something_that_died_since_says_to_refresh",
        ): ["was ACTIVE and is ... Run"],
        (
            "packages/gcp-tpu/gcp_tpu_provider/tests/test_lifecycle.py",
            "test_up_fails_with_the_servers_words_and_says_what_serves_and_what_to_do",
        ): ["The previous configuration is serving: document"],
        (
            "tests/vm_agent/test_roll_back.py",
            "test_a_document_that_compiles_longer_than_its_budget_is_rolled_back",
        ): ["was not ready within ... (tpu.readyTimeout)"],
        (
            "tests/vm_agent/test_before_the_stop.py",
            "test_that_never_fit_never_stop_the_old_server",
        ): ["needs ... but only ... are free. Set tpu.bootDiskSizeGb"],
        (
            "packages/gcp-tpu/gcp_tpu_provider/tests/test_lifecycle.py",
            "test_is_said_with_what_to_do_afterwards",
        ): ["Google will delete the machine of ... at"],
        (
            "packages/gcp-tpu/gcp_tpu_provider/tests/test_machine_warnings.py",
            "test_a_machine_that_is_gone_is_a_warning_without_a_refresh",
        ): ["but this stack's state records it as ACTIVE"],
        (
            "packages/gcp-tpu/gcp_tpu_provider/tests/test_machine_warnings.py",
            "test_a_document_that_failed_after_the_last_update_is_named_with_what_serves",
        ): ["and has failed since:"],
        (
            "tests/stacks/test_run_failures.py",
            "test_a_failed_update_says_that_its_outputs_are_kept",
        ): ["listed with a minus are kept"],
        (
            "packages/gcp-tpu/gcp_tpu_provider/tests/test_lifecycle.py",
            "test_capacity_that_is_taken_away_during_the_wait_is_said",
        ): ["Google reclaimed the capacity"],
        (
            "packages/gcp-tpu/gcp_tpu_provider/tests/test_faults.py",
            "test_a_request_that_never_shows_is_kept_in_the_state_and_asked_for_again",
        ): ["the request may still take effect"],
        (
            "tests/stacks/test_run_failures.py",
            "test_the_last_lines_are_shown_with_the_cause_and_the_command",
        ): ["Revision ... did not start."],
        (
            "tests/engine/test_new_grants.py",
            "test_a_grant_that_takes_longer_ends_with_a_sentence_and_the_same_up_again_works",
        ): ["had not taken effect yet. Run"],
        (
            "tests/engine/test_failed_revision.py",
            "test_weights_that_are_not_staged_are_found_before_the_service_is_made",
        ): ["No weights are staged in"],
        (
            "tests/scripts/rollout/test_rollout.py",
            "test_a_change_of_another_client_is_left_alone",
        ): ["Cannot move the traffic of"],
        (
            "tests/scripts/rollout/test_rollout.py",
            "test_shares_that_google_does_not_say_stop_the_run_before_anything_moves",
        ): ["Google did not return the traffic split of"],
        (
            "tests/cloud/test_deletion.py",
            "test_what_uses_a_network_keeps_it_and_google_says_what",
        ): ["is already being used by"],
        (
            "tests/cloud/test_inventory.py",
            "test_the_grants_of_a_deleted_account_stay_on_the_project_and_are_found",
        ): ["deleted:serviceAccount:"],
        (
            "tests/scripts/teardown/test_teardown.py",
            "test_a_state_that_no_engine_can_empty_is_empty_once_the_search_read_everything",
        ): ["although the search read every list and found no resource"],
        (
            "tests/scripts/teardown/test_teardown.py",
            "test_a_service_whose_api_is_off_is_not_called_gone",
        ): ["because the API is off. They may still be running"],
        (
            "tests/stacks/test_staged_weights.py",
            "test_damaged_weights_stop_up_before_the_service",
        ): ["do not match their manifest"],
    }.items()
    for message in messages
}
"""Messages that another test asserts, mostly because they need the engine."""


# Messages that are produced here


@dataclass
class Tools:
    """What a producer may use."""

    patch: pytest.MonkeyPatch
    folder: Path
    capsys: pytest.CaptureFixture[str]

    def said(self):
        printed = self.capsys.readouterr()
        return printed.out + printed.err


PRODUCED: dict[str, Callable[[Tools], str]] = {}


def produces(*messages):
    """Register a producer of the text in which these messages stand."""

    def register(producer):
        PRODUCED.update(dict.fromkeys(messages, producer))
        return producer

    return register


def refusal(work, kind=ScriptError):
    with pytest.raises(kind) as raised:
        work()
    return str(raised.value)


def lock(pid, host):
    return locks.StackLock(place="", user="me", host=host, pid=pid, since=datetime.now(UTC).isoformat())


@produces("is locked ... Wait for it to finish, then retry.")
def live_lock(_tools):
    return refusal(lambda: locks.require_dead("dev", [lock(os.getpid(), socket.gethostname())]))


@produces("is locked ... If it is no longer running, run")
def lock_of_another_machine(_tools):
    return refusal(lambda: locks.require_dead("dev", [lock(7, "another-machine")]))


@produces("is locked by an update that the backend does not name")
def lock_without_a_name(_tools):
    return refusal(lambda: locks.require_dead("dev", ()))


@produces("does not exist. Run ... If it was deployed and its state is lost, run")
def lost_state(tools):
    answer = subprocess.CompletedProcess([], 1, "", "error: no stack named 'dev' found")
    (tools.folder / "Pulumi.dev.yaml").write_text("config: {}\n")
    tools.patch.setattr(runner, "run", lambda *_, **__: answer)
    tools.patch.setattr(runner, "project_folder", lambda: tools.folder)
    return refusal(lambda: runner.query(["stack", "export", "--stack", "dev"]))


@produces("cannot be read ... It may have been truncated by an interrupted write")
def cut_off_state(_tools):
    return refusal(lambda: deployment.parse_deployment("dev", '{"version": 3, "depl'))


@produces("has format version ..., but this program supports up to version")
def newer_state(_tools):
    return refusal(lambda: deployment.parse_deployment("dev", '{"version": 99}'))


@produces("cannot be decrypted. Set PULUMI_CONFIG_PASSPHRASE")
def lost_passphrase(tools):
    answer = subprocess.CompletedProcess([], 1, "", "error: failed to decrypt: incorrect passphrase")
    tools.patch.setattr("engine.previewed.runner.run", lambda *_, **__: answer)
    previewed = importlib.import_module("engine.previewed")
    return refusal(lambda: previewed.declared("dev"))


@produces(
    "A resource of this stack already exists.",
    "The resource ... already exists",
    "Google failed, and a resource may exist that is not in the state.",
)
def conflict(_tools):
    with open_world() as world:
        world.network("gemma-x", owner("x").description)
        error = refusal(lambda: world.network("gemma-x", owner("x").description), AssertionError)
    hints = map(propagation.exists_hint, (f"Error 409: {error}", "googleapi: Error 500: Internal error"))
    return "\n".join([error, *hints])


@produces("Waiting up to ... min for", "was still unavailable after ... min")
def late_api(tools):
    spoken, error = [], "Error 403: Compute Engine API has not been used in project 2 before or it is disabled."
    tools.patch.setattr(pulumi.log, "info", spoken.append)
    tools.patch.setattr(pulumi.log, "warn", spoken.append)
    tools.patch.setenv(propagation.SPEED_VARIABLE, "1e9")
    waits = propagation._Waits("my-project")
    arguments = pulumi.ErrorHookArgs("urn", "", "n", "t", errors=[error])
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(waits.again(arguments))
    waits.since_s["urn"] = -propagation.LIMIT_S
    assert not loop.run_until_complete(waits.again(arguments))
    loop.close()
    return "\n".join(spoken)


@produces("Google rejects the grant because the policy still names the deleted account of that e-mail")
def grants_of_a_deleted_account(tools):
    spoken, member = [], "serviceAccount:gemma-x@local-project.iam.gserviceaccount.com"

    tools.patch.setattr(pulumi.log, "warn", spoken.append)
    error = f"Error 400: Inconsistent representation of deleted member: 'deleted:{member}?uid=1' and '{member}'."
    inputs = {"bucket": "models", "member": member, "role": "roles/storage.objectViewer"}
    type_ = "gcp:storage/bucketIAMMember:BucketIAMMember"
    arguments = pulumi.ErrorHookArgs("urn", "", "n", type_, new_inputs=inputs, errors=[error])
    assert not asyncio.run(propagation._Waits("my-project").again(arguments))
    return "\n".join(spoken)


@produces("APIs that this stack uses. Run")
def apis_off(tools):
    tools.patch.setattr("cloud.enabled.read_enabled_apis", lambda *_: frozenset())
    tools.patch.setattr("cloud.enabled.connect", lambda *_: None)
    return refusal(lambda: propagation.require_enabled("p", ["run"]), CommandRefusedError)


@produces("No zone granted ... All capacity requests were deleted.", "quota: request an increase of the quota above")
def no_capacity(_tools):
    answers = [
        capacity.Refused("us-east5-a", "WAITING_FOR_RESOURCES for 30m: the wait for this zone timed out."),
        capacity.Refused("us-east5-b", "Quota limit 'TPUV6E' has been exceeded. Limit: 0 in zone us-east5-b."),
    ]
    assert [refusals.kind(each.answer) for each in answers] == [refusals.NO_CAPACITY, refusals.QUOTA]
    inputs = {"provisioningModel": "flex-start", "acceleratorType": "v6e-4"}
    return capacity._table(SimpleNamespace(project="p", inputs=inputs, next_steps=()), answers)


@produces("Beyond the limit for pulls without an account, set gemma-serving:dockerHub")
def docker_hub_limit(_tools):
    return propagation.image_advice("vllm", "Image 'us-east4-docker.pkg.dev/p/r/a@sha256:1' not found.") or ""


@produces("Artifact Registry cannot use the account of gemma-serving:dockerHub")
def docker_hub_account(_tools):
    return propagation.image_advice("image", "Error 400: Upstream credentials are not valid.") or ""


@produces("but nothing responds there")
def killed_local_cloud(tools):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    tools.patch.setenv(transport.OVERRIDE, f"http://127.0.0.1:{port}/")
    return asyncio.run(transport.unreachable_override()) or ""


@produces("No local cloud runs on the state folder")
def local_cloud_without_a_process(tools):
    return refusal(lambda: description(tools.folder / "none"), StateError)


def interrupted(command, tools):
    def interrupt(_options):
        raise KeyboardInterrupt

    assert run_command(replace(command, run=interrupt), ["--stack", "dev"]) == 130
    return tools.said()


@produces("The state is consistent. Run recover again to continue.")
def interrupted_recover(tools):
    return interrupted(RECOVER, tools)


@produces("Run the same command again to delete the remaining resources.")
def interrupted_teardown(tools):
    return interrupted(TEARDOWN, tools)


@produces("Leaked: ...", "Could not check ...")
def teardown_that_is_refused(tools):
    faults = (
        Fault(method="secretmanager.projects.secrets.delete", count=999, status=403),
        Fault(method="storage.buckets.list", count=999, status=403),
    )
    tools.patch.chdir(tools.folder)
    tools.patch.setenv("PULUMI_BACKEND_URL", f"file://{tools.folder}")
    (tools.folder / "Pulumi.yaml").write_text("name: gemma-serving\nruntime: python\n")
    tools.patch.setattr(runner, "pulumi", refuse_engine)
    with open_world(Scenario(operations=OperationDurations(instant=True), faults=faults)) as world:
        tools.patch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
        world.secret("gemma-x-hf-token", owner("x").labels)
        assert run_command(TEARDOWN, ["--stack", "x", "--yes"]) == 1
    return tools.said()


@produces(
    "exceeds maxAge ... (age ...)",
    "exceeds maxUsd ... (cost ...)",
    "exceeds tpu.idleAfter ... (no request for ...)",
    "has no limit; it is ... old",
    "is unknown; it is at least ... old",
)
def guard(_tools):
    limits = (StackLimits(max_age_s=60), StackLimits(max_usd=1), StackLimits(idle_after_s=600), StackLimits())
    used = [
        StackSpending(owner=owner("x"), limits=each, age_s=90, usd=2, usd_per_hour=1, idle_s=700) for each in limits
    ]
    doubtful = replace(used[0], age_s=1, unknown=("The account was not found.",))
    return "\n".join(each.sentence() for each in (*used, doubtful))


@produces("could not be recorded in the description of", "its record cannot be read: ...")
def record_of_runs(tools):
    def unreadable(_):
        raise RecordError("about/0/")

    tools.patch.setattr(RunKeeper, "note", unreadable)
    try:
        RunKeeper(
            project="p", stack="x", account="projects/p/serviceAccounts/a", identity="", has_limits=True
        ).note_first()
    except CommandRefusedError as error:
        return str(error)
    return ""


def refuse_engine():
    raise runner.CommandRefusedError("The Pulumi CLI is not installed.")


# The page


def tables():
    """Yield the cells of each row of the page's tables."""
    lines = PAGE.read_text().splitlines()
    for line in lines:
        if line.startswith("| ") and not line.startswith(("| message", "| ---")):
            yield [cell.strip() for cell in CELL.split(line)[1:-1]]


def messages():
    return [CODE.fullmatch(row[0])[1] for row in tables()]


def commands():
    """Yield every command of the page: those of its blocks, and those in backticks."""
    text = PAGE.read_text()
    for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL):
        yield from (line.partition("#")[0].strip() for line in block.splitlines())
    for code in CODE.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if re.match(r"(python|pulumi|gcloud|make) [\w-]", code) and code != "pulumi up":
            yield code


def pattern(message):
    return re.compile(".*".join(re.escape(part) for part in message.split("...")), re.DOTALL)


def is_negative(check):
    return any(isinstance(node, (ast.Not, ast.NotIn)) for node in ast.walk(check))


def asserted(path, name):
    """Yield the texts in the assertions of a test: in `assert`, in `match=`, and in a variable that an `assert` names."""
    tree = ast.parse((ROOT / path).read_text())
    (test,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
    checks = [node.test for node in ast.walk(test) if isinstance(node, ast.Assert) and not is_negative(node.test)]
    checks += [node.value for node in ast.walk(test) if isinstance(node, ast.keyword) and node.arg == "match"]
    names = {node.id for check in checks for node in ast.walk(check) if isinstance(node, ast.Name)}
    for node in ast.walk(test):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in names:
            checks.append(node.value)
    for check in checks:
        for node in ast.walk(check):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value.replace("\\", "")


def test_every_row_has_a_proof_and_every_proof_a_row():
    rows = messages()
    assert len(rows) == len(set(rows)) > 35
    assert set(rows) == {*PRODUCED, *NAMED}
    assert not PRODUCED.keys() & NAMED.keys()


@pytest.mark.parametrize("message", list(PRODUCED))
def test_the_message_is_produced(message, monkeypatch, tmp_path, capsys):
    text = PRODUCED[message](Tools(monkeypatch, tmp_path, capsys))
    assert pattern(message).search(text), text


@pytest.mark.parametrize("message", list(NAMED))
def test_the_message_is_asserted_by_the_test_that_is_named(message):
    texts = list(asserted(*NAMED[message]))
    assert any(pattern(message).search(text) for text in texts), texts


def test_a_message_that_nothing_produces_is_noticed():
    assert not any(pattern("exited too late").search(text) for text in asserted(*NAMED["exited prematurely"]))


def test_every_row_says_what_to_do():
    for message, meaning, remedy in tables():
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
        known = PULUMI[tuple(words[1:3])] if words[1] == "stack" else PULUMI[(words[1],)]
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
