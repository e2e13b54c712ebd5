"""An API key that was rotated: the old one stops working, whatever becomes of the document that has the new one."""

import pytest

from gemma_serving.vm_agent.stored_state import StoredState
from tests.vm_agent.docker import REGISTRY_FAULT
from tests.vm_agent.in_process import Serving, calls, seen
from tests.vm_agent.machine import IMAGE, Machine

OLD, NEW = (f"projects/p/secrets/api-key/versions/{number}" for number in (1, 2))
TOKEN = "projects/p/secrets/hf/versions/1"


@pytest.fixture
def serving(machine: Machine):
    machine.secrets |= {OLD: b"old-key-0123456789", NEW: b"new-key-0123456789"}
    return Serving(machine, restart_delays_s=(0.05,), denied_budget_s=0.0)


def good(serving: Serving) -> str:
    return serving.serves(secretEnv={"VLLM_API_KEY": OLD})


def keys(machine: Machine) -> list[str]:
    """The API key of each server that was started, in order."""
    return [one["env"].get("VLLM_API_KEY", "") for one in seen(machine)]


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


@pytest.mark.parametrize(
    ("secrets", "changes", "said"),
    [
        (
            {"VLLM_API_KEY": NEW},
            {},
            f"{NEW} does not exist, so the API key was not rotated. The previous key remains valid.",
        ),
        ({}, {"image": IMAGE.replace("vllm-tpu", "missing")}, "manifest unknown"),
        ({"HF_TOKEN": "projects/p/secrets/hf/versions/9"}, {}, "Cannot read secret projects/p/secrets/hf/versions/9"),
    ],
    ids=["a-version-that-does-not-exist", "the-same-key", "another-token"],
)
def test_a_failed_change_without_a_new_key_restarts_nothing(
    serving: Serving, machine: Machine, secrets: dict[str, str], changes: dict[str, object], said: str
):
    machine.no_secrets.add(NEW)
    machine.secrets[TOKEN] = b"hf_one_0123456789"
    both = {"VLLM_API_KEY": OLD, "HF_TOKEN": TOKEN}
    before = serving.serves(secretEnv=both)
    bad = serving.ask(secretEnv={**both, **secrets}, **changes)
    serving.sees("failed", bad, before)
    assert len(calls(machine, "run")) == 1
    assert said in machine.guest()["detail"]
    assert "new API key" not in machine.guest()["detail"]


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


def test_the_document_that_is_kept_names_no_value(serving: Serving, machine: Machine):
    good(serving)
    assert b"old-key" not in b"".join(path.read_bytes() for path in (machine.root / "state").iterdir())
