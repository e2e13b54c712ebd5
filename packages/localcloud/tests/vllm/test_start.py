"""Memory and start of the simulated server: its refusals, its loads and what a cache saves."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from localcloud.vllm.arguments import parse
from localcloud.vllm.boot import KilledError, Start, plan
from localcloud.vllm.recorded import find_model
from localcloud.vllm.server import _take
from localcloud.vllm.settings import RuntimeEnvironment, read

L4_QAT = "/mnt/models/gemma-4-26B-A4B-it-qat-w4a16-ct"


UPSTREAM = "docker.io/vllm/vllm-tpu@sha256:19a1a0526476f902eb83e1057f3d8938f35b457dd7716a30e9ab4f7bee90d507"


def start_on(command: str, accelerator: str, image: str = UPSTREAM) -> Start:
    given = {"VLLM_SIM_ACCELERATOR": accelerator, "VLLM_SIM_IMAGE": image}
    return plan(parse(["vllm", "serve", *command.split()]), read(given))


def test_memory_is_that_of_the_recorded_boot_and_another_card_is_named_in_the_log():
    recorded = start_on("google/gemma-4-E2B-it --max-model-len 8192", "nvidia-l4")
    assert recorded.capacity is not None
    assert (recorded.capacity.available_gib, recorded.capacity.num_blocks, recorded.capacity.block_size) == (
        9.13,
        99697,
        16,
    )
    assert not any("no recording" in step.line for step in recorded.steps)
    other = start_on("google/gemma-4-E2B-it --max-model-len 8192", "nvidia-rtx-pro-6000")
    assert other.capacity == replace(recorded.capacity, max_num_seqs=1024)
    (line,) = [step.line for step in other.steps if "no recording" in step.line]
    assert "those of E2B on NVIDIA L4, and the rate is 5.32 times its rate" in line


@pytest.mark.parametrize(
    ("command", "accelerator", "says"),
    [
        ("google/gemma-4-E2B-it --quantization fp8", "v6e-1", "fp8 quantization is not implemented"),
        (
            "google/gemma-4-12B-it-qat-w4a16-ct --quantization fp8",
            "nvidia-l4",
            r"\(compressed-tensors\) does not match",
        ),
        ("google/gemma-4-31B-it-qat-w4a16-ct", "nvidia-l4", "CUDA out of memory"),
        ("google/gemma-4-31B-it", "v6e-1", "RESOURCE_EXHAUSTED"),
        ("google/gemma-4-12B-it", "v5litepod-1", "RESOURCE_EXHAUSTED"),
        ("google/gemma-4-12B-it --max-model-len 8192", "nvidia-l4", "CUDA out of memory"),
        ("google/gemma-4-26B-A4B-it-qat-w4a16-ct -tp 4", "v6e-4", "compressed-tensors"),
        ("google/gemma-4-E2B-it -tp 8", "v6e-4", r"World size \(8\)"),
        ("google/gemma-4-E2B-it -tp 2 -dp 4", "v6e-4", r"World size \(8\)"),
        ("google/gemma-4-E2B-it -dp 2", "nvidia-l4", r"World size \(2\)"),
        (
            "google/gemma-4-E2B-it -dp 2",
            "v6e-4",
            r"\(2\) x tensor_parallel_size \(1\) is not the number of chips \(4\)",
        ),
        ("google/gemma-4-26B-A4B-it -tp 2 -dp 2", "v6e-4", "assert num_tokens is not None"),
        ("google/gemma-4-E2B-it --max-model-len 200000", "nvidia-l4", "greater than the derived max_model_len"),
        (
            "google/gemma-4-E2B-it --max-num-batched-tokens 2048 --disable-chunked-mm-input",
            "nvidia-l4",
            r"larger than max_num_batched_tokens \(2048\)",
        ),
        ("google/gemma-4-26B-A4B-it-qat-w4a16-ct --max-model-len 262144", "nvidia-l4", "To serve at least one request"),
    ],
)
def test_what_cannot_run_is_refused_in_vllms_words(command: str, accelerator: str, says: str):
    assert re.search(says, error_of(start_on(command, accelerator)))


def test_a_request_of_as_many_tokens_as_recorded_fits_and_one_more_does_not():
    command = "google/gemma-4-26B-A4B-it-qat-w4a16-ct --max-model-len"
    refused = error_of(start_on(f"{command} 262144", "nvidia-l4"))
    longest = int(refused.split("estimated maximum model length is ")[1].split(".")[0])
    fits = start_on(f"{command} {longest}", "nvidia-l4").capacity
    assert fits is not None
    assert fits.concurrency == 1
    assert start_on(f"{command} auto", "nvidia-l4").capacity == fits
    assert "To serve at least one request" in error_of(start_on(f"{command} {longest + 1}", "nvidia-l4"))


def environment(
    tmp_path: Path,
    files: Mapping[str, int],
    *,
    memory_mib: int = 32768,
    readable: bool = True,
    options: dict[str, str] | None = None,
    **more: str,
) -> RuntimeEnvironment:
    listing = tmp_path / "mounts.json"
    listing.write_text(
        json.dumps([{"path": "/mnt/models", "files": files, "options": options or {}, "readable": readable}])
    )
    return read(
        {
            "VLLM_SIM_ACCELERATOR": "nvidia-l4",
            "VLLM_SIM_MOUNTS_FILE": str(listing),
            "VLLM_SIM_MEMORY_LIMIT_MIB": str(memory_mib),
            **more,
        }
    )


STAGED = {"gemma-4-26B-A4B-it-qat-w4a16-ct/config.json": 9, "gemma-4-26B-A4B-it-qat-w4a16-ct/model.safetensors": 7}


def start(around: RuntimeEnvironment, *flags: str) -> Start:
    return plan(parse(["vllm", "serve", L4_QAT, "--max-model-len=16384", "--kv-cache-dtype=fp8", *flags]), around)


def load_s(planned: Start) -> float:
    """Return the seconds of the load, as the server logs them."""
    found = re.search(r"Loading weights took ([\d.]+) seconds", "\n".join(step.line for step in planned.steps))
    assert found is not None
    return float(found[1])


LOGGED = re.compile(r"\(\w+ pid=\d+\) [A-Z]+ \d\d-\d\d [\d:]{8} \[\w+\.py:\d+\] .+")


def test_a_line_is_of_vllms_logger_or_of_a_progress_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """vLLM's logger writes its file on each line, and tqdm no prefix at all."""
    planned = start(environment(tmp_path, STAGED))
    for step in planned.steps:
        _take(replace(step, cache_file=None))
    out, err = capsys.readouterr()
    own = [line for line in out.splitlines() if line.startswith("[simulated]")]
    assert [line for line in out.splitlines() if line not in own and not LOGGED.fullmatch(line)] == []
    assert {line.partition(":")[0].partition(" (")[0] for line in err.splitlines()} == {
        "Loading safetensors checkpoint shards",
        "Capturing CUDA graphs",
    }


