"""`scripts.plan learn`: boot logs and scrapes in, rows of the corpus and a comparison out.

The lines are those of public logs of xbill9/gemma4-dev, each named beside its test, and of the simulated server.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from authors.accuracy import __main__ as plan_accuracy
from contracts.errors import CommandRefusedError
from contracts.exit_codes import ExitCode
from localcloud.vllm.arguments import parse as parse_arguments
from localcloud.vllm.metrics import Metrics
from localcloud.vllm.settings import read as read_environment
from localcloud.vllm.startup import plan as plan_start
from scripts.plan.__main__ import main
from scripts.plan.boot_log import read_boot
from scripts.plan.corpus.measured import FILE, LEARNED_FILE, Measurements, load_files, parse

Learn = Callable[..., int]

LOGS = Path(__file__).parents[1] / "fixtures" / "boot_logs"
"""Lines of public logs, as logged; the source of each is below its name."""

V5E_DIES = (LOGS / "v5e-1-dies.log").read_text(encoding="utf-8")
"""tpu-vllm-v5e1-2b/benchmarks/runs/2026-08-07-gpu-mem-util-v5e1/logs/util095.log"""
V6E_4_RUNS = (LOGS / "v6e-4-runs.log").read_text(encoding="utf-8")
"""gce-vllm-v6e4-26b/benchmarks/runs/2026-09-26-tp4-26b-bf16-v6e4/logs"""
L4_RUNS = (LOGS / "l4-runs.log").read_text(encoding="utf-8")
"""gpu-vllm-g6-2b-w4a16/benchmarks/runs/2026-09-29-sagemaker-match-g6/vllm-engine.log"""


@pytest.fixture
def learn(tmp_path: Path) -> Learn:
    """Learn a text into a file of its own and return the exit code."""

    def run(text: str, *more: str, into: str = "own.toml") -> int:
        log = tmp_path / "boot.log"
        log.write_text(text, encoding="utf-8")
        return main(["learn", str(log), "--into", str(tmp_path / into), *more])

    return run


def learned(tmp_path: Path) -> Measurements:
    return load_files(FILE, tmp_path / "own.toml")


def test_a_tpu_server_that_died_is_learned_with_its_flags_and_last_words(learn: Learn, tmp_path: Path):
    assert learn(V5E_DIES) == ExitCode.DONE
    boot = learned(tmp_path).boot("learned-gemma-4-e2b-it-v5e-1-1")
    vllm = boot.deployment.vllm
    assert (boot.outcome, boot.died_at) == ("dies", "programs")
    assert "Attempting to reserve 384.11M" in boot.message
    assert (boot.deployment.accelerator, vllm.gpu_memory_utilization, vllm.max_model_len) == ("v5e-1", 0.95, 16_384)
    assert vllm.limit_mm_per_prompt == {"image": 4, "audio": 1}
    assert {figure.key: figure.measured for figure in boot.figures} == {
        "weights": 8.97, "kv": 5.99, "kv_tokens": 348_896, "kv_blocks": 10_903, "load": 59.61,
    }  # fmt: skip
    assert boot.is_held_out
    assert boot.sources[0].failures == (boot.id,)


def test_figures_of_four_chips_are_those_of_one(learn: Learn, tmp_path: Path):
    assert learn(V6E_4_RUNS) == ExitCode.DONE
    boot = learned(tmp_path).boot("learned-gemma-4-26b-a4b-it-v6e-4-1")
    figures = {figure.key: figure for figure in boot.figures}
    assert boot.deployment.vllm.gpu_memory_utilization == 0.92
    assert boot.deployment.vllm.served_model_name == "google/gemma-4-26B-A4B-it"
    assert boot.deployment.vllm.extra_args == ("--max-logprobs=32",)
    assert figures["kv"].measured == pytest.approx(53.81 / 4)
    assert figures["kv"].note == "53.81 GiB on 4 chips"
    assert figures["load"].measured == pytest.approx(23.626 + 153.48, abs=0.01)
    assert figures["restart"].measured == 459


def test_a_gpu_log_names_no_gpu_so_the_command_line_does(
    learn: Learn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert learn(L4_RUNS) == ExitCode.REFUSED
    assert "The log does not name an accelerator. Add --accelerator NAME." in capsys.readouterr().err
    assert not (tmp_path / "own.toml").exists()
    assert (
        learn(L4_RUNS, "--accelerator", "L4", "--platform", "gce", "--url", "https://example.com/boot.log")
        == ExitCode.DONE
    )
    output = capsys.readouterr()
    boot = learned(tmp_path).boot("learned-gemma-4-e2b-it-qat-w4a16-ct-l4-1")
    assert (boot.outcome, boot.image, boot.sources[0].url) == ("runs", "vllm 0.30.0", "https://example.com/boot.log")
    assert {figure.key: figure.measured for figure in boot.figures}["weights"] == 8.01
    assert "KV tokens" in output.out
    assert "873,318" in output.out
    assert "Could not read the figures compile." in output.err


def test_what_the_command_line_states_holds_over_the_log(learn: Learn, tmp_path: Path):
    assert learn(V5E_DIES, "--set", "maxModelLen=8192", "--accelerator", "v6e-1") == ExitCode.DONE
    boot = learned(tmp_path).boot("learned-gemma-4-e2b-it-v6e-1-1")
    assert (boot.deployment.accelerator, boot.deployment.vllm.max_model_len) == ("v6e-1", 8_192)


def test_learning_twice_adds_two_boots_and_the_page_shows_both(
    learn: Learn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert [learn(V5E_DIES), learn(V5E_DIES)] == [ExitCode.DONE, ExitCode.DONE]
    assert len(learned(tmp_path).boots) == len(parse(FILE.read_text(encoding="utf-8")).boots) + 2
    capsys.readouterr()
    assert plan_accuracy.main(["--with", str(tmp_path / "own.toml")]) == 0
    page = capsys.readouterr().out
    assert page.count("| gemma-4-E2B-it on v5e-1, boot.log, ") == 2 * 6


def test_show_writes_nothing_and_json_is_one_object(learn: Learn, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert learn(V5E_DIES, "--show", "--json") == ExitCode.DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["file"], found["outcome"], found["diedAt"], found["right"]) == (None, "dies", "programs", True)
    assert [row["figure"] for row in found["figures"]] == ["weights", "kv_tokens", "kv_blocks", "kv", "load"]
    assert "vllm.gpu_memory_utilization = 0.95" in found["deployment"]
    assert not (tmp_path / "own.toml").exists()


def test_a_secret_flag_is_never_repeated(learn: Learn, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = V5E_DIES.replace("{'model_tag'", "{'api_key': ['sk-CANARY'], 'hf_token': 'hf_CANARY', 'model_tag'")
    assert learn(text) == ExitCode.DONE
    output = capsys.readouterr()
    assert "CANARY" not in (tmp_path / "own.toml").read_text(encoding="utf-8") + output.out + output.err
    assert "hf_token" in output.err


@pytest.mark.parametrize(
    ("line", "died_at"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.62 GiB.", "memory"),
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.", "memory"),
        ("ValueError: To serve at least one request with the model's max seq len (131072), 5.98 GiB KV cache is needed.", "memory"),
        ("ValueError: Free memory on device (21.5/21.96 GiB) is less than desired GPU memory utilization (0.99, 21.74 GiB).", "memory"),
        ("ValueError: Chunked MM input disabled but max_tokens_per_mm_item (2496) is larger than max_num_batched_tokens (2048).", "arguments"),
        ("vllm: error: argument --kv-cache-dtype: invalid choice: 'int8'", "arguments"),
        ("NotImplementedError: compressed-tensors scheme for layer 'q_proj' is not yet supported in the JAX path", "loading"),
        ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 98304, Hardware limit: 65536", "programs"),
    ],
)  # fmt: skip
def test_the_telling_line_says_where_a_server_died(line: str, died_at: str):
    text = f"(EngineCore pid=1) ERROR 08-07 23:27:17 [core.py:1] {line}\nRuntimeError: Engine core initialization failed.\n"
    report = read_boot(text)
    assert (report.outcome, report.died_at, report.message) == ("dies", died_at, line)


def test_a_fault_after_the_weights_is_one_of_the_programs():
    after = V5E_DIES.replace(
        "RESOURCE_EXHAUSTED: E0101: RuntimeProgramAllocationFailure:", "INTERNAL: compilation failed"
    )
    assert read_boot(after).died_at == "programs"
    with pytest.raises(
        CommandRefusedError, match="neither a line like 'Application startup complete' nor a vLLM error"
    ):
        read_boot("INFO 08-07 23:10:35 [core.py:1] Loading weights took 59.61 seconds\n")


def test_an_error_that_a_server_survived_is_not_a_crash():
    report = read_boot("ERROR 09-26 23:10:17 [tpu_info.py:40] ValueError: no metadata\n" + V6E_4_RUNS)
    assert (report.outcome, report.message) == ("runs", "")


def simulated_log(accelerator: str, command: Sequence[str]) -> str:
    """Return what the simulated server logs until it answers, or dies."""
    start = plan_start(
        parse_arguments(["vllm", "serve", *command]), read_environment({"VLLM_SIM_ACCELERATOR": accelerator})
    )
    steps = [step.line or str(step.error) for step in start.steps]
    return "\n".join([*steps, "INFO:     Application startup complete."])


def test_the_log_of_the_simulated_server_is_read_too(learn: Learn, tmp_path: Path):
    text = simulated_log("nvidia-l4", ["google/gemma-4-E2B-it", "--max-model-len", "8192"])
    assert (
        learn(text, "--model", "google/gemma-4-E2B-it", "--accelerator", "L4", "--set", "maxModelLen=8192")
        == ExitCode.DONE
    )
    boot = learned(tmp_path).boot("learned-gemma-4-e2b-it-l4-1")
    keys = {figure.key for figure in boot.figures}
    assert {"weights", "kv", "kv_tokens", "load"} <= keys


def test_a_scrape_of_metrics_is_a_server_that_runs(learn: Learn, tmp_path: Path):
    config = {
        "num_gpu_blocks": 10_043,
        "block_size": 32,
        "gpu_memory_utilization": 0.92,
        "cache_dtype": "auto",
        "enable_prefix_caching": True,
    }
    scrape = Metrics("google/gemma-4-E2B-it", config, max_model_len=8192).render(running=0, waiting=0, kv_usage=0.0)
    assert learn(scrape, "--accelerator", "v5e-1", "--set", "maxModelLen=16384") == ExitCode.DONE
    boot = learned(tmp_path).boot("learned-gemma-4-e2b-it-v5e-1-1")
    (blocks,) = boot.figures
    assert (boot.outcome, blocks.key, blocks.measured) == ("runs", "kv_blocks", 10_043)
    assert (boot.deployment.vllm.block_size, boot.deployment.vllm.kv_cache_dtype) == (32, "auto")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nonexistent.log"], "Cannot read /nonexistent.log: No such file or directory. Pass the path of a log."),
        (["{log}", "--accelerator", "v9e-1"], "v9e-1"),
        (["{log}", "--set", "maxModelLen=0"], "maxModelLen is 0; it must be 1 or more."),
        (["{log}", "--into", "{log}/own.toml"], "Cannot write --into "),
    ],
)
def test_a_mistake_is_refused_in_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    log = tmp_path / "boot.log"
    log.write_text(V5E_DIES, encoding="utf-8")
    assert main(["learn", *(argument.replace("{log}", str(log)) for argument in arguments)]) == ExitCode.REFUSED
    last = capsys.readouterr().err.strip().splitlines()
    assert message in last[-1]
    assert len(last) == 1


def test_a_file_that_is_not_a_corpus_is_unchanged(learn: Learn, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    own = tmp_path / "own.toml"
    own.write_text("[sources.mine]\nname = 'x'\n", encoding="utf-8")
    assert learn(V5E_DIES) == ExitCode.REFUSED
    assert "sources.mine" in capsys.readouterr().err
    assert own.read_text(encoding="utf-8") == "[sources.mine]\nname = 'x'\n"


def test_the_file_of_this_checkout_is_read_with_the_corpus_and_holds_nothing_of_it():
    assert parse(FILE.read_text(encoding="utf-8"), LEARNED_FILE.read_text(encoding="utf-8")).boots
