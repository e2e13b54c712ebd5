"""`scripts.plan learn`: boot logs and scrapes in, a file of the corpus and a comparison out.

The lines are those of public logs of xbill9/gemma4-dev, each named beside its test, and of the simulated server.
"""

import json
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

import pytest

from authors.accuracy import __main__ as plan_accuracy
from contracts.errors import CommandRefusedError
from contracts.exit_codes import ExitCode
from localcloud.vllm.arguments import parse as parse_arguments
from localcloud.vllm.metrics import Metrics
from localcloud.vllm.settings import read as read_environment
from localcloud.vllm.startup import plan as plan_start
from planning.question.fields import field_types
from planning.question.types import CloudRunOptions, Deployment, TpuOptions
from planning.question.vllm_args import VllmOptions
from scripts.plan import learn as learn_module
from scripts.plan import learned_boot as learned_boot_module
from scripts.plan import learned_log, public_boot
from scripts.plan.__main__ import main
from scripts.plan.boot_log import first_line, read_boot
from scripts.plan.corpus.errors import compared
from scripts.plan.corpus.measured import BOOTS, Boot, Measurements, corpus_files, load, load_files
from scripts.plan.learned_log import BootLog
from scripts.plan.public_boot import public_text
from scripts.plan.question import Question

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
    """Learn a text into a folder of its own and return the exit code."""

    def run(text: str, *more: str) -> int:
        log = tmp_path / "boot.log"
        log.write_text(text, encoding="utf-8")
        return main(["learn", str(log), "--into", str(tmp_path / "own"), *more])

    return run


def own_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "own").glob("*.toml"))


def own_text(tmp_path: Path) -> str:
    (path,) = own_files(tmp_path)
    return path.read_text(encoding="utf-8")


def learned(tmp_path: Path) -> Measurements:
    return load_files(*corpus_files(), *own_files(tmp_path))


def learned_boot(tmp_path: Path) -> Boot:
    """Return the boot of the only file, whose name is its id."""
    (path,) = own_files(tmp_path)
    return learned(tmp_path).boot(path.stem)


def test_a_tpu_server_that_died_is_learned_with_its_flags_and_last_words(learn: Learn, tmp_path: Path):
    assert learn(V5E_DIES) == ExitCode.DONE
    boot = learned_boot(tmp_path)
    vllm = boot.deployment.vllm
    assert (boot.outcome, boot.died_at) == ("dies", "programs")
    assert "Attempting to reserve 384.11M" in boot.message
    assert (boot.deployment.accelerator, vllm.gpu_memory_utilization, vllm.max_model_len) == ("v5e-1", 0.95, 16_384)
    assert vllm.limit_mm_per_prompt == {"image": 4, "audio": 1}
    assert {figure.key: figure.measured for figure in boot.figures} == {
        "weights": 8.97, "kv": 5.99, "kv_tokens": 348_896, "kv_blocks": 10_903, "load": 59.61,
    }  # fmt: skip
    assert boot.id.startswith("learned-gemma-4-e2b-it-v5e-1-")
    assert boot.evidence == "unseen"
    assert {figure.key: round(figure.first or 0) for figure in boot.figures}["kv_tokens"] == 349_056
    assert boot.first_right is True
    assert boot.sources[0].failures == (boot.id,)


def test_figures_of_four_chips_are_those_of_one(learn: Learn, tmp_path: Path):
    assert learn(V6E_4_RUNS) == ExitCode.DONE
    boot = learned_boot(tmp_path)
    figures = {figure.key: figure for figure in boot.figures}
    assert boot.deployment.vllm.gpu_memory_utilization == 0.92
    assert boot.deployment.vllm.served_model_name is None
    assert boot.deployment.vllm.extra_args == ("--max-logprobs=32",)
    assert figures["kv"].measured == pytest.approx(53.81 / 4)
    assert figures["kv"].note == "53.81 GiB on 4 chips"
    assert figures["load"].measured == pytest.approx(23.626 + 153.48, abs=0.01)
    assert figures["restart"].measured == 459


