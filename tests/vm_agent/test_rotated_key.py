"""An API key that was rotated: the old one stops working, whatever becomes of the document that has the new one."""

import json

import pytest

from gemma_serving.vm_agent.stored_state import StoredState
from tests.vm_agent.docker import REGISTRY_FAULT
from tests.vm_agent.in_process import Serving, calls
from tests.vm_agent.machine import IMAGE, Machine

OLD, NEW = (f"projects/p/secrets/api-key/versions/{number}" for number in (1, 2))


@pytest.fixture
def serving(machine: Machine):
    machine.secrets |= {OLD: b"old-key-0123456789", NEW: b"new-key-0123456789"}
    serving = Serving(machine, restart_delays_s=(0.05,), denied_budget_s=0.0)
    yield serving
    serving.let_go()


def good(serving: Serving) -> str:
    asked = serving.ask(secretEnv={"VLLM_API_KEY": OLD})
    serving.sees("ready", asked, asked)
    return asked


def keys(machine: Machine) -> list[str]:
    """The API key of each server that was started, in order."""
    seen = sorted(machine.root.glob("seen-*.json"), key=lambda path: int(path.stem.partition("-")[2]))
    return [json.loads(path.read_text())["env"].get("VLLM_API_KEY", "") for path in seen]


@pytest.mark.parametrize(
    "broken",
    [
        {"image": IMAGE.replace("vllm-tpu", "missing")},
        {"of-a-newer-release": 1},
        {"args": ["google/gemma-4-E2B-it", "--no-such-flag"]},
    ],
    ids=["before-its-server-starts", "no-document-for-this-agent", "when-its-server-starts"],
)
def test_the_way_back_has_the_new_key(serving: Serving, machine: Machine, broken: dict[str, object]):
    before = good(serving)
    bad = serving.ask(secretEnv={"VLLM_API_KEY": NEW}, **broken)
    machine.until(lambda: machine.guest().get("document-hash") == bad, "the document is taken up")
    machine.until(
        lambda: keys(machine)[-1] == "new-key-0123456789" and len(calls(machine, "run")) > 1, "the new key serves"
    )
    serving.sees("failed", bad, before)
    assert keys(machine)[0] == "old-key-0123456789"
    assert set(keys(machine)[1:]) == {"new-key-0123456789"}
    served = StoredState(machine.root / "state").back
    assert served is not None
    assert served.document.secret_environment == {"VLLM_API_KEY": NEW}, "the next agent knows it too"
    if "args" not in broken:
        assert f"The previous document serves with the new API key, {NEW}." in machine.guest()["detail"]


def test_an_outage_of_the_registry_does_not_keep_the_old_key(serving: Serving, machine: Machine):
    before = good(serving)
    (machine.root / REGISTRY_FAULT).write_text("received unexpected HTTP status: 503 Service Unavailable")
    bad = serving.ask(secretEnv={"VLLM_API_KEY": NEW}, image=IMAGE.replace("a" * 64, "b" * 64))
    serving.sees("failed", bad, before)
    assert keys(machine) == ["old-key-0123456789", "new-key-0123456789"]


@pytest.mark.parametrize("is_out", [False, True], ids=["denied", "unavailable"])
def test_without_the_new_key_nothing_serves_rather_than_the_old_one(
    serving: Serving, machine: Machine, waits: list[float], is_out: bool
):
    good(serving)
    if is_out:
        machine.fail_next[NEW] = 1_000
    else:
        del machine.secrets[NEW]
    bad = serving.ask(secretEnv={"VLLM_API_KEY": NEW})
    serving.sees("failed", bad, "")
    assert keys(machine) == ["old-key-0123456789"]
    assert len(calls(machine, "stop")) == 1
    detail = machine.guest()["detail"]
    assert f"Cannot read secret {NEW}" in detail
    assert detail.endswith("The server with the previous API key was stopped.")


def test_a_version_that_does_not_exist_is_no_new_key_and_takes_no_server_away(serving: Serving, machine: Machine):
    before = good(serving)
    machine.no_secrets.add(NEW)
    bad = serving.ask(secretEnv={"VLLM_API_KEY": NEW})
    serving.sees("failed", bad, before)
    assert len(calls(machine, "run")) == 1
    detail = machine.guest()["detail"]
    assert detail.endswith(f"{NEW} does not exist, so the API key was not rotated. The previous key remains valid.")


def test_a_key_that_was_withdrawn_is_not_taken_from_memory(serving: Serving, machine: Machine):
    good(serving)
    del machine.secrets[OLD]
    serving.sees("failed", serving.ask("--no-such-flag"), "")
    assert keys(machine) == ["old-key-0123456789", ""]


def test_an_outage_of_secret_manager_does_not_stop_the_way_back(serving: Serving, machine: Machine, waits: list[float]):
    before = good(serving)
    machine.fail_next["secretmanager/v1/projects/p/secrets/api-key"] = 1_000
    serving.sees("failed", serving.ask("--no-such-flag"), before)
    assert keys(machine) == ["old-key-0123456789", "", "old-key-0123456789"]
    assert waits


def test_a_failed_change_that_keeps_the_key_restarts_nothing(serving: Serving, machine: Machine):
    before = good(serving)
    bad = serving.ask(secretEnv={"VLLM_API_KEY": OLD}, image=IMAGE.replace("vllm-tpu", "missing"))
    serving.sees("failed", bad, before)
    assert len(calls(machine, "run")) == 1
    assert "new API key" not in machine.guest()["detail"]


def test_the_hugging_face_token_of_a_change_that_never_started_is_not_taken(serving: Serving, machine: Machine):
    machine.secrets |= {"projects/p/secrets/hf/versions/1": b"hf_one_0123456789"}
    tokens = {"HF_TOKEN": "projects/p/secrets/hf/versions/1"}
    before = serving.ask(secretEnv=tokens)
    serving.sees("ready", before, before)
    bad = serving.ask(secretEnv={"HF_TOKEN": "projects/p/secrets/hf/versions/9"})
    serving.sees("failed", bad, before)
    assert len(calls(machine, "run")) == 1


def test_the_document_that_is_kept_names_no_value(serving: Serving, machine: Machine):
    good(serving)
    assert b"old-key" not in b"".join(path.read_bytes() for path in (machine.root / "state").iterdir())
