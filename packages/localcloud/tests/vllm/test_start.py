"""Memory, loads and caches of the simulated server's start, by the simulated seconds of its log."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localcloud.tests.vllm.planned_start import start_of
from localcloud.vllm.boot import KilledError, Start
from localcloud.vllm.recorded import find_model
from localcloud.vllm.server import _take
from localcloud.vllm.settings import VariableError

NAME = "gemma-4-26B-A4B-it-qat-w4a16-ct"
FLAGS = "--max-model-len=8192 --kv-cache-dtype=fp8"
FILES = ("config.json", "model.safetensors")
MOUNT: Mapping[str, Any] = {"words": f"/mnt/{NAME} {FLAGS}", "mount": FILES}
BUCKET: Mapping[str, Any] = {"words": f"gs://b/{NAME} --load-format=runai_streamer {FLAGS}", "bucket": FILES}
VOLUME: Mapping[str, Any] = {"words": f"{{folder}}/{NAME} {FLAGS}", "volume_mib": 20 * 1024}
HUB: Mapping[str, Any] = {"words": "google/gemma-4-12B-it --quantization=fp8 --max-model-len=8192"}
LIMIT = "RUNAI_STREAMER_MEMORY_LIMIT"
ON_TPU = "google/gemma-4-26B-A4B-it -tp=4 --max-model-len=16384"
LOADING, COPYING = "Loading weights took", "copying the weights into memory took"


def started(folder: Path, given: Mapping[str, Any], *flags: str, **variables: str) -> Start:
    return start_of({**given, "words": " ".join((given["words"], *flags)), "variables": variables}, folder)


def said_s(start: Start, line: str) -> float:
    """Return the seconds that a line of the log states."""
    found = re.search(rf"{line} ([\d.]+) seconds", "\n".join(step.line for step in start.steps))
    assert found is not None
    return float(found[1])


def test_memory_is_that_of_the_recorded_boot_and_another_card_is_named_in_the_log(tmp_path: Path):
    given = {"words": "google/gemma-4-E2B-it --max-model-len 8192"}
    recorded = start_of(given, tmp_path)
    size = recorded.capacity
    assert size is not None
    assert (size.available_gib, size.num_blocks, size.block_size) == (9.13, 99697, 16)
    assert not any("no recording" in step.line for step in recorded.steps)
    other = start_of({**given, "card": "nvidia-rtx-pro-6000"}, tmp_path)
    assert other.capacity == replace(size, max_num_seqs=1024)
    (line,) = [step.line for step in other.steps if "no recording" in step.line]
    assert "those of E2B on NVIDIA L4, and the rate is 5.32 times its rate" in line


def test_a_request_of_as_many_tokens_as_recorded_fits_and_one_more_does_not(tmp_path: Path):
    def start(length: object) -> Start:
        return start_of({"words": f"google/{NAME} --max-model-len {length}"}, tmp_path)

    longest = int(str(start(262144).steps[-1].error).split("estimated maximum model length is ")[1].split(".")[0])
    fits = start(longest).capacity
    assert fits is not None
    assert fits.concurrency == 1
    assert start("auto").capacity == fits
    assert "To serve at least one request" in str(start(longest + 1).steps[-1].error)


LOGGED = re.compile(r"\(\w+ pid=\d+\) [A-Z]+ \d\d-\d\d [\d:]{8} \[\w+\.py:\d+\] .+")


def test_a_line_is_of_vllms_logger_or_of_a_progress_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """vLLM's logger writes its file on each line, and tqdm no prefix at all."""
    for step in started(tmp_path, MOUNT).steps:
        _take(replace(step, cache_file=None))
    out, err = capsys.readouterr()
    own = [line for line in out.splitlines() if line.startswith("[simulated]")]
    assert [line for line in out.splitlines() if line not in own and not LOGGED.fullmatch(line)] == []
    assert {line.partition(":")[0].partition(" (")[0] for line in err.splitlines()} == {
        "Loading safetensors checkpoint shards",
        "Capturing CUDA graphs",
    }


