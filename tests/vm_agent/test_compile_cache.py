"""Compiled programs: kept in a folder per set, archived in the bucket, restored on another machine; and every way in which that goes wrong."""

import hashlib
import hmac
import io
import socket
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gemma_serving.contracts.compile_cache import ARCHIVE_METADATA_KEY, ArchiveSettings, programs_key
from gemma_serving.contracts.serving_document import ServingDocument, parse_document
from gemma_serving.planning.data.exposure import EXPOSURE_ENVIRONMENT, NO_DOMAIN, exposure_arguments
from gemma_serving.vm_agent import archives
from gemma_serving.vm_agent.archives import SIGNED_PURPOSE, Archive
from gemma_serving.vm_agent.clock import CLOCK, AgentClock
from gemma_serving.vm_agent.cloud import MetadataClient
from gemma_serving.vm_agent.compile_cache import CompiledPrograms, program_files, program_folder, program_volumes
from gemma_serving.vm_agent.publishing import PhasePublisher
from tests.records import replace
from tests.vm_agent.conftest import Unwaited
from tests.vm_agent.machine import CANARY, Machine, document

SECRET_KEY = "0f" * 32
KEY_VERSION = "projects/p/secrets/archive-key/versions/1"
SETTINGS = ArchiveSettings("gs://models/compile-cache", "v6e-4", KEY_VERSION)
SERVED = parse_document(document(8000))
KEY = programs_key(SERVED)
PREFIX = f"compile-cache/v6e-4/{KEY}/"
RUNNING: list[CompiledPrograms] = []
PROGRAMS = {"jit_backbone-0a-cache": b"first program", "jit_sampler-1b-cache": b"second program"}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    machine = Machine(tmp_path, requests=Unwaited())
    machine.secrets[KEY_VERSION] = SECRET_KEY.encode()
    machine.attributes[ARCHIVE_METADATA_KEY] = SETTINGS.text()
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    yield machine
    while RUNNING:
        RUNNING.pop().stop()
    machine.close()


@pytest.fixture
def said() -> list[str]:
    return []


def folder_with(root: Path, programs: dict[str, bytes] = PROGRAMS) -> Path:
    folder = root / KEY
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in programs.items():
        (folder / name).write_bytes(data)
    return folder


def programs(root: Path, said: list[str], requests: AgentClock = CLOCK, **changes: Any) -> CompiledPrograms:
    metadata = MetadataClient(clock=requests)
    publisher = PhasePublisher(metadata, tell=said.append)
    RUNNING.append(CompiledPrograms(metadata, publisher, root, settle_s=0.05, again_s=0.05, **changes))
    return RUNNING[-1]


def restored(root: Path) -> str:
    """Restore the programs of the document into a folder below `root`; return what is said."""
    programs(root, said := []).restore(SERVED)
    return "\n".join(said)


def saved(root: Path) -> str:
    """Archive the programs of the document below `root`; return what is said."""
    programs(root, said := []).save(SERVED)
    return "\n".join(said)


def held(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in program_files(root / KEY)}


def archived(machine: Machine) -> list[str]:
    return sorted(name for name in machine.objects if name.startswith("compile-cache/"))


def put(
    machine: Machine,
    data: bytes,
    *,
    prefix: str = PREFIX,
    signed: bytes | None = None,
    key: str = SECRET_KEY,
) -> str:
    """Store an archive that is signed with `key`, as the content `signed`."""
    content = data if signed is None else signed
    signer = Archive(MetadataClient(), f"gs://models/{prefix}".rstrip("/"), Path(), key)
    name = prefix + signer.name(hashlib.sha256(content).hexdigest(), len(content))
    machine.objects[name] = data
    return name