@pytest.mark.parametrize(
    ("options", "strategy", "seconds"),
    [
        ({}, "lazy", 16_440 / 53),
        ({}, "prefetch", 664.24),
        ({"enable-buffered-read": "true"}, "lazy", 16_440 / 75),
        ({"enable-buffered-read": "true"}, "prefetch", 2 * 16_440 / 75),
        ({"cache-dir": "/cache"}, "prefetch", 16_440 / 75),
    ],
)
def test_a_mount_is_read_at_its_rate_or_the_networks_and_twice_with_prefetch(
    tmp_path: Path, options: dict[str, str], strategy: str, seconds: float
):
    around = environment(tmp_path, STAGED, options=options, VLLM_SIM_NETWORK_MB_PER_S="75")
    planned = start(around, f"--safetensors-load-strategy={strategy}")
    assert load_s(planned) == pytest.approx(seconds, rel=0.01)


def test_eager_mode_compiles_nothing(tmp_path: Path):
    whole, eager = (start(environment(tmp_path, STAGED), *flags) for flags in ((), ("--enforce-eager",)))
    assert whole.total_s - eager.total_s == pytest.approx(100.41)


def error_of(planned: Start) -> str:
    assert planned.capacity is None
    return str(planned.steps[-1].error)


def test_an_empty_bucket_a_bucket_without_weights_and_a_mount_of_another_uid_each_fail_in_their_own_words(
    tmp_path: Path,
):
    assert "Invalid repository ID or local directory" in error_of(start(environment(tmp_path, {})))
    only_config = {name: size for name, size in STAGED.items() if name.endswith("config.json")}
    assert "Cannot find any model weights" in error_of(start(environment(tmp_path, only_config)))
    assert "Permission denied" in error_of(start(environment(tmp_path, STAGED, readable=False)))