@pytest.mark.parametrize(
    ("given", "how", "line", "seconds"),
    [
        (MOUNT, ("lazy", "75"), LOADING, 16_440 / 53),
        (MOUNT, ("prefetch", "75"), LOADING, 664.24),
        ({**MOUNT, "options": {"enable-buffered-read": "true"}}, ("lazy", "75"), LOADING, 16_440 / 75),
        ({**MOUNT, "options": {"enable-buffered-read": "true"}}, ("prefetch", "75"), LOADING, 2 * 16_440 / 75),
        ({**MOUNT, "options": {"cache-dir": "/cache"}}, ("prefetch", "75"), LOADING, 16_440 / 75),
        (BUCKET, ("lazy", "75"), LOADING, 16_440 / 75),
        (BUCKET, ("lazy", "1e6"), LOADING, 16_440 / 700),
        (VOLUME, ("lazy", "75"), COPYING, 16_440 / 75),
        (VOLUME, ("lazy", "1e6"), COPYING, 16_440 / 300),
        (VOLUME, ("lazy", "75"), LOADING, 16_440 / 3000),
    ],
)
def test_a_load_takes_the_time_of_its_place_or_of_the_network(
    tmp_path: Path, given: Mapping[str, Any], how: tuple[str, str], line: str, seconds: float
):
    strategy, rate = how
    start = started(tmp_path, given, f"--safetensors-load-strategy={strategy}", VLLM_SIM_NETWORK_MB_PER_S=rate)
    assert said_s(start, line) == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize(
    ("given", "variables", "killed_gib", "fits_gib"),
    [
        (MOUNT, {}, 16, 17),
        (HUB, {}, 24, 28),  # 22.3 GiB of files and the server; those of a mount can be evicted
        (BUCKET, {LIMIT: "4294967296"}, 6, 16),
        (BUCKET, {LIMIT: "-1"}, 16, 20),
        (BUCKET, {}, 16, 20),
        (BUCKET, {LIMIT: "0"}, 2, 8),
        (VOLUME, {}, 17, 20),
    ],
)
def test_a_load_beyond_the_containers_memory_kills_it(
    tmp_path: Path, given: Mapping[str, Any], variables: dict[str, str], killed_gib: int, fits_gib: int
):
    killed = started(tmp_path, given, **variables, VLLM_SIM_MEMORY_LIMIT_MIB=str(killed_gib * 1024)).steps[-1].error
    assert isinstance(killed, KilledError)
    assert killed_gib * 1024 < killed.used_mib <= killed_gib * 1024 * 1.025
    assert started(tmp_path, given, **variables, VLLM_SIM_MEMORY_LIMIT_MIB=str(fits_gib * 1024)).capacity is not None


def test_a_copy_beyond_the_containers_memory_ends_before_the_server(tmp_path: Path):
    steps = started(tmp_path, VOLUME, VLLM_SIM_MEMORY_LIMIT_MIB=str(14 * 1024)).steps
    assert isinstance(steps[-1].error, KilledError)
    assert not any("Starting to load model" in step.line for step in steps)


def test_a_limit_of_the_streamer_that_is_not_a_number_is_refused(tmp_path: Path):
    with pytest.raises(VariableError, match="RUNAI_STREAMER_MEMORY_LIMIT is '4Gi'"):
        started(tmp_path, BUCKET, **{LIMIT: "4Gi"})


def test_eager_mode_compiles_nothing(tmp_path: Path):
    whole, eager = (started(tmp_path, MOUNT, *flags) for flags in ((), ("--enforce-eager",)))
    assert whole.total_s - eager.total_s == pytest.approx(100.41)


