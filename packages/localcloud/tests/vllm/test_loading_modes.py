"""Weights without a mount: streamed from gs://, or copied into memory before the server starts, and compiled graphs that were restored."""

import json
from pathlib import Path
from typing import Any

import pytest

from localcloud.vllm.arguments import parse
from localcloud.vllm.boot import KilledError, Start, plan
from localcloud.vllm.settings import RuntimeEnvironment, VariableError, read

MODEL = "gemma-4-26B-A4B-it-qat-w4a16-ct"
FILES = {f"{MODEL}/config.json": 9, f"{MODEL}/model.safetensors": 7}
STREAM = "--load-format=runai_streamer"
DENIED = "google.api_core.exceptions.Forbidden: 403 GET o: a@p does not have storage.objects.list access"


def around(
    tmp_path: Path, *, memory_gib: float = 32, mb_per_s: float = 1e6, problem: str = "", **variables: str
) -> RuntimeEnvironment:
    listing = tmp_path / "buckets.json"
    other = {"gemma-4-E2B-it/config.json": 1, "gemma-4-E2B-it/m.safetensors": 1}
    files = {} if problem else FILES | other
    listing.write_text(json.dumps({"models": {"files": files, "problem": problem}}))
    return read(
        {
            "VLLM_SIM_ACCELERATOR": "nvidia-l4",
            "VLLM_SIM_BUCKETS_FILE": str(listing),
            "VLLM_SIM_MEMORY_LIMIT_MIB": str(memory_gib * 1024),
            "VLLM_SIM_NETWORK_MB_PER_S": str(mb_per_s),
            **variables,
        }
    )


def start(environment: RuntimeEnvironment, model: str, *flags: str) -> Start:
    return plan(parse(["vllm", "serve", model, "--max-model-len=8192", "--kv-cache-dtype=fp8", *flags]), environment)


def streamed(environment: RuntimeEnvironment, *flags: str) -> Start:
    return start(environment, f"gs://models/{MODEL}", *flags)


def error_of(planned: Start) -> str:
    assert planned.capacity is None
    return str(planned.steps[-1].error)


class TestStreamer:
    def test_it_reads_as_fast_as_it_can_or_as_the_network_lets_it(self, tmp_path: Path):
        fast, slow = streamed(around(tmp_path), STREAM), streamed(around(tmp_path, mb_per_s=75), STREAM)
        # 16.44 GB at 75 and at 700 MB/s.
        assert slow.total_s - fast.total_s == pytest.approx(16_440 / 75 - 16_440 / 700, abs=1)

    def test_without_the_load_format_vllm_finds_no_weights(self, tmp_path: Path):
        assert "Cannot find any model weights" in error_of(streamed(around(tmp_path)))

    def test_an_old_vllm_knows_no_gs_uri(self, tmp_path: Path):
        old = around(tmp_path, VLLM_SIM_VERSION="0.10.2")
        assert "Repo id must be in the form" in error_of(streamed(old, STREAM))
        assert streamed(around(tmp_path, VLLM_SIM_VERSION="0.11.1"), STREAM).capacity is not None

    def test_a_bucket_that_may_not_be_listed_is_refused_in_googles_words(self, tmp_path: Path):
        assert "storage.objects.list access" in error_of(streamed(around(tmp_path, problem=DENIED), STREAM))
        assert "404 GET" in error_of(start(around(tmp_path), f"gs://nobodys/{MODEL}", STREAM))

    @pytest.mark.parametrize(
        ("limit", "memory_gib", "fits"),
        [("4294967296", 16, True), ("-1", 16, False), ("-1", 20, True), (None, 16, False), ("0", 8, True)],
    )
    def test_its_buffer_counts_against_the_container(
        self, tmp_path: Path, limit: str | None, memory_gib: float, fits: bool
    ):
        given: dict[str, Any] = {} if limit is None else {"RUNAI_STREAMER_MEMORY_LIMIT": limit}
        planned = streamed(around(tmp_path, memory_gib=memory_gib, **given), STREAM)
        assert (planned.capacity is not None) is fits
        assert fits or isinstance(planned.steps[-1].error, KilledError)

    def test_a_buffer_that_is_smaller_than_the_largest_tensor_is_refused(self, tmp_path: Path):
        """The embeddings of every layer of E2B are one tensor of 4.4 GiB."""
        small = around(tmp_path, RUNAI_STREAMER_MEMORY_LIMIT=str(4 * 2**30))
        assert "Memory limit supplied: 4294967296 cannot be smaller than: 4697620480" in error_of(
            start(small, "gs://models/gemma-4-E2B-it", STREAM)
        )
        enough = around(tmp_path, RUNAI_STREAMER_MEMORY_LIMIT=str(5 * 2**30))
        assert start(enough, "gs://models/gemma-4-E2B-it", STREAM).capacity is not None

    def test_a_limit_that_is_no_number_is_refused(self, tmp_path: Path):
        with pytest.raises(VariableError, match="RUNAI_STREAMER_MEMORY_LIMIT is '4Gi'"):
            around(tmp_path, RUNAI_STREAMER_MEMORY_LIMIT="4Gi")


