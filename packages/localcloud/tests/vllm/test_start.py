"""Memory and start: the measured figures of the deployments that these models ran on."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from localcloud.vllm.arguments import parse
from localcloud.vllm.memory import EngineStartError, KvCacheSize, as_loaded, capacity
from localcloud.vllm.recorded import find_card, find_model, weights_gib
from localcloud.vllm.settings import Bucket, RuntimeEnvironment, read
from localcloud.vllm.startup import KilledError, Start, plan
from localcloud.vllm.weights import find_weights

L4_QAT = "/mnt/models/gemma-4-26B-A4B-it-qat-w4a16-ct"


UPSTREAM = "docker.io/vllm/vllm-tpu@sha256:19a1a0526476f902eb83e1057f3d8938f35b457dd7716a30e9ab4f7bee90d507"
BUILT = f"us-east5-docker.pkg.dev/p/gemma-x/vllm/vllm-tpu@sha256:{'1' * 64}"


def fit(command: str, accelerator: str, image: str = UPSTREAM) -> KvCacheSize:
    arguments = parse(["vllm", "serve", *command.split()])
    model, found = find_model(arguments.model), find_card(accelerator)
    assert model is not None
    assert found is not None
    return capacity(arguments, as_loaded(model, found, image, arguments.quantization), found)


def test_the_baseline_on_a_v6e_4_has_the_measured_tokens():
    found = fit(
        "google/gemma-4-E2B-it -tp 4 --max-model-len 16384 --kv-cache-dtype fp8 --gpu-memory-utilization 0.4", "v6e-4"
    )
    # 18,523 blocks of 32 tokens were measured; the block arithmetic agrees within a percent.
    assert found.block_size == 32
    assert abs(found.num_blocks - 18_523) < 0.01 * 18_523
    assert abs(found.tokens - 592_736) < 0.01 * 592_736


def test_the_26b_on_an_l4_has_the_measured_blocks():
    command = (
        "google/gemma-4-26B-A4B-it-qat-w4a16-ct --max-model-len 16384 --kv-cache-dtype fp8 --gpu-memory-utilization 0.9"
    )
    found = fit(command, "nvidia-l4")
    assert found.block_size == 16
    assert abs(found.num_blocks - 7_097) < 0.01 * 7_097


def test_a_conversion_is_smaller_than_the_checkpoint_that_was_logged_on_the_chip():
    command = "google/gemma-4-31B-it{} -tp 4 --max-model-len 8192"
    logged, converted = (fit(command.format(form), "v6e-4").weights_gib for form in ("", "-FP8"))
    assert logged == 14.6
    assert converted == pytest.approx(31.49 / 4, rel=0.01)


def test_fp8_on_the_command_line_shrinks_weights_and_token_time_but_not_the_file():
    """A public 12B in FP8 takes 12.75 GiB on a GPU, in bf16 22.7; its embeddings stay in bf16."""
    command = "google/gemma-4-{}-it --max-model-len 8192"
    stored, loaded = (
        plan(
            parse(["vllm", "serve", *command.format("E4B").split(), *option]),
            read({"VLLM_SIM_ACCELERATOR": "nvidia-l4"}),
        )
        for option in ((), ("--quantization=fp8",))
    )
    assert fit(command.format("12B") + " --quantization=fp8", "nvidia-l4").weights_gib == pytest.approx(12.75, abs=0.15)
    assert loaded.capacity
    assert stored.capacity
    assert loaded.model
    assert stored.model
    assert stored.capacity.weights_gib - loaded.capacity.weights_gib == pytest.approx(2.88, abs=0.1)
    assert loaded.capacity.tokens > 1.5 * stored.capacity.tokens
    assert loaded.model.bytes_per_active / stored.model.bytes_per_active == pytest.approx(0.56)
    assert loaded.model.disk_bytes == stored.model.disk_bytes


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
        ("google/gemma-4-E4B-it --gpu-memory-utilization 0.7", "nvidia-l4", "No available memory for the cache blocks"),
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
    with pytest.raises(EngineStartError, match=says):
        fit(command, accelerator)


def test_the_estimated_length_of_a_refusal_fits_and_one_block_more_does_not():
    command, accelerator = "google/gemma-4-26B-A4B-it-qat-w4a16-ct --gpu-memory-utilization 0.9", "nvidia-l4"
    with pytest.raises(EngineStartError) as refused:
        fit(f"{command} --max-model-len 262144", accelerator)
    longest = int(str(refused.value).split("estimated maximum model length is ")[1].split(".")[0])
    assert fit(f"{command} --max-model-len {longest}", accelerator).concurrency >= 1
    with pytest.raises(EngineStartError):
        fit(f"{command} --max-model-len {longest + 1}", accelerator)


def environment(
    tmp_path: Path,
    files: Mapping[str, int | str],
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


COMPILE_S = (102.96 + 111.91) / 2 - 4.03
"""Compile times of the two measured boots of 26B-A4B QAT on an L4, without the warm-up."""
STAGED = {"gemma-4-26B-A4B-it-qat-w4a16-ct/config.json": 9, "gemma-4-26B-A4B-it-qat-w4a16-ct/model.safetensors": 7}


def start(around: RuntimeEnvironment, *flags: str) -> Start:
    return plan(parse(["vllm", "serve", L4_QAT, "--max-model-len=16384", "--kv-cache-dtype=fp8", *flags]), around)


def test_the_load_over_fuse_takes_what_was_measured(tmp_path: Path):
    planned = start(environment(tmp_path, STAGED), "--safetensors-load-strategy=prefetch")
    assert planned.capacity is not None
    # Measured: 310 s of prefetching, 664.24 s of load, 98.93 s of compiling, 4.03 s of warm-up; the rest is the process's own start.
    assert planned.total_s == pytest.approx(664.24 + 98.93 + 4.03 + 12, rel=0.01)


def test_prefetching_reads_twice_and_buffered_reads_and_eager_mode_shorten_it(tmp_path: Path):
    """With buffered reads, the second read is limited by the network."""
    plain = start(environment(tmp_path, STAGED)).total_s
    prefetched = start(environment(tmp_path, STAGED), "--safetensors-load-strategy=prefetch").total_s
    buffered = start(environment(tmp_path, STAGED, options={"enable-buffered-read": "true"})).total_s
    assert buffered < plain < prefetched
    options = {"enable-buffered-read": "true"}
    slow = environment(tmp_path, STAGED, options=options, VLLM_SIM_NETWORK_MB_PER_S="75")
    both = start(slow, "--safetensors-load-strategy=prefetch").total_s - start(slow).total_s
    assert both == pytest.approx(16.44e3 / 75, rel=0.01)
    assert start(environment(tmp_path, STAGED), "--enforce-eager").total_s == pytest.approx(plain - COMPILE_S)


PLAIN = {"gemma-4-12b/config.json": 900, "gemma-4-12b/model.safetensors": 7}
FORMS = {
    "": "12B",
    "{}": "12B",
    '{"model_type": "gemma4_unified"}': "12B",
    '{"model_type": "m", "quantization_config": {"config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}}}': "12B-w4a16",
    '{"model_type": "m", "quantization_config": {"config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}}': "12B-fp8",
    '{"model_type": "m", "quantization_config": {"quant_method": "awq"}}': "12B",
}


@pytest.mark.parametrize(("config", "model"), FORMS.items())
def test_the_precision_is_that_of_the_configuration_whatever_the_folder_is_named(
    tmp_path: Path, config: str, model: str
):
    files = {**PLAIN, "gemma-4-12b/config.json": config}
    around = environment(tmp_path, files)
    on_mount = find_weights(parse(["vllm", "serve", "/mnt/models/gemma-4-12b"]), around)
    streamed = parse(["vllm", "serve", "gs://b/gemma-4-12b", "--load-format=runai_streamer"])
    in_bucket = find_weights(streamed, replace(around, buckets={"b": Bucket(files=files, problem="")}))
    folder = tmp_path / "gemma-4-12b"
    folder.mkdir()
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").write_text("placeholder")
    on_disk = find_weights(parse(["vllm", "serve", str(folder)]), replace(around, mounts=()))
    assert [found.model.name for found in (on_mount, in_bucket, on_disk)] == [model] * 3


def test_a_quantized_checkpoint_in_a_folder_of_another_name_serves(tmp_path: Path):
    """In bf16, 12B does not fit on an L4."""
    words = ["vllm", "serve", "/mnt/models/gemma-4-12b", "--max-model-len=8192"]
    w4a16 = next(config for config, name in FORMS.items() if name == "12B-w4a16")
    around = environment(tmp_path, {**PLAIN, "gemma-4-12b/config.json": w4a16})
    assert plan(parse(words), around).capacity is not None
    assert plan(parse(words), environment(tmp_path, PLAIN)).capacity is None


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


@pytest.mark.parametrize(
    ("release", "model", "flags", "says"),
    [
        ("0.24.0", "google/gemma-4-12B-it", (), ""),
        ("0.28.0", "google/gemma-4-12B-it", (), "during CUDA graph capture"),
        ("0.28.0", "google/gemma-4-12B-it", ("--enforce-eager",), ""),
        ("0.29.0", "google/gemma-4-12B-it", (), ""),
        ("0.26.0", "google/gemma-4-26B-A4B-it", (), "same reduction dim"),
        ("0.27.0", "google/gemma-4-26B-A4B-it", (), ""),
    ],
)
def test_a_release_dies_with_the_draft_model_that_its_public_record_names(
    release: str, model: str, flags: tuple[str, ...], says: str
):
    around = read({"VLLM_SIM_ACCELERATOR": "nvidia-rtx-pro-6000", "VLLM_SIM_VERSION": release})
    drafts = json.dumps({"model": f"{model}-assistant", "num_speculative_tokens": 3})
    planned = plan(
        parse(["vllm", "serve", model, "--max-model-len=8192", f"--speculative-config={drafts}", *flags]), around
    )
    assert (says in error_of(planned)) if says else (planned.capacity is not None)


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
    assert (
        plan(parse(words), around).total_s < cold.total_s - 200
    )  # 14 programs of 24.6 s were measured; two fifths of them stay
    assert plan(parse([*words, "--max-model-len=8192"]), around).total_s > cold.total_s - 1  # another graph


@pytest.mark.parametrize(
    ("name", "stated_gib"),
    [
        ("org/other-8b", 14.9),
        ("/mnt/models/Other-3B-Instruct", 5.59),
        ("RedHatAI/gemma-4-12B-it-FP8-Dynamic", 12.5),
        ("RedHatAI/gemma-4-31B-it-NVFP4", 20.6),
        ("nvidia/Gemma-4-31B-IT-NVFP4", 31.1),
        ("google/gemma-4-12B-it-qat-q4_0-unquantized", 22.3),
        ("google/gemma-4-12B", 22.3),
    ],
)
def test_other_checkpoints_weigh_what_their_ids_say(name: str, stated_gib: float):
    model, card = find_model(name), find_card("")
    assert model is not None
    assert card is not None
    assert weights_gib(model, card, 1, is_text=False) == pytest.approx(stated_gib, rel=0.07)


@pytest.mark.parametrize("name", ["nobody/no-such-model", "google/gemma-4-27B-it", "other-8b"])
def test_ids_that_say_nothing_are_unknown(name):
    assert find_model(name) is None


def test_a_tpu_that_streams_its_weights_is_charged_a_download_at_each_start():
    around = read({"VLLM_SIM_ACCELERATOR": "v6e-1"})
    model = find_model("google/gemma-4-E2B-it")
    assert model is not None
    copied = plan(parse(["vllm", "serve", "google/gemma-4-E2B-it"]), around).steps
    read_s = next(step.charge.seconds for step in copied if step.charge and step.charge.what == "load")
    for _ in range(2):
        start = plan(parse(["vllm", "serve", "gs://b/gemma-4-E2B-it", "--load-format=runai_streamer"]), around)
        charges = {step.charge.what: step.charge for step in start.steps if step.charge}
        assert charges["bucket"].bytes == model.disk_bytes
        assert charges["bucket"].seconds >= read_s  # each tensor is converted as those of a file
        assert {"load", "hub"} & set(charges) == set()


@pytest.mark.parametrize(("accelerator", "seconds"), [("v5litepod-1", 97.64), ("v6e-1", 13.4)])
def test_a_cache_saves_almost_all_of_a_4_bit_models_compilation(tmp_path: Path, accelerator: str, seconds: float):
    paths = {"VLLM_XLA_CACHE_PATH": "/cache", "VLLM_SIM_PATHS": json.dumps({"/": str(tmp_path)})}
    around = read({"VLLM_SIM_ACCELERATOR": accelerator, "VLLM_SIM_IMAGE": BUILT, **paths})
    limits = '--limit-mm-per-prompt={"image": 0, "video": 0, "audio": 0}'
    model = "google/gemma-4-E2B-it-qat-w4a16-ct"
    words = parse(["vllm", "serve", model, "--max-model-len=2048", "--max-num-batched-tokens=128", limits])
    for file in [step.cache_file for step in plan(words, around).steps if step.cache_file]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    charges = {step.charge.what: step.charge.seconds for step in plan(words, around).steps if step.charge}
    assert charges["cached"] == pytest.approx(seconds, rel=0.01)