def tar_of(entries: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


class TestTheKey:
    @pytest.mark.parametrize(
        "flag",
        [
            "--served-model-name=other",
            "--port=9000",
            "--tool-call-parser=gemma4",
            "--no-enable-log-requests",
            "--load_format=auto",
        ],
    )
    def test_flags_of_the_http_server_and_of_loading_change_nothing(self, flag: str):
        assert programs_key(with_arguments(flag)) == KEY

    @pytest.mark.parametrize(
        "flag", ["--max-model-len=8192", "--max-num-seqs=8", "--kv-cache-dtype=fp8", "--a-new-flag"]
    )
    def test_any_other_flag_is_another_set(self, flag: str):
        assert programs_key(with_arguments(flag)) != KEY

    def test_what_closes_a_server_changes_nothing(self):
        """A machine that is updated finds the programs that it compiled before."""
        assert programs_key(with_environment(**EXPOSURE_ENVIRONMENT)) == KEY
        closed = (f"--allowed-media-domains={NO_DOMAIN}", *exposure_arguments(has_api_key=True))
        assert programs_key(replace(SERVED, arguments=(*SERVED.arguments, *closed))) == KEY

    def test_the_environment_counts_but_for_the_places_of_caches(self):
        assert programs_key(with_environment(HF_HOME="/x")) == KEY
        assert programs_key(with_environment(VLLM_TPU_BUCKET_PADDING_GAP="512")) != KEY


def with_arguments(*flags: str) -> ServingDocument:
    return replace(SERVED, arguments=[*SERVED.arguments, *flags])


def with_environment(**variables: str) -> ServingDocument:
    return replace(SERVED, environment={**SERVED.environment, **variables})


class TestOnTheMachine:
    def test_without_the_servers_variable_there_is_no_folder(self, tmp_path: Path):
        without = replace(SERVED, environment={})
        assert program_volumes(without) == []
        assert program_folder(without, tmp_path) is None


class TestSaveAndRestore:
    def test_programs_are_archived_once_and_again_only_if_there_are_new_ones(self, machine: Machine, tmp_path: Path):
        folder = folder_with(tmp_path)
        saved(tmp_path)
        assert saved(tmp_path) == ""
        (folder / "jit_new-2c-cache").write_bytes(b"compiled later")
        (first,) = archived(machine)
        assert saved(tmp_path).startswith("3 files")
        assert first not in archived(machine)
        assert len(archived(machine)) == 1

    def test_a_restored_set_is_not_archived_again(self, machine: Machine, tmp_path: Path):
        folder_with(tmp_path / "a")
        saved(tmp_path / "a")
        restored(tmp_path / "b")
        machine.denied.add("POST")
        assert saved(tmp_path / "b") == ""

    def test_programs_on_the_machine_are_not_fetched(self, machine: Machine, tmp_path: Path):
        put(machine, tar_of({"other": b"x"}))
        folder_with(tmp_path)
        assert "already on this TPU VM" in restored(tmp_path)
        assert machine.ranges == []

    def test_the_same_programs_give_the_same_archive_so_that_two_machines_may_save_at_once(
        self, machine: Machine, tmp_path: Path
    ):
        folder_with(tmp_path / "a")
        folder_with(tmp_path / "b")
        other = iter([True])
        machine.on_upload = lambda _name: saved(tmp_path / "b") if next(other, None) else None
        assert saved(tmp_path / "a").startswith("2 files")
        assert len(archived(machine)) == 1

    def test_the_newest_of_two_is_restored(self, machine: Machine, tmp_path: Path):
        for day, data in ((19, b"old"), (21, b"new"), (20, b"middle")):
            machine.created[put(machine, tar_of({"program": data}))] = f"2026-11-{day}T10:00:00.000Z"
        restored(tmp_path)
        assert held(tmp_path) == {"program": b"new"}

    def test_a_set_beyond_the_limit_is_neither_archived_nor_restored(
        self, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        put(machine, tar_of(PROGRAMS))
        monkeypatch.setattr(archives, "MOST_BYTES", 3)
        assert "exceeds 3 bytes" in restored(tmp_path)
        folder_with(tmp_path)
        assert "so they were not archived" in saved(tmp_path)
        assert (machine.ranges, len(archived(machine))) == ([], 1)


class TestWhatGoesWrong:
    @pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "folder/program", ".archived.json", ""])
    def test_an_archive_cannot_write_elsewhere(self, machine: Machine, tmp_path: Path, name: str):
        put(machine, tar_of({name: b"x"}))
        assert "is not a regular file" in restored(tmp_path / "root")
        assert list((tmp_path / "root").rglob("*")) == []

    @pytest.mark.parametrize("kind", ["foreign", "renamed", "changed", "of the same size", "signed without a key"])
    def test_a_planted_archive_is_never_unpacked(
        self, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
    ):
        """A writer of the bucket has an archive of this stack, but not its key."""
        evil, other = tar_of({"evil": b"code"}), f"compile-cache/v6e-4/{'0' * 32}/"
        own = put(machine, tar_of(PROGRAMS))
        digest, size, signature = own.removeprefix(PREFIX).removesuffix(".tar.signed").split("-")
        evil_name = f"{hashlib.sha256(evil).hexdigest()}-{len(evil)}"
        del machine.objects[own]
        if kind == "foreign":
            put(machine, evil, key="f0" * 32)
        elif kind == "renamed":
            machine.objects[f"{PREFIX}{put(machine, evil, prefix=other).removeprefix(other)}"] = evil
        elif kind == "changed":
            machine.objects |= {own: evil, f"{PREFIX}{evil_name}-{signature}.tar.signed": evil}
        elif kind == "of the same size":
            machine.objects[own] = evil.ljust(int(size), b"\0")
        else:
            signed = hmac.new(b"", f"{SIGNED_PURPOSE}\ngs://models/{PREFIX[:-1]}".encode(), hashlib.sha256).hexdigest()
            machine.objects |= {
                f"{PREFIX}{evil_name}-{signed}.tar.signed": evil,
                f"{PREFIX}{digest}-{size}-.tar.signed": evil,
            }
        unpacked: list[bytes] = []
        monkeypatch.setattr(Archive, "_unpack", lambda _archive, tar: unpacked.append(tar))
        restored(tmp_path)
        assert (unpacked, held(tmp_path)) == ([], {})

    @pytest.mark.parametrize("key", [b"", b" "])
    def test_an_empty_key_signs_nothing(self, machine: Machine, tmp_path: Path, key: bytes):
        put(machine, tar_of(PROGRAMS), key="x")
        machine.secrets[KEY_VERSION] = key
        assert "empty" in restored(tmp_path)
        assert machine.ranges == []

    def test_a_program_with_a_secret_in_it_is_not_archived(self, machine: Machine, tmp_path: Path, said: list[str]):
        folder_with(tmp_path, {**PROGRAMS, "leaky": f"x{CANARY}y".encode()})
        one = programs(tmp_path, said)
        one.publisher.secrets.add(CANARY)
        one.save(SERVED)
        assert "a file contains a secret, so they were not archived" in said[0]
        assert archived(machine) == []

    def test_links_are_not_archived(self, machine: Machine, tmp_path: Path):
        (tmp_path / "token").write_text(CANARY)
        folder = folder_with(tmp_path)
        (folder / "link").symlink_to(tmp_path / "token")
        saved(tmp_path)
        (name,) = archived(machine)
        assert CANARY.encode() not in machine.objects[name]


