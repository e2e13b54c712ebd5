"""Compiled programs: kept in a folder per set, archived in the bucket, restored on another machine; and every way in which that goes wrong."""

import gzip
import hashlib
import hmac
import io
import os
import shutil
import socket
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.compile_cache import ARCHIVE_METADATA_KEY, ArchiveSettings, parse_archive, programs_key
from contracts.serving_document import ServingDocument, parse_document
from planning.data.exposure import EXPOSURE_ENVIRONMENT, NO_DOMAIN, exposure_arguments
from tests.vm_agent.machine import CANARY, Machine, document, eventually
from vm_agent import archives, compile_cache
from vm_agent.base import ServingError
from vm_agent.cloud import MetadataClient
from vm_agent.compile_cache import (
    CompiledPrograms,
    ProgramArchive,
    program_files,
    program_folder,
    program_volumes,
    remove_old_programs,
)
from vm_agent.signing import SIGNED_PURPOSE, ArchiveSigner

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
    machine = Machine(tmp_path)
    machine.secrets[KEY_VERSION] = SECRET_KEY.encode()
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


def archive(folder: Path, **changes: Any) -> ProgramArchive:
    return ProgramArchive(MetadataClient(), SETTINGS, folder, **{"key": SECRET_KEY, **changes})


def held(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in program_files(folder)}


def archived(machine: Machine) -> list[str]:
    return sorted(name for name in machine.objects if name.startswith("compile-cache/"))


def put(
    machine: Machine,
    data: bytes,
    *,
    prefix: str = PREFIX,
    signed_prefix: str | None = None,
    signed: bytes | None = None,
    key: str = SECRET_KEY,
) -> str:
    """Store an archive that is signed with `key`, as the content `signed` of the folder `signed_prefix`."""
    content = data if signed is None else signed
    signer = ArchiveSigner(key, f"gs://models/{signed_prefix or prefix}".rstrip("/"), ".tar.signed")
    name = prefix + signer.name(hashlib.sha256(content).hexdigest(), len(content))
    machine.objects[name] = data
    return name


def put_unsigned(machine: Machine, data: bytes, *, prefix: str = PREFIX) -> str:
    """Store an archive by the hash of its bytes, which every writer of the bucket can do."""
    name = f"{prefix}{hashlib.sha256(data).hexdigest()}.tar"
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

    def test_the_image_counts_by_its_digest_and_not_by_its_registry(self):
        near = replace(SERVED, image=SERVED.image.replace("us-docker", "europe-west4-docker"))
        newer = replace(SERVED, image=SERVED.image.replace("sha256:a", "sha256:b"))
        assert programs_key(near) == KEY
        assert programs_key(newer) != KEY

    def test_what_closes_a_server_changes_nothing(self):
        """A machine that is updated finds the programs that it compiled before."""
        assert programs_key(with_environment(**EXPOSURE_ENVIRONMENT)) == KEY
        closed = (f"--allowed-media-domains={NO_DOMAIN}", *exposure_arguments(has_api_key=True))
        assert programs_key(replace(SERVED, arguments=(*SERVED.arguments, *closed))) == KEY

    def test_the_environment_counts_but_for_the_places_of_caches(self):
        assert programs_key(with_environment(HF_HOME="/x")) == KEY
        assert programs_key(with_environment(VLLM_TPU_BUCKET_PADDING_GAP="512")) != KEY

    def test_the_metadata_value_is_read_back_and_a_wrong_one_is_one_sentence(self):
        assert parse_archive(SETTINGS.text()) == SETTINGS
        for text in (
            "[]",
            '{"uri": "s3://x/y", "accelerator": "v6e-4"}',
            '{"uri": "gs://bucket/x", "accelerator": "V6E 4"}',
            '{"uri": "gs://bucket/x", "accelerator": "v6e-4"}',
            '{"uri": "gs://bucket/x", "accelerator": "v6e-4", "key": "a-key"}',
        ):
            with pytest.raises(ValueError, match="but must be"):
                parse_archive(text)


def with_arguments(*flags: str) -> ServingDocument:
    return replace(SERVED, arguments=[*SERVED.arguments, *flags])


def with_environment(**variables: str) -> ServingDocument:
    return replace(SERVED, environment={**SERVED.environment, **variables})


