"""Folders that a container can write: whatever it plants there, the agent writes, reads and deletes nothing elsewhere."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gemma_serving.contracts.compile_cache import ARCHIVE_METADATA_KEY, programs_key
from gemma_serving.contracts.serving_document import parse_document
from gemma_serving.vm_agent import mounted
from gemma_serving.vm_agent.archives import Archive
from gemma_serving.vm_agent.base import ServingError
from gemma_serving.vm_agent.cloud import MetadataClient
from gemma_serving.vm_agent.compile_cache import program_files
from gemma_serving.vm_agent.containers import remove_other_models
from gemma_serving.vm_agent.mounted import open_mounted
from gemma_serving.vm_agent.prefetch import HubFetch, HubModel
from tests.vm_agent.machine import CANARY, Machine, document
from tests.vm_agent.test_compile_cache import KEY_VERSION, PROGRAMS, SECRET_KEY, SETTINGS, restored, saved

SERVED = parse_document(document(8000))
KEY = programs_key(SERVED)
WRITTEN = (".archived.json", "jit_sampler-1b-cache", "new", ".part", "tar")
"""Names in a folder of programs: a program that is restored, and others."""
MODEL = "models--org--old"


def host(root: Path) -> Path:
    """Files of the machine, as a folder that looks like a model and like programs."""
    folder = root / "host"
    (folder / MODEL / "blobs").mkdir(parents=True)
    (folder / "token").write_text(CANARY)
    (folder / MODEL / "blobs" / "weights").write_text(CANARY)
    return folder


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def harm(machine: Machine, root: Path) -> list[str]:
    """Plant a link below each mount under every name that the agent writes or reads there; return what the agent did elsewhere."""
    files, found = host(root), list[str]()
    before = content(files)
    programs, cache = root / "cache" / KEY, root / "huggingface"
    machine.secrets[KEY_VERSION] = SECRET_KEY.encode()
    made = root / "made" / KEY
    made.mkdir(parents=True)
    for name, data in PROGRAMS.items():
        (made / name).write_bytes(data)
    machine.attributes[ARCHIVE_METADATA_KEY] = SETTINGS.text()
    saved(made.parent)
    for name in WRITTEN:
        programs.mkdir(parents=True, exist_ok=True)
        (programs / name).symlink_to(files / "token")
    restored(programs.parent)
    (programs / "program").write_bytes(b"of the server")
    found += [line for line in saved(programs.parent).splitlines() if "not affected" in line]
    for folder in (cache / "hub", cache / "hub" / MODEL):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.symlink_to(files if folder.name == "hub" else files / MODEL)
        fetch = HubFetch(SERVED, dict, print, lambda: False, cache)
        with pytest.raises(ServingError, match=r"only .* free"):
            fetch._has_room(HubModel("org/new"), float("inf"))
        remove_other_models(SERVED, cache=cache)
        if folder.is_symlink():
            folder.unlink()
    after = content(files)
    found += [
        f"host: {name} was {'changed' if name in after else 'deleted'}"
        for name in before
        if after.get(name) != before[name]
    ]
    found += [f"bucket: {name}" for name, data in machine.objects.items() if CANARY.encode() in data]
    return found


def test_links_below_a_mount_reach_nothing_else(machine: Machine, tmp_path: Path):
    assert harm(machine, tmp_path) == []


def link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def pipe(path: Path, _target: Path) -> None:
    os.mkfifo(path)


def folder(path: Path, _target: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("plant", [link, pipe, folder])
def test_a_file_that_is_swapped_between_check_and_open_is_not_read(
    tmp_path: Path, plant: Callable[[Path, Path], None], monkeypatch: pytest.MonkeyPatch
):
    """A pipe without a writer would hold an open without O_NONBLOCK for ever."""
    (tmp_path / "token").write_text(CANARY)
    programs = tmp_path / KEY
    programs.mkdir()
    (programs / "program").write_bytes(b"first")
    real = os.open

    def swapped(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if str(path) == "program":
            (programs / "program").unlink()
            plant(programs / "program", tmp_path / "token")
        return real(path, flags, mode, dir_fd=dir_fd)

    listed = program_files(programs)
    monkeypatch.setattr(mounted.os, "open", swapped)
    with pytest.raises(OSError, match=r"program|Too many|symbolic"):
        Archive(MetadataClient(), "gs://b/f", programs, "k").packed(listed)
    monkeypatch.undo()


def test_a_folder_that_is_a_link_is_neither_listed_nor_read(tmp_path: Path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "program").write_text(CANARY)
    (tmp_path / KEY).symlink_to(tmp_path / "files")
    assert program_files(tmp_path / KEY) == []
    with pytest.raises(NotADirectoryError):
        open_mounted(tmp_path / KEY / "program")


def test_a_model_with_links_pipes_and_deep_folders_is_deleted_or_left(tmp_path: Path):
    hub, files = tmp_path / "cache" / "hub", host(tmp_path)
    (hub / "models--a--b" / "snapshots").mkdir(parents=True)
    (hub / "models--a--b" / "snapshots" / "link").symlink_to(files)
    os.mkfifo(hub / "models--a--b" / "pipe")
    (hub / "models--c--d" / "/".join("x" * 60)).mkdir(parents=True)
    remove_other_models(replace(SERVED, arguments=()), cache=tmp_path / "cache")
    assert [path.name for path in hub.iterdir()] == ["models--c--d"]
    assert content(files) == {"token": CANARY, f"{MODEL}/blobs/weights": CANARY}