class TestBesideTheServer:
    """Nothing that goes wrong reaches the server."""

    def restored(self, root: Path, said: list[str], requests: AgentClock = CLOCK) -> None:
        thread = programs(root, said, requests).restore_beside(SERVED)
        thread.join(60)
        assert not thread.is_alive()

    def test_programs_that_the_server_compiles_later_are_saved_too(
        self, machine: Machine, tmp_path: Path, said: list[str]
    ):
        folder = folder_with(tmp_path)
        programs(tmp_path, said).server_is_ready(SERVED)
        machine.until(lambda: any("2 files" in line for line in said), "the first programs are archived")
        (folder / "later").write_bytes(b"x")
        machine.until(lambda: any("3 files" in line for line in said), "the later program is archived")

    def test_without_an_archive_the_bucket_is_not_asked(self, machine: Machine, tmp_path: Path, said: list[str]):
        del machine.attributes[ARCHIVE_METADATA_KEY]
        machine.denied |= {"GET", "POST"}
        self.restored(tmp_path, said)
        assert said == []

    def test_the_key_is_masked_in_every_line_and_in_no_archive_and_no_text_of_the_program(
        self, machine: Machine, tmp_path: Path, said: list[str]
    ):
        folder_with(tmp_path, {**PROGRAMS, "leaky": f"x{SECRET_KEY}y".encode()})
        one = programs(tmp_path, said)
        one.server_is_ready(SERVED)
        machine.until(lambda: said, "the save is refused")
        assert set(said) == {
            "Compiled programs: a file contains a secret, so they were not archived. The server is not affected."
        }
        assert one.publisher.secrets == {SECRET_KEY}
        assert SECRET_KEY not in f"{one} {one._archive(SERVED)}"

    def test_a_refused_save_is_one_line_and_the_programs_stay(self, machine: Machine, tmp_path: Path, said: list[str]):
        machine.denied.add("POST")
        folder_with(tmp_path)
        one = programs(tmp_path, said)
        one.again_s = 600
        one.server_is_ready(SERVED)
        machine.until(lambda: said, "the refusal is reported")
        assert "roles/storage.objectUser" in said[0]
        assert held(tmp_path) == PROGRAMS

    def test_a_bucket_that_cannot_be_reached_is_one_line(
        self,
        machine: Machine,
        tmp_path: Path,
        said: list[str],
        waits: list[float],
        monkeypatch: pytest.MonkeyPatch,
    ):
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", "http://127.0.0.1:1/storage/v1/")
        self.restored(tmp_path, said, machine.requests)
        (line,) = said
        assert line.startswith("Compiled programs: GET /storage/v1/b/models/o failed:")
        assert "Grant" not in line
        assert waits == [0.5, 1.0, 2.0, 4.0]

    @pytest.mark.parametrize(
        ("limit_s", "is_cancelled", "told"),
        [
            (0.2, False, ["Compiled programs: no archive was restored within 0.2 s. The server starts without one."]),
            (float("inf"), True, []),
        ],
        ids=["limit", "cancelled"],
    )
    def test_a_bucket_that_never_answers_holds_up_neither_the_server_nor_a_newer_change(  # noqa: PLR0917 - a table
        self,
        machine: Machine,
        tmp_path: Path,
        said: list[str],
        monkeypatch: pytest.MonkeyPatch,
        limit_s: float,
        is_cancelled: bool,
        told: list[str],
    ):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/storage/v1/"
            monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", url)
            one = programs(tmp_path, said, machine.requests, limit_s=limit_s)
            restore = one.restore_beside(SERVED)
            one.wait_for(restore, lambda: is_cancelled)
            assert restore.is_alive()
            assert said == told
        restore.join(60)  # it writes that the bucket is gone, and not into another test

    @pytest.mark.parametrize(
        "text", ["not json", '{"uri": 3}', '{"uri": "gs://b-b-b/x", "accelerator": "v6e-4", "more": 1}']
    )
    def test_a_metadata_value_that_cannot_be_read_is_one_line(
        self, machine: Machine, tmp_path: Path, said: list[str], text: str
    ):
        machine.attributes[ARCHIVE_METADATA_KEY] = text
        self.restored(tmp_path, said)
        assert len(said) == 1

    def test_a_newer_document_ends_the_saving_of_the_older(self, machine: Machine, tmp_path: Path, said: list[str]):
        one = programs(tmp_path, said)
        saver = one.server_is_ready(SERVED)
        one.restore_beside(with_arguments("--max-model-len=1")).join(60)
        saver.join(60)
        assert not saver.is_alive()


def test_only_an_archive_that_this_stack_signed_is_deleted(monkeypatch: pytest.MonkeyPatch):
    called: list[str] = []
    monkeypatch.setattr(archives, "google", lambda _metadata, url, *, verb: called.append(f"{verb} {url}"))
    own = Archive(MetadataClient(), "gs://models/m", Path(), "a key")
    other = Archive(MetadataClient(), "gs://models/m", Path(), "another key")
    for name in ("weights.safetensors", other.name("0" * 64, 1), own.name("0" * 64, 1)):
        own._delete(name)
    assert [call.rpartition("%2F")[2] for call in called] == [own.name("0" * 64, 1)]
