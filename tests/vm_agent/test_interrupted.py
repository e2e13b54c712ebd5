"""The agent is killed, or a part fails, while image and weights are prepared: nothing unverified is used, and nothing is loaded twice."""

import errno
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from gemma_serving.contracts.guest_attributes import WAITING_FOR_REGISTRY
from gemma_serving.vm_agent.weights import PART_SUFFIX
from tests.polling import until
from tests.small_hub import COMMIT, stored_name
from tests.vm_agent.docker import REGISTRY_FAULT
from tests.vm_agent.in_process import Serving, calls
from tests.vm_agent.machine import CANARY, Machine, document, free_port

SECRET = "projects/p/secrets/s/versions/3"
FIRST, SECOND = "one.safetensors", "two.safetensors"
FILES = {FIRST: bytes(range(256)) * 40, SECOND: bytes(range(255, -1, -1)) * 30}
UNAVAILABLE = "error pulling image: received unexpected HTTP status: 503 Service Unavailable"


@pytest.fixture
def booted(tmp_path: Path):
    """A machine whose agent is a process of its own: it can be killed."""
    machine = Machine(tmp_path)
    machine.secrets[SECRET] = CANARY.encode()
    machine.hub.models["org/new"] = dict(FILES)
    machine.objects |= {f"new/{name}": data for name, data in FILES.items()}
    yield machine
    machine.close()


def of_source(machine: Machine, source: str) -> str:
    """A document whose weights are in the bucket or on the hub."""
    port = free_port()
    args = ["org/new" if source == "hub" else str(machine.root / "weights"), f"--port={port}"]
    bucket = {"mode": "bucket", "uri": "gs://models/new", "path": str(machine.root / "weights")}
    return document(port, args=args, **({} if source == "hub" else {"weights": bucket}))


def read(machine: Machine, source: str) -> Counter[str]:
    """How often each file was requested."""
    if source == "bucket":
        return Counter(one.partition(":")[0].removeprefix("new/") for one in machine.ranges)
    return Counter(path.rpartition("/")[2] for _, path, _, span in machine.hub.asked if span and "storage/" in path)


def in_place(machine: Machine, source: str) -> dict[str, bytes]:
    """The files that the server reads."""
    snapshot = machine.root / "huggingface/hub/models--org--new/snapshots" / COMMIT
    folder = snapshot if source == "hub" else machine.root / "weights"
    return {path.name: path.read_bytes() for path in folder.glob("[!.]*") if path.is_file()}


def copied(machine: Machine, source: str, name: str) -> Path:
    """The place of a complete file before the server can read it."""
    beside = machine.root / "huggingface-fetched/models--org--new"
    return beside / stored_name(name, FILES[name]) if source == "hub" else machine.root / "weights" / name


def stop_before_second(machine: Machine, source: str) -> None:
    """Kill the agent between two files, while the image is pulled."""

    def meets(path: str) -> None:
        if path.startswith("storage/") and path.endswith(SECOND):
            machine.kill_agent()

    machine.hub.meets = meets
    machine.on_download = lambda name: machine.kill_agent() if name.endswith(SECOND) else None
    (machine.root / "hang-pull").touch()
    machine.boot()
    until(lambda: read(machine, source)[SECOND] and machine.has_agent_ended(), "the agent is killed at the second file")
    machine.hub.meets, machine.on_download = lambda path: None, lambda name: None
    machine.hub.asked.clear()
    machine.ranges.clear()
    (machine.root / "hang-pull").unlink()