class TestOnTheMachine:
    def test_the_folder_of_the_set_lies_where_the_server_keeps_its_programs(self):
        assert program_volumes(SERVED) == [f"--volume=/mnt/compile_cache/{KEY}:/dev/shm/vllm_cache"]

    def test_without_the_servers_variable_there_is_no_folder(self, tmp_path: Path):
        without = replace(SERVED, environment={})
        assert program_volumes(without) == []
        assert program_folder(without, tmp_path) is None

    def test_sets_that_no_server_used_for_long_leave_the_disk(self, tmp_path: Path):
        for name, age_days in (("old", 31), ("young", 29), (KEY, 90)):
            (tmp_path / name).mkdir()
            used_s = time.time() - age_days * 86_400
            os.utime(tmp_path / name, (used_s, used_s))
        remove_old_programs(tmp_path, KEY, time.time())
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([KEY, "young"])
        assert time.time() - (tmp_path / KEY).stat().st_mtime < 86_400


class TestSaveAndRestore:
    def test_another_machine_gets_the_same_programs(self, machine: Machine, tmp_path: Path):
        said = archive(folder_with(tmp_path / "a")).save()
        assert said.startswith("2 files of compiled programs were archived as gs://models/compile-cache/v6e-4/")
        other = tmp_path / "b" / KEY
        assert "were restored from" in archive(other).restore()
        assert held(other) == PROGRAMS

    def test_programs_are_archived_once_and_again_only_if_there_are_new_ones(self, machine: Machine, tmp_path: Path):
        folder = folder_with(tmp_path / "a")
        archive(folder).save()
        assert archive(folder).save() == ""
        (folder / "jit_new-2c-cache").write_bytes(b"compiled later")
        (first,) = archived(machine)
        machine.created[first] = "2026-11-19T10:00:00.000Z"
        assert archive(folder).save().startswith("3 files")
        assert first not in archived(machine)
        assert len(archived(machine)) == 1

    def test_a_restored_set_is_not_archived_again(self, machine: Machine, tmp_path: Path):
        archive(folder_with(tmp_path / "a")).save()
        other = tmp_path / "b" / KEY
        archive(other).restore()
        assert archive(other).save() == ""

    def test_programs_on_the_machine_are_not_fetched(self, machine: Machine, tmp_path: Path):
        put(machine, tar_of({"other": b"x"}))
        assert "already on this machine" in archive(folder_with(tmp_path)).restore()
        assert machine.ranges == []

    def test_the_same_programs_give_the_same_archive_so_that_two_machines_may_save_at_once(
        self, machine: Machine, tmp_path: Path
    ):
        first, second = (archive(folder_with(tmp_path / name)) for name in "ab")
        machine.on_upload = lambda name: machine.objects.update({name: b"of the other machine"})
        assert first.save().startswith("2 files")
        assert second.save().startswith("2 files")
        assert len(archived(machine)) == 1

    def test_the_newest_of_two_is_restored(self, machine: Machine, tmp_path: Path):
        for day, data in ((19, b"old"), (21, b"new"), (20, b"middle")):
            machine.created[put(machine, tar_of({"program": data}))] = f"2026-11-{day}T10:00:00.000Z"
        archive(tmp_path / KEY).restore()
        assert held(tmp_path / KEY) == {"program": b"new"}

    def test_large_archives_come_in_ranges(self, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(archives, "RANGE_BYTES", 4_000)
        put(machine, tar_of({"program": bytes(range(256)) * 40}))
        archive(tmp_path / KEY).restore()
        assert held(tmp_path / KEY) == {"program": bytes(range(256)) * 40}
        assert len(machine.ranges) > 2

    def test_old_archives_of_other_sets_are_deleted_and_weights_are_not(self, machine: Machine, tmp_path: Path):
        old = put(machine, tar_of({"program": b"x"}), prefix="compile-cache/v6e-1/other/")
        young = put(machine, tar_of({"program": b"y"}), prefix="compile-cache/v6e-1/another/")
        machine.created[old] = "2020-01-01T10:00:00.000Z"
        machine.created[young] = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
        machine.objects["gemma/model.safetensors"] = b"weights"
        archive(folder_with(tmp_path)).save()
        assert old not in machine.objects
        assert young in machine.objects
        assert "gemma/model.safetensors" in machine.objects


class TestWhatGoesWrong:
    def test_a_damaged_archive_is_ignored_with_a_line_and_deleted(
        self, machine: Machine, tmp_path: Path, said: list[str]
    ):
        whole = tar_of(PROGRAMS)
        name = put(machine, whole[:-1] + b"x", signed=whole)
        assert "The server will compile them" in archive(tmp_path / KEY, tell=said.append).restore()
        assert held(tmp_path / KEY) == {}
        assert "its bytes do not match the signature" in said[0]
        assert name not in machine.objects

    def test_an_archive_that_was_cut_short_is_not_even_read(self, machine: Machine, tmp_path: Path, said: list[str]):
        name = put(machine, tar_of(PROGRAMS)[:-700], signed=tar_of(PROGRAMS))
        archive(tmp_path / KEY, tell=said.append).restore()
        assert "it has" in said[0]
        assert (machine.ranges, name in machine.objects) == ([], False)

    def test_behind_a_damaged_archive_an_older_whole_one_is_found(
        self, machine: Machine, tmp_path: Path, said: list[str]
    ):
        machine.created[put(machine, b"half", signed=b"full")] = "2026-11-21T10:00:00.000Z"
        machine.denied.add("DELETE")
        put(machine, tar_of(PROGRAMS))
        archive(tmp_path / KEY, tell=said.append).restore()
        assert held(tmp_path / KEY) == PROGRAMS
        assert len(said) == 1

    @pytest.mark.parametrize(
        "data", [b"not a tar at all", gzip.compress(tar_of(PROGRAMS), mtime=0)[:60]], ids=["text", "half"]
    )
    def test_a_file_with_the_right_hash_that_is_no_tar_is_ignored(
        self, machine: Machine, tmp_path: Path, said: list[str], data: bytes
    ):
        put(machine, data)
        archive(tmp_path / KEY, tell=said.append).restore()
        assert held(tmp_path / KEY) == {}
        assert "it is incomplete or damaged" in said[0]

    def test_an_archive_that_another_machine_replaces_in_the_meantime_costs_compile_time(
        self, machine: Machine, tmp_path: Path
    ):
        old = put(machine, tar_of({"program": b"old"}))
        machine.on_download = lambda name: machine.objects.pop(name, None)
        with pytest.raises(ServingError, match="404 No such object"):
            archive(tmp_path / KEY).restore()
        assert (held(tmp_path / KEY), old in machine.objects) == ({}, False)

    @pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "folder/program", ".archived.json", ""])
    def test_an_archive_cannot_write_elsewhere(self, machine: Machine, tmp_path: Path, said: list[str], name: str):
        put(machine, tar_of({name: b"x"}))
        archive(tmp_path / "root" / KEY, tell=said.append).restore()
        assert "is not a regular file" in said[0]
        assert [path.name for path in (tmp_path / "root").rglob("*")] == [KEY]

    def test_what_others_put_into_the_folder_is_never_read_and_is_named_once(
        self, machine: Machine, tmp_path: Path, said: list[str]
    ):
        other = f"compile-cache/v6e-4/{programs_key(with_arguments('--max-model-len=1'))}/"
        planted = {
            "of its own hash": put_unsigned(machine, tar_of(PROGRAMS)),
            "of another key": put(machine, tar_of(PROGRAMS), key="f0" * 32),
            "of another set, renamed in place": put(machine, tar_of(PROGRAMS), signed_prefix=other),
            "of a weaker name": PREFIX + "0" * 64 + ".tar.signed",
            "of a name that is none": PREFIX + "\x1b]52;c;ZXZpbA==\x07" + "x" * 400,
            "below a signed name": put(machine, b"") + "/program",
        }
        for name in planted.values():
            machine.objects[name] = tar_of(PROGRAMS)
            machine.created[name] = "2026-11-22T10:00:00.000Z"
        own = put(machine, tar_of({"own": b"1"}))
        machine.objects.pop(planted["below a signed name"].removesuffix("/program"))
        told: list[str] = []
        archive(tmp_path / KEY, tell=said.append, tell_unsigned=told.append).restore()
        assert held(tmp_path / KEY) == {"own": b"1"}
        assert {one.partition(":")[0] for one in machine.ranges} == {own}
        assert (len(told), said) == (1, [])
        assert told[0].startswith(f"{len(planted)} of the objects in gs://models/{PREFIX[:-1]} are not signed")
        assert told[0].isprintable()
        assert len(told[0]) < 600

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
        unpacked: list[Path] = []
        monkeypatch.setattr(compile_cache, "unpacked_flat", lambda tar, _folder: unpacked.append(tar))
        assert "The server will compile them" in archive(tmp_path / KEY).restore()
        assert (unpacked, held(tmp_path / KEY)) == ([], {})

    @pytest.mark.parametrize("key", ["", " "])
    def test_an_empty_key_signs_nothing(self, machine: Machine, tmp_path: Path, key: str):
        put(machine, tar_of(PROGRAMS), key="x")
        with pytest.raises(ValueError, match="key that signs archives is empty"):
            archive(tmp_path / KEY, key=key).restore()
        assert machine.ranges == []

    def test_a_folder_full_of_junk_costs_a_bounded_number_of_calls(
        self, machine: Machine, tmp_path: Path, said: list[str]
    ):
        for number in range(2 * archives.MOST_PAGES + 20):  # the bucket of these tests has pages of two
            machine.objects[f"{PREFIX}{number:04}"] = b"junk"
        assert "The server will compile them" in archive(tmp_path / KEY, tell=said.append).restore()
        assert "has more than 20 objects. The others are ignored" in said[0]
        for name in list(machine.objects):
            del machine.objects[name]
        for number in range(archives.MOST_READ + 2):
            put(machine, b"-" * 9, signed=f"content {number}".encode())
        machine.denied.add("DELETE")
        archive(tmp_path / KEY, tell=said.append).restore()
        assert len(machine.ranges) == archives.MOST_READ

    def test_junk_does_not_stop_the_next_archive(self, machine: Machine, tmp_path: Path):
        unsigned, foreign = put_unsigned(machine, b"unsigned"), put(machine, b"foreign", key="f0" * 32)
        machine.objects[f"{PREFIX}notes.txt"] = b"of a person"
        for name in machine.objects:
            machine.created[name] = "2026-11-19T10:00:00.000Z"
        machine.on_upload = lambda name: machine.created.update({name: "2026-11-20T10:00:00.000Z"})
        assert archive(folder_with(tmp_path / "a")).save().startswith("2 files")
        assert {unsigned, foreign, f"{PREFIX}notes.txt"} <= set(machine.objects)
        assert "were restored from" in archive(tmp_path / "b" / KEY).restore()

    def test_another_key_makes_the_archives_before_it_invalid(self, machine: Machine, tmp_path: Path, said: list[str]):
        archive(folder_with(tmp_path / "a")).save()
        rotated = archive(tmp_path / "b" / KEY, key="f0" * 32, tell_unsigned=said.append)
        assert "No signed archive" in rotated.restore()
        assert (len(said), machine.ranges) == (1, [])

    def test_an_archive_of_other_options_is_not_taken(self, machine: Machine, tmp_path: Path):
        put(
            machine,
            tar_of(PROGRAMS),
            prefix=f"compile-cache/v6e-4/{programs_key(with_arguments('--max-model-len=1'))}/",
        )
        put(machine, tar_of(PROGRAMS), prefix=f"compile-cache/v6e-1/{KEY}/")
        assert "No signed archive" in archive(tmp_path / KEY).restore()
        assert machine.ranges == []

    def test_an_upload_that_arrives_with_other_bytes_is_deleted_and_tried_again_later(
        self, machine: Machine, tmp_path: Path
    ):
        folder = folder_with(tmp_path)
        machine.on_upload = machine.wrong_md5.add
        with pytest.raises(ServingError, match="was damaged in the upload"):
            archive(folder).save()
        assert archived(machine) == []
        machine.on_upload = lambda name: None
        machine.wrong_md5.clear()
        assert archive(folder).save().startswith("2 files")

    def test_an_upload_that_breaks_off_leaves_nothing_and_is_repeated(
        self, machine: Machine, tmp_path: Path, waits: list[float]
    ):
        breaks = iter([True, False])

        def cut(_name: str) -> None:
            if next(breaks):
                raise ConnectionResetError

        machine.on_upload = cut
        assert archive(folder_with(tmp_path)).save().startswith("2 files")
        assert len(archived(machine)) == 1
        assert waits == [0.5]

    def test_a_program_with_a_secret_in_it_is_not_archived(self, machine: Machine, tmp_path: Path):
        folder = folder_with(tmp_path, {**PROGRAMS, "leaky": f"x{CANARY}y".encode()})
        with pytest.raises(ServingError, match="a file contains a secret, so they were not archived"):
            archive(folder, secrets={CANARY}).save()
        assert archived(machine) == []

    def test_links_are_not_archived(self, machine: Machine, tmp_path: Path):
        (tmp_path / "token").write_text(CANARY)
        folder = folder_with(tmp_path / "a")
        (folder / "link").symlink_to(tmp_path / "token")
        archive(folder).save()
        (name,) = archived(machine)
        assert CANARY.encode() not in machine.objects[name]

    def test_a_disk_that_is_too_full_is_told_and_nothing_is_fetched(
        self, machine: Machine, tmp_path: Path, said: list[str]
    ):
        put(machine, tar_of(PROGRAMS))
        archive(tmp_path / KEY, tell=said.append, spare_bytes=1 << 60).restore()
        assert "GiB are free" in said[0]
        assert machine.ranges == []

    def test_a_disk_that_fills_up_while_writing_leaves_no_part(
        self, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        put(machine, tar_of(PROGRAMS))

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(shutil, "copyfileobj", full)
        with pytest.raises(OSError, match="No space left"):
            archive(tmp_path / KEY).restore()
        assert list((tmp_path / KEY).iterdir()) == []


def programs(root: Path, said: list[str], **changes: Any) -> CompiledPrograms:
    RUNNING.append(CompiledPrograms(MetadataClient(), set(), said.append, root, settle_s=0.05, again_s=0.05, **changes))
    return RUNNING[-1]


class TestBesideTheServer:
    """`CompiledPrograms`: nothing that goes wrong reaches the server."""

    def restored(self, root: Path, said: list[str]) -> None:
        thread = programs(root, said).restore_beside(SERVED)
        thread.join(60)
        assert not thread.is_alive()

    def test_programs_are_restored_beside_the_pull_and_saved_when_ready(
        self, machine: Machine, tmp_path: Path, said: list[str]
    ):
        machine.attributes[ARCHIVE_METADATA_KEY] = SETTINGS.text()
        folder_with(tmp_path / "a")
        first = programs(tmp_path / "a", said)
        first.server_is_ready(SERVED)
        eventually(lambda: archived(machine), "the programs are archived")
        self.restored(tmp_path / "b", said)
        assert held(tmp_path / "b" / KEY) == PROGRAMS

    def test_programs_that_the_server_compiles_later_are_saved_too(
        self, machine: Machine, tmp_path: Path, said: list[str]
    ):
        machine.attributes[ARCHIVE_METADATA_KEY] = SETTINGS.text()
        folder = folder_with(tmp_path)
        programs(tmp_path, said).server_is_ready(SERVED)
        eventually(lambda: any("2 files" in line for line in said), "the first programs are archived")
        (folder / "later").write_bytes(b"x")
        eventually(lambda: any("3 files" in line for line in said), "the later program is archived")

    def test_the_folder_of_a_server_that_runs_for_long_stays_in_use(
        self, machine: Machine, tmp_path: Path, said: list[str]
    ):
        folder = folder_with(tmp_path)
        os.utime(folder, (0, 0))
        programs(tmp_path, said).server_is_ready(SERVED)
        eventually(lambda: folder.stat().st_mtime > 0, "the folder is marked as used")

    def test_a_program_that_the_server_deletes_meanwhile_does_not_end_the_archiving(
        self, machine: Machine, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
    ):
        machine.attributes[ARCHIVE_METADATA_KEY] = SETTINGS.text()
        folder_with(tmp_path)
        listed, gone = compile_cache.program_files, [tmp_path / KEY / "gone"] * 2
        monkeypatch.setattr(
            compile_cache, "program_files", lambda folder: listed(folder) + ([gone.pop()] if gone else [])
        )
        programs(tmp_path, said).server_is_ready(SERVED)
        eventually(lambda: archived(machine), "the programs are archived")

    def test_without_an_archive_the_bucket_is_not_asked(self, machine: Machine, tmp_path: Path, said: list[str]):
        machine.denied |= {"GET", "POST"}
        self.restored(tmp_path, said)
        assert said == []

    def test_a_refused_read_is_one_line_that_says_what_to_grant(
        self, machine: Machine, tmp_path: Path, said: list[str]
    ):
        machine.attributes[ARCHIVE_METADATA_KEY] = SETTINGS.text()
        machine.denied.add("GET")
        self.restored(tmp_path, said)
        (line,) = said
        assert "403" in line
        assert "roles/storage.objectUser" in line
        assert "The server is not affected." in line

    def test_a_key_that_may_not_be_read_costs_compile_time_and_a_line(
        self, machine: Machine, tmp_path: Path, said: list[str]
    ):
        machine.attributes[ARCHIVE_METADATA_KEY] = SETTINGS.text()
        machine.secrets.clear()
        put(machine, tar_of(PROGRAMS))
        self.restored(tmp_path, said)
        (line,) = said
        assert KEY_VERSION in line
        assert "roles/secretmanager.secretAccessor" in line
        assert "storage.objectUser" not in line
        assert machine.ranges == []

    def test_unsigned_archives_are_logged_and_published_until_a_restore_finds_none(
        self, machine: Machine, tmp_path: Path, said: list[str]
    ):
        machine.attributes[ARCHIVE_METADATA_KEY] = SETTINGS.text()
        planted, published = put_unsigned(machine, tar_of(PROGRAMS)), list[str]()
        one = programs(tmp_path, said, publish_unsigned=published.append)
        one.restore_beside(SERVED).join(60)
        assert published == ["", said[0]]
        assert "1 of the objects in" in said[0]
        del machine.objects[planted]
        one.restore_beside(SERVED).join(60)
        assert published[2:] == [""]

    def test_the_key_is_masked_in_every_line_and_in_no_archive_and_no_text_of_the_program(
        self, machine: Machine, tmp_path: Path, said: list[str]
    ):
        machine.attributes[ARCHIVE_METADATA_KEY] = SETTINGS.text()
        folder_with(tmp_path, {**PROGRAMS, "leaky": f"x{SECRET_KEY}y".encode()})
        one = programs(tmp_path, said)
        one.server_is_ready(SERVED)
        eventually(lambda: said, "the save is refused")
        assert set(said) == {
            "Compiled programs: a file contains a secret, so they were not archived. The server is not affected."
        }
        assert one.secrets == {SECRET_KEY}
        assert SECRET_KEY not in f"{one} {archive(tmp_path)} {archive(tmp_path).archives}"

    def test_a_refused_save_is_one_line_and_the_programs_stay(self, machine: Machine, tmp_path: Path, said: list[str]):
        machine.attributes[ARCHIVE_METADATA_KEY] = SETTINGS.text()
        machine.denied.add("POST")
        folder = folder_with(tmp_path)
        one = programs(tmp_path, said)
        one.again_s = 600
        one.server_is_ready(SERVED)
        eventually(lambda: said, "the refusal is reported")
        assert "roles/storage.objectUser" in said[0]
        assert held(folder) == PROGRAMS

    def test_a_bucket_that_cannot_be_reached_is_one_line(
        self,
        machine: Machine,
        tmp_path: Path,
        said: list[str],
        waits: list[float],
        monkeypatch: pytest.MonkeyPatch,
    ):
        machine.attributes[ARCHIVE_METADATA_KEY] = SETTINGS.text()
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", "http://127.0.0.1:1/storage/v1/")
        self.restored(tmp_path, said)
        (line,) = said
        assert line.startswith("Compiled programs: GET /storage/v1/b/models/o failed:")
        assert "Grant" not in line
        assert waits == [0.5, 1.0, 2.0, 4.0]

    def test_a_bucket_that_never_answers_does_not_hold_up_the_server(
        self, machine: Machine, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
    ):
        machine.attributes[ARCHIVE_METADATA_KEY] = SETTINGS.text()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/storage/v1/"
            monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", url)
            one = programs(tmp_path, said, limit_s=0.2)
            one.wait_for(one.restore_beside(SERVED), lambda: False)
            assert said == ["Compiled programs: no archive was restored within 0.2 s. The server starts without one."]

    def test_a_change_that_is_cancelled_waits_for_no_archive(
        self, machine: Machine, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
    ):
        machine.attributes[ARCHIVE_METADATA_KEY] = SETTINGS.text()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/storage/v1/"
            monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", url)
            one = programs(tmp_path, said, limit_s=float("inf"))
            restore = one.restore_beside(SERVED)
            one.wait_for(restore, lambda: True)
            assert restore.is_alive()
            assert said == []

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
        machine.attributes[ARCHIVE_METADATA_KEY] = SETTINGS.text()
        one = programs(tmp_path, said)
        saver = one.server_is_ready(SERVED)
        one.restore_beside(with_arguments("--max-model-len=1")).join(60)
        saver.join(60)
        assert not saver.is_alive()
