"""The agent downloads a model from the hub itself: the hub's own library accepts the result, and the token stays with the hub."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download

from gemma_serving.contracts.guest_attributes import WAITING_FOR_HUB
from gemma_serving.contracts.serving_document import parse_document
from gemma_serving.vm_agent import prefetch
from gemma_serving.vm_agent.base import ServingError, SupersededError
from gemma_serving.vm_agent.cloud import MetadataClient
from gemma_serving.vm_agent.prefetch import HubFetch
from tests.small_hub import COMMIT, stored_name
from tests.vm_agent.machine import CANARY, Machine, document

MODEL = "org/model"
FILES = {
    "config.json": b'{"layers": 1}',
    "empty": b"",
    "tokenizer.json": b"[1, 2]",
    "model-00001-of-00002.safetensors": bytes(range(256)) * 20,
    "model-00002-of-00002.safetensors": bytes(range(256)) * 9,
    "assets/audio/one.json": b"{}",
    "same-as-one.json": b"{}",
}
FOLDER = "models--org--model"
RENAME = os.rename


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch: pytest.MonkeyPatch, waits: list[float]):
    monkeypatch.setattr(prefetch, "HUB_CHUNK_BYTES", 1000)


def fetch(
    machine: Machine,
    *arguments: str,
    is_trial: bool = True,
    cancelled: Callable[[], bool] = lambda: False,
    told: list[str] | None = None,
    **changes: object,
) -> HubFetch:
    machine.hub.models.setdefault(MODEL, dict(FILES))
    wanted = parse_document(document(8000, args=[MODEL, *arguments], **changes))
    heard = [] if told is None else told
    cache = machine.root / "huggingface"
    return HubFetch(
        wanted,
        lambda: {"HF_TOKEN": CANARY},
        heard.append,
        cancelled,
        cache,
        is_trial,
        MetadataClient(clock=machine.requests),
    )


def asked_files(machine: Machine) -> list[str]:
    return [path.rpartition("/")[2] for _, path, _, span in machine.hub.asked if span]


def in_cache(machine: Machine) -> dict[str, bytes]:
    folder = machine.root / "huggingface" / "hub" / FOLDER / "snapshots" / COMMIT
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class TestTheHubsOwnLibrary:
    @pytest.mark.parametrize("revision", ["", COMMIT])
    def test_accepts_the_cache_as_complete(self, machine: Machine, revision: str):
        told = list[str]()
        fetch(machine, *([f"--revision={revision}"] if revision else []), told=told).run()
        cache = machine.root / "huggingface" / "hub"
        found = Path(snapshot_download(MODEL, revision=revision or None, cache_dir=cache, local_files_only=True))
        assert {str(path.relative_to(found)): path.read_bytes() for path in found.rglob("*") if path.is_file()} == FILES
        for name in FILES:
            hf_hub_download(MODEL, name, revision=revision or None, cache_dir=cache, local_files_only=True)
        scanned = scan_cache_dir(cache)
        assert scanned.warnings == []
        (repository,) = scanned.repos
        (only,) = repository.revisions
        assert (only.commit_hash, only.refs) == (COMMIT, frozenset([] if revision else ["main"]))
        assert repository.size_on_disk == sum(map(len, {stored_name(*one): one[1] for one in FILES.items()}.values()))
        assert told[0] == MODEL
        assert told[-1].startswith(f"{MODEL} 0.0 of 0.0 GiB")

    def test_has_the_same_links(self, machine: Machine):
        fetch(machine).run()
        folder = machine.root / "huggingface" / "hub" / FOLDER
        for name, data in FILES.items():
            depth = "../" * (name.count("/") + 2)
            assert (folder / "snapshots" / COMMIT / name).readlink() == Path(f"{depth}blobs/{stored_name(name, data)}")


class TestTheToken:
    def test_is_sent_to_the_hub_and_not_to_its_storage(self, machine: Machine):
        fetch(machine).run()
        by_host = {host.partition(":")[0]: set[str]() for host, *_ in machine.hub.asked}
        for host, _, authorization, _ in machine.hub.asked:
            by_host[host.partition(":")[0]].add(authorization)
        assert by_host == {"127.0.0.1": {f"Bearer {CANARY}"}, "localhost": {""}}

    def test_and_signatures_are_in_no_error(self, machine: Machine):
        for status in (401, 403, 503):
            machine.hub.meets = lambda path, status=status: (status, b"", {}) if path.startswith("storage/") else None
            with pytest.raises(ServingError) as caught:
                fetch(machine).run()
            assert str(caught.value) == f"Cannot fetch {MODEL}: status {status} of the hub's storage"
            assert caught.value.retry
            assert CANARY not in repr(caught.value.__dict__)


class TestFiles:
    @pytest.mark.parametrize("name", ["config.json", "model-00001-of-00002.safetensors"])
    def test_with_a_wrong_content_never_reach_the_cache(self, machine: Machine, name: str):
        fetch(machine)
        machine.hub.sent[name] = bytes(len(FILES[name]))
        with pytest.raises(ServingError, match=rf"The copy of {name} does not match the (Git id|SHA-256)"):
            fetch(machine, is_trial=False).run()
        assert in_cache(machine) == {}
        machine.hub.sent.clear()
        fetch(machine).run()
        assert in_cache(machine) == FILES

    def test_with_another_size_are_refused(self, machine: Machine):
        fetch(machine)
        machine.hub.sent["config.json"] = b"{"
        with pytest.raises(ServingError, match="received 1 bytes for a range of 13 bytes"):
            fetch(machine).run()

    def test_of_a_storage_without_ranges_are_left_to_the_server(self, machine: Machine):
        name = "model-00001-of-00002.safetensors"
        whole = FILES[name]
        machine.hub.meets = lambda path: (200, whole, {}) if path.endswith(name) else None
        with pytest.raises(ServingError, match="sent no range of a file") as caught:
            fetch(machine).run()
        assert caught.value.retry
        assert fetch(machine, is_trial=False).run()
        assert in_cache(machine) == {}

    def test_that_are_complete_are_not_downloaded_again_after_a_crash(self, machine: Machine):
        machine.hub.meets = lambda path: (503, b"", {}) if path.endswith("00002-of-00002.safetensors") else None
        with pytest.raises(ServingError, match="503"):
            fetch(machine).run()
        assert in_cache(machine) == {}
        machine.hub.meets = lambda path: None
        machine.hub.asked.clear()
        fetch(machine).run()
        assert "model-00001-of-00002.safetensors" not in asked_files(machine)
        assert in_cache(machine) == FILES

    def test_of_a_model_that_is_no_longer_wanted_leave_the_disk(self, machine: Machine):
        left = machine.root / "huggingface-fetched" / "models--org--other"
        left.mkdir(parents=True)
        (left / "part").touch()
        fetch(machine).run()
        assert not left.exists()

    def test_that_the_server_does_not_load_are_not_downloaded(self, machine: Machine):
        fetch(machine)
        machine.hub.models[MODEL] |= {"original/params.json": b"{}", "pytorch_model.bin": b"x", "m.gguf": b"y"}
        fetch(machine).run()
        assert in_cache(machine) == FILES

    @pytest.mark.parametrize(
        "name", ["../x", "a/../../x", "/etc/passwd", "a//b", ".", "a/.", "a\\b", "a\0b", "x" * 256, ""]
    )
    def test_cannot_leave_their_folder(self, machine: Machine, name: str):
        fetch(machine)
        machine.hub.models[MODEL][name] = b"x"
        with pytest.raises(ServingError, match="has an invalid name"):
            fetch(machine).run()
        assert in_cache(machine) == {}


REFUSED = {
    "gated": (403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model org/model is restricted"}),
    "gated, no token": (401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model x is restricted"}),
    "absent": (404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}),
    "hidden": (401, {"X-Error-Message": "Invalid username or password."}),
    "no such commit": (404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id: abc"}),
    "expired token": (401, {"X-Error-Message": "Invalid credentials in Authorization header"}),
}


class TestAnError:
    @pytest.mark.parametrize("case", REFUSED)
    @pytest.mark.parametrize("is_trial", [False, True])
    def test_that_is_final_is_final_at_once(self, machine: Machine, case: str, is_trial: bool):
        status, headers = REFUSED[case]
        machine.hub.meets = lambda path: (status, b"", headers)
        with pytest.raises(ServingError) as caught:
            fetch(machine, is_trial=is_trial).run()
        assert (caught.value.retry, caught.value.waits_for) == (False, "")
        assert str(caught.value).startswith(f"Cannot fetch {MODEL} from the hub: {status} Client Error: ")
        assert len(machine.hub.asked) == 1

    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
    def test_that_passes_is_waited_for_in_a_trial_and_else_left_to_the_server(self, machine: Machine, status: int):
        machine.hub.meets = lambda path: (status, b"", {})
        with pytest.raises(ServingError) as caught:
            fetch(machine).run()
        assert (caught.value.retry, caught.value.waits_for) == (True, WAITING_FOR_HUB)
        assert len(machine.hub.asked) == 5
        assert fetch(machine, is_trial=False).run()

    def test_of_a_connection_is_one_that_passes(self, machine: Machine, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
        with pytest.raises(ServingError, match="Connection refused") as caught:
            fetch(machine).run()
        assert caught.value.waits_for == WAITING_FOR_HUB
        assert fetch(machine, is_trial=False).run()

    def test_that_nobody_knows_is_no_verdict_before_the_server_has_tried(self, machine: Machine):
        machine.hub.meets = lambda path: (418, b"", {})
        assert fetch(machine, is_trial=False).run()
        with pytest.raises(ServingError, match="418 Client Error") as caught:
            fetch(machine).run()
        assert (caught.value.retry, caught.value.waits_for) == (True, "")

    def test_of_the_disk_is_not_left_to_the_server(self, machine: Machine, monkeypatch: pytest.MonkeyPatch):
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space left on device"):
            fetch(machine, is_trial=False).run()
        assert list((machine.root / "huggingface-fetched").rglob(".*.part")) == []


def test_a_newer_document_ends_a_download_within_a_response(machine: Machine):
    begun = threading.Event()

    def meets(path: str) -> None:
        if path.startswith("storage/"):
            begun.set()

    machine.hub.meets = meets
    with pytest.raises(SupersededError):
        fetch(machine, cancelled=begun.is_set).run()
    assert in_cache(machine) == {}


@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        ([], {"weights": {"mode": "bucket", "uri": "gs://bucket/p", "path": "/mnt/m"}}),
        ([], {"env": {"HF_HOME": "/dev/shm/hf"}}),
        ([], {"env": {"HF_HUB_OFFLINE": "1"}}),
        ([], {"env": {"HTTPS_PROXY": "http://proxy"}}),
        (["--download-dir=/x"], {}),
        (["--load-format=dummy"], {}),
    ],
)
def test_what_the_server_does_not_load_from_the_cache_is_not_fetched(
    machine: Machine, flags: list[str], changes: dict[str, object]
):
    assert fetch(machine, *flags, **changes).run()
    assert machine.hub.asked == []


@pytest.mark.parametrize(
    "linked", ["hub", f"hub/{FOLDER}", f"hub/{FOLDER}/blobs", f"hub/{FOLDER}/snapshots", f"hub/{FOLDER}/refs"]
)
def test_a_link_that_the_container_left_is_not_followed(machine: Machine, tmp_path: Path, linked: str):
    host = tmp_path / "host"
    host.mkdir()
    link = machine.root / "huggingface" / linked
    link.parent.mkdir(parents=True)
    link.symlink_to(host)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        fetch(machine).run()
    assert list(host.iterdir()) == []


def test_a_link_in_the_place_of_a_file_is_replaced(machine: Machine, tmp_path: Path):
    (tmp_path / "secret").write_text(CANARY)
    folder = machine.root / "huggingface" / "hub" / FOLDER
    for place in (
        f"blobs/{stored_name('config.json', FILES['config.json'])}",
        f"snapshots/{COMMIT}/config.json",
        "refs/main",
    ):
        (folder / place).parent.mkdir(parents=True)
        (folder / place).symlink_to(tmp_path / "secret")
    fetch(machine).run()
    assert (tmp_path / "secret").read_text() == CANARY
    assert in_cache(machine) == FILES
    assert (folder / "refs/main").read_text() == COMMIT


class TestAContentThatTheContainerChanged:
    """The container can write the cache. A blob of the right name and size may be another model."""

    def evil(self, machine: Machine, name: str) -> None:
        blob = machine.root / "huggingface/hub" / FOLDER / "blobs" / stored_name(name, FILES[name])
        with blob.open("r+b") as file:
            file.write(bytes(len(FILES[name])))

    @pytest.mark.parametrize("name", ["config.json", "model-00001-of-00002.safetensors"])
    def test_is_downloaded_again(self, machine: Machine, name: str):
        fetch(machine).run()
        fetch(machine).run()  # now the agent has checked it
        self.evil(machine, name)
        machine.hub.asked.clear()
        fetch(machine).run()
        assert in_cache(machine) == FILES
        assert set(asked_files(machine)) == {name}

    def test_is_checked_once_and_again_after_each_change(self, machine: Machine, monkeypatch: pytest.MonkeyPatch):
        fetch(machine).run()
        told = list[str]()
        fetch(machine, told=told).run()
        assert len([line for line in told if "checking" in line]) == len(FILES) - 1, "two files have one content"
        told.clear()
        fetch(machine, told=told).run()
        assert [line for line in told if "checking" in line] == []
        os.utime(machine.root / "huggingface/hub" / FOLDER / "blobs" / stored_name("empty", b""), (0, 0))
        fetch(machine, told=told).run()
        assert [line for line in told if "checking" in line] == [f"{MODEL} checking empty"]

    @pytest.mark.parametrize("at", [f"snapshots/{COMMIT}", f"snapshots/{COMMIT}/assets", f".no_exist/{COMMIT}"])
    @pytest.mark.parametrize(
        "name", ["chat_template.jinja", "model-00003-of-00002.safetensors", "generation_config.json"]
    )
    def test_or_that_the_hub_does_not_list_is_gone(self, machine: Machine, at: str, name: str):
        fetch(machine).run()
        folder = machine.root / "huggingface/hub" / FOLDER
        (folder / at).mkdir(parents=True, exist_ok=True)
        (folder / at / name).write_text("{{ evil }}")
        fetch(machine, is_trial=False).run()
        assert in_cache(machine) == FILES
        assert {path.name for path in folder.iterdir()} == {"blobs", "snapshots", "refs"}
        assert not (machine.root / "huggingface-fetched" / FOLDER).exists()

    @pytest.mark.parametrize("last", range(5))
    def test_does_not_survive_a_crash_while_it_is_replaced(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch, last: int
    ):
        fetch(machine).run()
        extra = machine.root / "huggingface/hub" / FOLDER / "snapshots" / COMMIT / "chat_template.jinja"
        extra.write_text("{{ evil }}")
        self.evil(machine, "config.json")
        renamed = list[object]()

        def rename(*names: object, **folders: int) -> None:
            if len(renamed) == last:
                raise KeyboardInterrupt
            renamed.append(names)
            RENAME(*names, **folders)

        monkeypatch.setattr(os, "rename", rename)
        try:
            fetch(machine).run()
        except KeyboardInterrupt:
            monkeypatch.setattr(os, "rename", RENAME)
            fetch(machine, is_trial=False).run()
        assert in_cache(machine) == FILES

    def test_ends_with_its_document(self, machine: Machine):
        fetch(machine).run()
        prefetch.CHECKED.clear()
        with pytest.raises(SupersededError):
            fetch(machine, cancelled=lambda: bool(machine.hub.asked)).run()


@pytest.mark.parametrize("revision", ["../../../../escaped", "a/../../b", "/tmp/x", "a\\b"])
def test_a_revision_that_leaves_the_cache_is_refused_whatever_the_hub_answers(machine: Machine, revision: str):
    answer = f'{{"sha": "{COMMIT}", "siblings": []}}'.encode()
    machine.hub.meets = lambda path: (200, answer, {}) if "/revision/" in path else None
    with pytest.raises(ServingError, match="invalid name"):
        fetch(machine, f"--revision={revision}").run()
    assert in_cache(machine) == {}


LISTED = '{{"sha": "{commit}", "siblings": [{file}]}}'
UNREADABLE, IMPOSSIBLE = (
    f"The hub's list of {MODEL} cannot be read",
    f"The hub's list of {MODEL} (cannot be read|has an invalid name)",
)
ID = "a" * 40


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("[]", UNREADABLE),
        ("{}", UNREADABLE),
        ("no json", UNREADABLE),
        ('{"sha": 1, "siblings": [{"rfilename": "x"}]}', UNREADABLE),
        (
            LISTED.format(commit=COMMIT, file='{"rfilename": "x", "size": 1, "blobId": "../../../etc/x"}'),
            "is no digest",
        ),
        (LISTED.format(commit=COMMIT, file=f'{{"rfilename": "a", "blobId": "{ID}", "size": Infinity}}'), IMPOSSIBLE),
        (LISTED.format(commit=COMMIT, file=f'{{"rfilename": "a", "blobId": "{ID}", "size": -1}}'), IMPOSSIBLE),
        (LISTED.format(commit=COMMIT, file=f'{{"rfilename": "a\\ud800", "blobId": "{ID}", "size": 1}}'), IMPOSSIBLE),
    ],
)
def test_a_list_that_cannot_be_is_refused_in_one_sentence_and_left_to_the_server(
    machine: Machine, answer: str, said: str
):
    machine.hub.meets = lambda path: (200, answer.encode(), {}) if "/revision/" in path else None
    with pytest.raises(ServingError, match=said):
        fetch(machine).run()
    assert fetch(machine, is_trial=False).run()