@pytest.mark.parametrize("source", ["bucket", "hub"])
class TestAnAgentThatIsKilled:
    def test_keeps_what_was_verified_and_loads_the_rest_once(self, booted: Machine, source: str):
        asked = booted.set_document(of_source(booted, source))
        stop_before_second(booted, source)
        assert copied(booted, source, FIRST).read_bytes() == FILES[FIRST]
        assert in_place(booted, source).keys() <= {FIRST}
        booted.boot()
        until(lambda: (booted.guest().get("phase"), booted.guest()["document-hash"]) == ("ready", asked), "ready")
        assert read(booted, source) == {SECOND: 1}
        assert in_place(booted, source) == FILES

    def test_never_uses_what_was_not_verified(self, booted: Machine, source: str):
        """It was killed before a file got its name, or before the mark that follows the check."""
        booted.set_document(of_source(booted, source))
        stop_before_second(booted, source)
        first, second = copied(booted, source, FIRST), copied(booted, source, SECOND)
        second.with_name(f".{second.name}{PART_SUFFIX}").write_bytes(bytes(len(FILES[SECOND])))
        first.write_bytes(bytes(len(FILES[FIRST])))
        first.with_name(f".{first.name}.generation").unlink()
        booted.boot()
        until(lambda: booted.guest().get("phase") == "ready", "ready")
        assert read(booted, source) == {FIRST: 1, SECOND: 1}
        assert in_place(booted, source) == FILES
        assert list(booted.root.rglob(f"*{PART_SUFFIX}")) == []

    def test_verifies_the_rest_by_its_hash(self, booted: Machine, source: str):
        booted.set_document(of_source(booted, source))
        stop_before_second(booted, source)
        wrong = bytes(len(FILES[SECOND]))
        booted.hub.sent[SECOND] = wrong
        booted.wrong_md5.add(f"new/{SECOND}")
        booted.boot()
        until(lambda: "does not match the" in booted.guest().get("detail", ""), "the wrong content is noticed")
        assert SECOND not in in_place(booted, source)


def test_the_token_is_sent_to_the_hub_and_is_in_no_argument_log_or_file(booted: Machine):
    asked = booted.set_document(of_source(booted, "hub"))
    booted.boot()
    until(lambda: booted.guest().get("phase") == "ready", "ready")
    assert booted.guest()["serving-hash"] == asked
    sent: dict[str, set[str]] = {}
    for host, _, authorization, _ in booted.hub.asked:
        sent.setdefault(host.partition(":")[0], set()).add(authorization)
    assert sent == {"127.0.0.1": {f"Bearer {CANARY}"}, "localhost": {""}}
    told = json.dumps([booted.published, booted.shipped, booted.docker_calls()])
    assert "org/new" in told
    assert CANARY not in told
    found = [path for path in booted.root.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    assert [path.name for path in found if not path.name.startswith("seen-")] == [], "only the server has it"
    log = (booted.root / "agent.log").read_text()
    assert {"pulling image", "fetching weights"} <= {
        line.rpartition(": ")[2].rstrip(".") for line in log.splitlines() if line.startswith("Done after")
    }


def asked_for_bucket(serving: Serving, machine: Machine, **changes: object) -> str:
    machine.objects |= {f"new/{name}": data for name, data in FILES.items()}
    bucket = {"mode": "bucket", "uri": "gs://models/new", "path": str(machine.root / "weights")}
    return serving.ask(weights=bucket, **changes)


class TestAnImage:
    def test_that_waits_for_its_registry_leaves_the_weights_that_are_there(self, machine: Machine):
        serving = Serving(machine, waiting_delay_s=0.05)
        (machine.root / REGISTRY_FAULT).write_text(UNAVAILABLE)
        asked = asked_for_bucket(serving, machine)
        serving.sees(WAITING_FOR_REGISTRY, asked, "")
        assert in_place(machine, "bucket") == FILES
        (machine.root / REGISTRY_FAULT).unlink()
        serving.sees("ready", asked, asked)
        assert read(machine, "bucket") == {FIRST: 1, SECOND: 1}

    def test_is_pulled_before_the_weights_if_the_disk_does_not_hold_both_at_once(
        self, serving: Serving, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ):
        is_full, write = [True], os.pwrite

        def written(descriptor: int, data: bytes, start: int) -> int:
            if is_full:
                is_full.clear()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(descriptor, data, start)

        monkeypatch.setattr(os, "pwrite", written)
        (machine.root / "hang-pull").touch()
        asked = asked_for_bucket(serving, machine)
        machine.until((machine.root / "docker.log").exists, "the image is pulled")
        machine.until(lambda: len(calls(machine, "pull")) > 1, "the image is pulled alone")
        assert in_place(machine, "bucket") == {}
        (machine.root / "hang-pull").unlink()
        serving.sees("ready", asked, asked)
        assert len(calls(machine, "pull")) == 2
        assert read(machine, "bucket") == {FIRST: 2, SECOND: 1}