def test_a_gpu_log_names_no_gpu_so_the_command_line_does(
    learn: Learn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert learn(L4_RUNS) == ExitCode.REFUSED
    assert "Add --accelerator NAME, or --device FIGURES for a GPU that is not listed." in capsys.readouterr().err
    assert own_files(tmp_path) == []
    assert (
        learn(L4_RUNS, "--accelerator", "L4", "--platform", "gce", "--url", "https://example.com/boot.log")
        == ExitCode.DONE
    )
    output = capsys.readouterr()
    boot = learned_boot(tmp_path)
    assert (boot.outcome, boot.image, boot.sources[0].url) == ("runs", "vllm 0.30.0", "https://example.com/boot.log")
    assert {figure.key: figure.measured for figure in boot.figures}["weights"] == 8.01
    assert "KV tokens" in output.out
    assert "873,318" in output.out
    assert "Could not read the figures compile." in output.err


def test_what_the_command_line_states_holds_over_the_log(learn: Learn, tmp_path: Path):
    assert learn(V5E_DIES, "--set", "maxModelLen=8192", "--accelerator", "v6e-1") == ExitCode.DONE
    boot = learned_boot(tmp_path)
    assert (boot.deployment.accelerator, boot.deployment.vllm.max_model_len) == ("v6e-1", 8_192)


def test_a_gpu_outside_the_catalog_is_learned_by_its_figures(learn: Learn, tmp_path: Path):
    device = "memory=24GiB,bandwidth=936GB/s,tflops=71,usable=23.56GiB,count=2,name=RTX 3090"
    assert learn(L4_RUNS, "--device", device, "--set", "tensorParallelSize=2") == ExitCode.DONE
    boot = learned_boot(tmp_path)
    assert boot.deployment.device is not None
    assert (boot.deployment.device.usable_gib, boot.deployment.device.devices) == (23.56, 2)
    assert boot.deployment.image_version == "0.30.0"
    assert boot.id.startswith("learned-gemma-4-e2b-it-qat-w4a16-ct-2-x-rtx-3090-")


def test_a_log_without_flags_has_the_servers_defaults_and_not_the_recommended_ones(learn: Learn, tmp_path: Path):
    assert learn(L4_RUNS, "--accelerator", "L4", "--platform", "gce") == ExitCode.DONE
    vllm = learned_boot(tmp_path).deployment.vllm
    assert (vllm.max_num_seqs, vllm.max_num_batched_tokens, vllm.disable_chunked_mm_input) == (256, 2_048, False)
    (tokens,) = [row for row in compared([learned_boot(tmp_path)]) if row.figure.key == "kv_tokens"]
    assert tokens.is_within


def test_the_batch_of_the_log_is_taken(learn: Learn, tmp_path: Path):
    line = "(EngineCore pid=1) INFO 09-29 19:47:09 [scheduler.py:1] Chunked prefill is enabled with max_num_batched_tokens=8192.\n"
    assert learn(line + L4_RUNS, "--accelerator", "L4", "--platform", "gce") == ExitCode.DONE
    assert learned_boot(tmp_path).deployment.vllm.max_num_batched_tokens == 8_192


def test_the_same_log_is_recognized_and_another_one_is_a_file_of_its_own(
    learn: Learn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert learn(V5E_DIES) == ExitCode.DONE
    before = own_text(tmp_path)
    capsys.readouterr()
    assert learn(V5E_DIES, "--set", "maxNumSeqs=8", "--json") == ExitCode.DONE
    output = capsys.readouterr()
    assert "The corpus has this log already, as learned-gemma-4-e2b-it-v5e-1-" in output.err
    assert (json.loads(output.out)["alreadyRecorded"], json.loads(output.out)["file"]) == (True, None)
    assert own_text(tmp_path) == before
    assert learn(V5E_DIES.replace("5.99", "5.98")) == ExitCode.DONE
    assert len(own_files(tmp_path)) == 2
    assert len(learned(tmp_path).boots) == len(load().boots) + 2


def test_a_learned_file_is_shown_on_the_page_and_the_person_is_told_how_to_offer_it(
    learn: Learn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert learn(V5E_DIES) == ExitCode.DONE
    assert "open a pull request that adds this file" in capsys.readouterr().err
    (path,) = own_files(tmp_path)
    assert plan_accuracy.main(["--with", str(path)]) == 0
    page = capsys.readouterr().out
    rows = [line for line in page.splitlines() if line.startswith("| gemma-4-E2B-it, v5e-1, ")]
    assert len(rows) == 6
    assert "| 4 of 5 (80%) |" in page.split("## Verdicts")[0]


def test_show_writes_nothing_and_json_is_one_object(learn: Learn, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert learn(V5E_DIES, "--show", "--json") == ExitCode.DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["file"], found["outcome"], found["diedAt"], found["right"]) == (None, "dies", "programs", True)
    assert [row["figure"] for row in found["figures"]] == ["weights", "kv_tokens", "kv_blocks", "kv", "load"]
    assert "vllm.gpu_memory_utilization = 0.95" in found["deployment"]
    assert own_files(tmp_path) == []


CANARIES = {
    "secret": "hf_CANARYcanary0123456789CANARY",
    "project": "canary-project-1234",
    "machine": "canary-machine-w-0",
    "person": "canary.person",
}


def test_no_secret_project_machine_or_person_reaches_the_file(
    learn: Learn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    secret, project, machine, person = CANARIES.values()
    flags = {
        "api_key": [f"sk-{secret}"],
        "hf_token": secret,
        "served_model_name": [f"{project}-model"],
        "download_dir": f"/home/{person}/weights",
        "otlp_traces_endpoint": f"http://{machine}.{project}.internal:4317",
        "allowed_media_domains": [f"{machine}.example.com"],
        "additional_config": {"bucket": f"gs://{project}-weights"},
        "lora_modules": [{"name": person, "path": f"gs://{project}/adapter"}],
        "chat_template": f"/home/{person}/template.jinja",
        "max_logprobs": 32,
    }
    spelled = "".join(f"{name!r}: {value!r}, " for name, value in flags.items())
    text = V5E_DIES.replace("{'model_tag'", f"{{{spelled}'model_tag'")
    assert text != V5E_DIES
    fault = f"cannot write gs://{project}-logs/a, /home/{person}/b on {machine}.c.{project}.internal:80 as {person}@example.com, {secret}"
    text = text.replace("Attempting to reserve", f"{fault} Attempting to reserve")
    (tmp_path / f"{machine}.log").write_text(text, encoding="utf-8")
    log = str(tmp_path / f"{machine}.log")
    url = f"https://{person}:{secret}@example.com/boot.log"
    assert main(["learn", log, "--into", str(tmp_path / "own"), "--url", url, "--json"]) == ExitCode.DONE
    written = own_text(tmp_path) + own_files(tmp_path)[0].name
    assert [name for name, canary in CANARIES.items() if canary in written] == []
    assert "Attempting to reserve 384.11M" in written
    assert 'vllm.extra_args = ["--max-logprobs=32"]' in written
    assert "--download-dir" in written
    assert secret not in capsys.readouterr().out


def test_a_stacks_settings_reach_the_file_without_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The settings of a stack name accounts, zones, buckets and an endpoint."""
    log = BootLog(text=V5E_DIES, day=date(2026, 11, 22))
    monkeypatch.setattr(learned_boot_module, "deployment_from", lambda _: NAMED)
    boot = learned_boot_module.boot_of(log, Question(stack="tpu-v6e1"))
    text = learned_boot_module.boot_text(boot)
    assert "canary" not in text
    assert 'tpu.compile_cache = "bucket"' in text
    assert "vllm.max_model_len = 16384" in text


NAMED = Deployment(
    model="google/gemma-4-E2B-it",
    accelerator="v6e-1",
    endpoint_url="https://canary-123.run.app",
    tpu=TpuOptions(
        zones=("canary-zone",),
        tunnel_members=("user:canary@example.com",),
        tunnel_role="projects/canary/roles/tunnel",
        compile_cache="bucket",
    ),
    cloud_run=CloudRunOptions(region="canary-region"),
    vllm=VllmOptions(
        served_model_name="canary",
        allowed_media_domains=("canary.example.com",),
        speculative_config={"model": "gs://canary-bucket/gemma-4-E2B-it-assistant", "num_speculative_tokens": 3},
        extra_args=("--otlp-traces-endpoint=http://canary",),
    ),
)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("Free memory on device (21.5/21.96 GiB) is less", "Free memory on device (21.5/21.96 GiB) is less"),
        ("module model.layers.0.mlp.down_proj.weight", "module model.layers.0.mlp.down_proj.weight"),
        ("vLLM 0.30.0 at 10.128.0.3:8000", "vLLM 0.30.0 at [address]"),
        ("see https://example.com/a?b=c, or /var/log/x/y.log", "see [url], or [path]"),
    ],
)
def test_a_message_keeps_its_figures_and_loses_its_places(line: str, kept: str):
    assert public_text(line) == kept


def test_every_text_field_of_a_deployment_is_published_on_purpose():
    """A new field with free text is dropped until it is added to the lists of public_boot."""
    kept = {
        path
        for path in field_types()
        if public_boot._public(path, "word" if field_types()[path].hint is str else ("--flag",)) is not None
        and (field_types()[path].hint is str or field_types()[path].hint == tuple[str, ...])
    }
    assert kept == {
        *("model", "accelerator", "platform", "quantization", "vllm.extra_args"),
        *("vllm.tool_call_parser", "vllm.reasoning_parser", "vllm.load_format"),
    }


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
    boot = learned_boot(tmp_path)
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
    scrape = Metrics("google/gemma-4-E2B-it", config).render(running=0, waiting=0, kv_usage=0.0)
    assert learn(scrape, "--accelerator", "v5e-1", "--set", "maxModelLen=16384") == ExitCode.DONE
    boot = learned_boot(tmp_path)
    (blocks,) = boot.figures
    assert (boot.outcome, blocks.key, blocks.measured) == ("runs", "kv_blocks", 10_043)
    assert (boot.deployment.vllm.block_size, boot.deployment.vllm.kv_cache_dtype) == (32, "auto")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nonexistent.log"], "Cannot read /nonexistent.log: No such file or directory. Pass the path of a log."),
        (["{log}", "--accelerator", "v9e-1"], "v9e-1"),
        (["{log}", "--set", "maxModelLen=0"], "maxModelLen is 0; it must be 1 or more."),
        (["{log}", "--into", "{log}/own"], "Cannot write "),
        ([], "No log. Pass the path of a boot log, or --stack NAME to read the stack's logs."),
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


def test_a_folder_with_a_file_of_another_kind_is_named(
    learn: Learn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    other = tmp_path / "own" / "other.toml"
    other.parent.mkdir()
    other.write_text("[sources.mine]\nname = 'x'\n", encoding="utf-8")
    assert learn(V5E_DIES) == ExitCode.REFUSED
    assert "other.toml: sources.mine" in capsys.readouterr().err
    assert own_files(tmp_path) == [other]


def test_a_stacks_logs_are_read_from_its_newest_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    log = BootLog(text=L4_RUNS.replace("E2B", "12B"), day=date(2026, 11, 22))
    asked: list[str] = []
    monkeypatch.setattr(learn_module, "log_of_stack", lambda stack: asked.append(stack) or log)
    assert main(["learn", "--stack", "l4-12b-qat", "--into", str(tmp_path / "own")]) == ExitCode.DONE
    assert asked == ["l4-12b-qat"]
    assert learned_boot(tmp_path).deployment.vllm.max_model_len == 8_192


def test_a_simulated_server_is_compared_and_not_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    log = BootLog(text=L4_RUNS.replace("E2B", "12B"), day=date(2026, 11, 22), is_simulated=True)
    monkeypatch.setattr(learn_module, "log_of_stack", lambda _: log)
    assert main(["learn", "--stack", "l4-12b-qat", "--into", str(tmp_path / "own")]) == ExitCode.DONE
    output = capsys.readouterr()
    assert "A simulated server wrote this log." in output.err
    assert "KV tokens" in output.out
    assert own_files(tmp_path) == []


def test_a_log_without_a_start_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("scripts.logs.face.newest_start", lambda *_: ())
    with pytest.raises(CommandRefusedError, match="Save the server's log and pass its path"):
        learned_log.log_of_stack("l4-qat")


def test_the_first_lines_of_a_start_are_recognized():
    first = [kind for line in (V5E_DIES + L4_RUNS).splitlines() if (kind := first_line(line))]
    assert sorted(first) == ["flags", "flags", "version"]
    assert not first_line("INFO [loggers.py:1] Engine 000: Avg prompt throughput: 0.0 tokens/s, version 3")


def test_the_files_of_the_corpus_are_named_by_their_source():
    for path in BOOTS.glob("*.toml"):
        text = path.read_text(encoding="utf-8")
        assert text.count("[sources.") == 1, f"{path.name} must have one source"