GRAPHS = {"VLLM_XLA_CACHE_PATH": "/dev/shm/graphs", "VLLM_SIM_PATHS": '{"/dev/shm": "{folder}"}'}
RESTORED = {
    "VLLM_CACHE_ROOT": "{folder}/vllm",
    "VLLM_SIM_MEMORY_VOLUMES": '{"{folder}": 2048}',
    "VLLM_SIM_PATHS": '{"{folder}": "{folder}"}',
    "VLLM_SIM_NETWORK_MB_PER_S": "75",
}
ON_VOLUME = {"HF_HOME": "/mnt/hf", "VLLM_SIM_PATHS": '{"/mnt": "{folder}", "/": "{folder}/layer"}'}
IN_LAYER = {"HF_HOME": "/mnt/hf", "VLLM_SIM_PATHS": '{"/": "{folder}"}'}


@pytest.mark.parametrize(
    ("given", "variables", "saved_s"),
    [
        ({"words": ON_TPU, "card": "v6e-4"}, GRAPHS, 572 * 3 / 5),
        ({"words": ON_TPU, "card": "v6e-4"}, ON_VOLUME, 51.6),
        ({"words": ON_TPU, "card": "v6e-4"}, IN_LAYER, 0),
        # 9 s of loading and 490 MB at 75 MB/s take the place of the compilation.
        (BUCKET, RESTORED, 100.41 - 9 - 490 / 75),
    ],
)
def test_a_second_start_saves_what_its_caches_have(
    tmp_path: Path, given: Mapping[str, Any], variables: dict[str, str], saved_s: float
):
    cold = start_of({**given, "variables": variables}, tmp_path)
    for file in [step.cache_file for step in cold.steps if step.cache_file]:
        file.parent.mkdir(parents=True)
        file.touch()
    warm = start_of({**given, "variables": variables}, tmp_path)
    assert cold.total_s - warm.total_s == pytest.approx(saved_s, abs=0.5)
    other = start_of({**given, "variables": variables, "words": f"{given['words']} --max-num-seqs=8"}, tmp_path)
    has_other_graphs = variables in (GRAPHS, RESTORED)
    assert (other.total_s == pytest.approx(cold.total_s)) is (has_other_graphs or not saved_s)


@pytest.mark.parametrize(
    ("accelerator", "size", "skipped"), [("v6e-1", "E2B", True), ("v6e-4", "12B", False), ("nvidia-l4", "E2B", False)]
)
def test_a_tpu_logs_that_the_pool_of_compilers_skips_its_steps(
    tmp_path: Path, accelerator: str, size: str, *, skipped: bool
):
    steps = start_of({"words": f"google/gemma-4-{size}-it", "card": accelerator}, tmp_path).steps
    assert any("backbone (not a jit)" in step.line for step in steps) is skipped


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("org/other-8b", "org/other-8b"),
        ("RedHatAI/gemma-4-12B-it-FP8-Dynamic", "12B-fp8"),
        ("RedHatAI/gemma-4-31B-it-NVFP4", "31B-nvfp4"),
        ("nvidia/Gemma-4-31B-IT-NVFP4", "31B-fp8"),
        ("google/gemma-4-12B-it-qat-q4_0-unquantized", "12B"),
        ("xbill9/gemma-4-26B-A4B-it-qat-q4_0-w4a16-ct", "26B-A4B-q4_0-w4a16"),
        ("google/gemma-4-12B", "12B"),
        ("nobody/no-such-model", None),
        ("google/gemma-4-27B-it", None),
        ("other-8b", None),
    ],
)
def test_an_id_states_the_checkpoint_or_nothing(name: str, model: str | None):
    found = find_model(name)
    assert (None if found is None else found.name) == model


def test_a_tpu_that_streams_its_weights_loads_no_faster_than_from_a_file_and_downloads_nothing_before(tmp_path: Path):
    copied, streamed = (
        start_of({"words": words, "card": "v6e-1"}, tmp_path)
        for words in ("google/gemma-4-E2B-it", "gs://b/gemma-4-E2B-it --load-format=runai_streamer")
    )
    assert said_s(streamed, LOADING) >= said_s(copied, LOADING)  # each tensor is converted as those of a file
    assert not any("downloading weights" in step.line for step in streamed.steps)
