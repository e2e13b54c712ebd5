"""The simulated server that the smoke checks are tested with, and the file of its faults."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from localcloud.tests.running.running_server import server

CHAT: Final = "/v1/chat/completions"
EACH: Final = 1000
ADAPTERS: Final = ("sql", "poems")


@dataclass(frozen=True)
class Served:
    """A running server."""

    url: str
    faults: Path

    def plant(self, *faults: Mapping[str, object]) -> None:
        """Plant faults, by default in each chat."""
        rows = [{"path": CHAT, "count": 1 if "nth" in fault else EACH, **fault} for fault in faults]
        self.faults.write_text(json.dumps(rows))


@contextmanager
def serving(folder: Path, *words: str, **variables: str) -> Iterator[Served]:
    """Run a server with more words, whose faults are in a file of the folder."""
    around = {"VLLM_SIM_TTFT_S": "0.002", "VLLM_SIM_TPOT_S": "0.0004", "VLLM_SIM_PATHS": json.dumps({"/": str(folder)})}
    faults = folder / "faults.json"
    with server(
        ["vllm", "serve", "simulated/tiny", *words], VLLM_SIM_FAULTS=str(faults), **{**around, **variables}
    ) as url:
        yield Served(url, faults)


def words_of_features(folder: Path) -> Sequence[str]:
    """Return the words of a server with every feature. Its adapters are in the folder."""
    for name in ADAPTERS:
        adapter = folder / "adapters" / name
        adapter.mkdir(parents=True)
        (adapter / "adapter_config.json").write_text(json.dumps({"r": 16, "lora_alpha": 32}))
    return (
        *(
            "--max-model-len=8192",
            "--enable-auto-tool-choice",
            "--tool-call-parser=gemma4",
            "--reasoning-parser=gemma4",
        ),
        '--limit-mm-per-prompt={"image": 2, "video": 1, "audio": 1}',
        *("--enable-lora", "--lora-modules", *(f"{name}=/adapters/{name}" for name in ADAPTERS)),
        '--speculative-config={"method": "ngram", "num_speculative_tokens": 3}',
    )


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with every feature."""
    folder = tmp_path_factory.mktemp("machine")
    with serving(folder, *words_of_features(folder)) as found:
        yield found


@pytest.fixture
def served(running: Served) -> Served:
    """The server with every feature, without a fault."""
    running.plant()
    return running