class TestMemory:
    """A program has copied placeholders into a volume in memory; the server charges the time and the memory of the real files."""

    def volume(self, tmp_path: Path, *, size_gib: float = 20, **given: Any) -> tuple[RuntimeEnvironment, str]:
        folder = tmp_path / "volume"
        (folder / MODEL).mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (folder / name).write_bytes(b"x")
        sizes = json.dumps({str(folder): int(size_gib * 1024)})
        paths = json.dumps({"/": str(tmp_path / "nothing"), str(folder): str(folder)})
        environment = around(tmp_path, VLLM_SIM_MEMORY_VOLUMES=sizes, VLLM_SIM_PATHS=paths, **given)
        return environment, str(folder / MODEL)

    def test_the_copy_takes_its_time_and_the_load_hardly_any(self, tmp_path: Path):
        slow, fast = (start(*self.volume(tmp_path, mb_per_s=rate)) for rate in (75, 1e6))
        assert slow.total_s - fast.total_s == pytest.approx(16_440 / 75 - 16_440 / 300, abs=1)
        assert any(
            step.line == "[simulated] copying the weights into memory took 219.20 seconds" for step in slow.steps
        )

    @pytest.mark.parametrize(("memory_gib", "at"), [(14, "copying"), (17, "loading"), (20, "")])
    def test_the_weights_stay_in_the_containers_memory(self, tmp_path: Path, memory_gib: float, at: str):
        planned = start(*self.volume(tmp_path, memory_gib=memory_gib))
        assert isinstance(planned.steps[-1].error, KilledError) == bool(at)
        began = any("Starting to load model" in step.line for step in planned.steps)
        assert began is (at != "copying")

    def test_a_volume_that_is_too_small_is_full(self, tmp_path: Path):
        assert "No space left on device" in error_of(start(*self.volume(tmp_path, size_gib=12)))


def test_restored_graphs_save_the_compilation_and_cost_their_download(tmp_path: Path):
    folder = tmp_path / "graphs"
    given = {
        "VLLM_CACHE_ROOT": str(folder / "vllm"),
        "VLLM_SIM_MEMORY_VOLUMES": json.dumps({str(folder): 2048}),
        "VLLM_SIM_PATHS": json.dumps({str(folder): str(folder)}),
    }
    environment = around(tmp_path, mb_per_s=75, **given)
    cold = streamed(environment, STREAM)
    (file,) = [step.cache_file for step in cold.steps if step.cache_file]
    file.parent.mkdir(parents=True)
    file.touch()
    warm = streamed(environment, STREAM)
    # 9 s of loading and 490 MB at 75 MB/s take the place of 100.41 s.
    assert cold.total_s - warm.total_s == pytest.approx(100.41 - 9 - 490 / 75, abs=0.1)