def test_the_load_of_the_26b_exceeds_16_gib_of_container_memory(tmp_path: Path):
    planned = start(environment(tmp_path, STAGED, memory_mib=16384))
    killed = planned.steps[-1].error
    assert isinstance(killed, KilledError)
    assert 16384 < killed.used_mib <= 16.78 * 1024
    assert start(environment(tmp_path, STAGED, memory_mib=17408)).capacity is not None


def test_files_from_the_hub_stay_in_the_memory_of_an_instance():
    """22.3 GiB of files and the server; read through a mount, the same files could be evicted and fit."""
    command = parse(["vllm", "serve", "google/gemma-4-12B-it", "--quantization=fp8", "--max-model-len=8192"])

    def start_in(memory_gib: int) -> Start:
        given = {"VLLM_SIM_ACCELERATOR": "nvidia-l4", "VLLM_SIM_MEMORY_LIMIT_MIB": str(memory_gib * 1024)}
        return plan(command, read(given))

    assert isinstance(start_in(24).steps[-1].error, KilledError)
    assert start_in(28).capacity is not None


@pytest.mark.parametrize(
    ("paths", "again"), [({"/mnt": "{folder}", "/": "{folder}/layer"}, False), ({"/": "{folder}"}, True)]
)
def test_a_model_is_downloaded_again_unless_its_cache_lies_on_a_volume(
    tmp_path: Path, paths: dict[str, str], again: bool
):
    real = {inside: outside.format(folder=tmp_path) for inside, outside in paths.items()}
    around = read({"VLLM_SIM_ACCELERATOR": "v6e-4", "HF_HOME": "/mnt/hf", "VLLM_SIM_PATHS": json.dumps(real)})
    words = parse(["vllm", "serve", "google/gemma-4-26B-A4B-it", "-tp=4", "--max-model-len=16384"])
    cold = plan(words, around)
    for file in [step.cache_file for step in cold.steps if step.cache_file]:
        file.parent.mkdir(parents=True)
        file.touch()
    warm = plan(words, around)
    assert any("downloading weights" in step.line for step in cold.steps)
    assert any("downloading weights" in step.line for step in warm.steps) is again
    assert (warm.total_s < cold.total_s - 50) is not again


@pytest.mark.parametrize(
    ("accelerator", "size", "skipped"), [("v6e-1", "E2B", True), ("v6e-4", "12B", False), ("nvidia-l4", "E2B", False)]
)
def test_a_tpu_logs_that_the_pool_of_compilers_skips_its_steps(accelerator: str, size: str, *, skipped: bool):
    steps = plan(
        parse(["vllm", "serve", f"google/gemma-4-{size}-it"]), read({"VLLM_SIM_ACCELERATOR": accelerator})
    ).steps
    assert any("backbone (not a jit)" in step.line for step in steps) is skipped


def test_a_second_start_finds_the_compiled_graphs(tmp_path: Path):
    around = read(
        {
            "VLLM_SIM_ACCELERATOR": "v6e-4",
            "VLLM_XLA_CACHE_PATH": "/dev/shm/vllm_cache",
            "VLLM_SIM_PATHS": json.dumps({"/dev/shm": str(tmp_path)}),
        }
    )
    words = ["vllm", "serve", "google/gemma-4-26B-A4B-it", "-tp=4", "--max-model-len=16384"]
    cold = plan(parse(words), around)
    written = [step.cache_file for step in cold.steps if step.cache_file]
    assert [path.parent for path in written] == [tmp_path / "vllm_cache"]
    written[0].parent.mkdir()
    written[0].touch()
    assert plan(parse(words), around).total_s < cold.total_s - 200
    assert plan(parse([*words, "--max-model-len=8192"]), around).total_s > cold.total_s - 1  # another graph


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
    ],
)
def test_an_id_states_the_checkpoint(name: str, model: str):
    found = find_model(name)
    assert found is not None
    assert found.name == model


@pytest.mark.parametrize("name", ["nobody/no-such-model", "google/gemma-4-27B-it", "other-8b"])
def test_ids_that_say_nothing_are_unknown(name):
    assert find_model(name) is None


def test_a_tpu_that_streams_its_weights_loads_no_faster_than_from_a_file_and_downloads_nothing_before():
    around = read({"VLLM_SIM_ACCELERATOR": "v6e-1"})
    copied = plan(parse(["vllm", "serve", "google/gemma-4-E2B-it"]), around)
    streamed = plan(parse(["vllm", "serve", "gs://b/gemma-4-E2B-it", "--load-format=runai_streamer"]), around)
    assert load_s(streamed) >= load_s(copied)  # each tensor is converted as those of a file
    assert not any("downloading weights" in step.line for step in streamed.steps)
