"""Each way in which a container fails to start has a hint with a figure and what to change.

The lines are those of public logs, of Cloud Run's system log and of vLLM.
"""

import pytest

from gemma_serving.planning.rules.crashes import CRASHES
from gemma_serving.planning.rules.findings import RULES
from gemma_serving.planning.settings.cloud_run import ProbeSettings
from gemma_serving.stacks.hooks.failure_hints import Cause, cause_of, known_causes
from tests.stacks.failed_start import failed_start

MEMORY = "Memory limit of 16384 MiB exceeded with 16793 MiB used. Consider increasing the memory limit, see https://cloud.google.com/run/docs/configuring/memory-limits"
SIGNAL = "Container terminated on signal 9."
EXIT = "Container called exit(1)."
PROBE = 'STARTUP HTTP probe failed {} consecutively for container "vllm" on port 8000 path "/health". The instance was not started. '
CANCELLED = PROBE.format("1 time") + "Connection failed with status CANCELLED."
SLOW = PROBE.format("30 times") + "Connection failed with status ERROR_CONNECTION_FAILED."
UNMOUNTED = "terminated: Application failed to run: volume (type: gcs, name: models): mount operation failed"
DENIED = "PermissionError: [Errno 13] Permission denied: '/mnt/models/gemma-4-12B-it-qat-w4a16-ct/config.json'"
UNLISTED = (
    "google.api_core.exceptions.Forbidden: 403 GET https://storage.googleapis.com/storage/v1/b/models/o: a@p does not have storage.objects.list "
    "access to the Google Cloud Storage bucket."
)
GATED = "Access to model google/gemma-4-12B-it-qat-w4a16-ct is restricted and you are not in the authorized list."
NO_WEIGHTS = (
    "  Value error, Invalid repository ID or local directory specified: '/mnt/models/gemma-4-12B-it-qat-w4a16-ct'."
)
OFFLINE_WITHOUT_WEIGHTS = (
    "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
    "'/mnt/models/gemma-4-12B-it-qat-w4a16-ct'. Use `repo_type` argument if needed."
)
"""With HF_HUB_OFFLINE=1 (vLLM 0.32.0)."""
TOO_LONG = (
    "(EngineCore pid=407) ValueError: To serve at least one request with the model's max seq len (262144), (6.13 GiB KV cache is needed, which is "
    "larger than the available KV cache memory (4.56 GiB). Based on the available memory, the estimated maximum model length is 165120. Try increasing "
    "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
)
NO_CACHE = "ValueError: No available memory for the cache blocks (Available KV cache memory: -1.22 GiB). Try increasing `gpu_memory_utilization`."
CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 22.03 GiB"
ENGINE_FAILED = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
FLAG = "vllm: error: unrecognized arguments: --max-model-length=8192"
BEGUN = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have "
    "already set an error? "
)
MISMATCH = BEGUN + "Error 803: system has unsupported display driver / cuda driver combination"
OLD_DRIVER = (
    "RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver by downloading and installing a "
    "new version from the URL: http://www.nvidia.com/Download/index.aspx"
)
LONGEST = ProbeSettings(initial_delay_s=240, period_s=60, failure_threshold=30, timeout_s=10)
SHORT = ProbeSettings(initial_delay_s=60, period_s=60, failure_threshold=2, timeout_s=10)


@pytest.mark.parametrize(
    ("lines", "changes", "says"),
    [
        pytest.param(
            [MEMORY, SIGNAL, CANCELLED],
            {},
            [
                "It used 16793 MiB, 409 MiB more than",
                "cloudRun.memory to at least 20Gi and gemma-serving:cloudRun.cpu to 6.",
            ],
            id="memory",
        ),
        pytest.param(
            [MEMORY.replace("16384", "32768").replace("16793", "33010"), SIGNAL],
            {"run": {"memory_mib": 32768, "cpu": 8}},
            ["242 MiB more than", "A nvidia-l4 has 32 GiB at most", "gemma plan l4-12b-qat"],
            id="memory at the limit of the GPU",
        ),
        pytest.param(
            ["Loading safetensors checkpoint shards:  50% Completed | 1/2", SLOW],
            {"run": {"startup_probe": SHORT}},
            [
                "did not answer /health within 180 s (60 s, then 2 x 60 s). The planned start takes ",
                "Set gemma-serving:cloudRun.startupProbe: { initialDelay: 240s, period: 10s, failureThreshold: 180, timeout: 5s }.",
            ],
            id="probe",
        ),
        pytest.param(
            [SLOW],
            {"run": {"startup_probe": LONGEST}},
            ["within 2,040 s", "Cloud Run allows no more", "fuse-buffered with cloudRun.directVpc"],
            id="longest probe",
        ),
        pytest.param(
            ["Error: ... code = PermissionDenied desc = ...", "Container called exit(255).", UNMOUNTED, CANCELLED],
            {},
            [
                "volume models",
                "gs://local-project-gemma-l4-12b-qat-models",
                "gemma-l4-12b-qat@local-project.iam.gserviceaccount.com cannot list it",
            ],
            id="mount",
        ),
        pytest.param(
            ["Error: unknown flag: --cache-dirs", "Container called exit(255).", UNMOUNTED, CANCELLED],
            {},
            ["rejected a mount option: unknown flag: --cache-dirs.", "gemma-serving:cloudRun.mount.options"],
            id="mount option",
        ),
        pytest.param(
            [UNLISTED, EXIT],
            {},
            ["gs://local-project-gemma-l4-12b-qat-models", "needs roles/storage.objectViewer on it"],
            id="streamer without the right",
        ),
        pytest.param(
            ["HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': 'gs://b/m'.", EXIT],
            {},
            ["The image's vLLM (0.31.0) treats a gs:// URI as", "vLLM 0.11.1 or later"],
            id="image without the streamer",
        ),
        pytest.param(
            ["Cannot start the server: No object under gs://b/m/. Stage the model first.", EXIT],
            {},
            ["not copied into memory: No object under gs://b/m/.", "cloudRun.memory (now 16384 MiB)"],
            id="copy into memory",
        ),
        pytest.param(
            ["Exception: Memory limit supplied: 4294967296 cannot be smaller than: 4697620480", EXIT],
            {},
            ["has 4,294,967,296 bytes", "fuse-buffered"],
            id="buffer",
        ),
        pytest.param([DENIED, EXIT], {}, ["the mount is owned by uid 0", "gemma-serving:image.uid"], id="uid"),
        pytest.param(
            [GATED, EXIT],
            {"weights": "hub"},
            ["has no secret hfToken", "https://huggingface.co/google/gemma-4-12B-it-qat-w4a16-ct"],
            id="gated",
        ),
        pytest.param(
            [
                "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: Root=1)",
                "Repository Not Found for url: https://huggingface.co/api/models/google/gemma-4-12B-it-qat-w4a16-ct.",
                EXIT,
            ],
            {"weights": "hub"},
            [
                "It does not exist or is private. Check gemma-serving:model (closest known",
                "gemma save_token l4-12b-qat hfToken",
            ],
            id="absent",
        ),
        pytest.param(
            ["401 Client Error: Unauthorized for url: https://huggingface.co/api/models/google/x", EXIT],
            {"weights": "hub", "secrets": ["hfToken"]},
            [
                "hfToken cannot read it or is invalid",
                "gemma save_token l4-12b-qat hfToken",
            ],
            id="token",
        ),
        pytest.param(
            [NO_WEIGHTS, EXIT, CANCELLED],
            {},
            [
                "models/gemma-4-12B-it-qat-w4a16-ct has no complete checkpoint",
                "gemma stage_model l4-12b-qat",
            ],
            id="weights",
        ),
        pytest.param(
            [OFFLINE_WITHOUT_WEIGHTS, EXIT, CANCELLED],
            {},
            [
                "models/gemma-4-12B-it-qat-w4a16-ct has no complete checkpoint",
                "gemma stage_model l4-12b-qat",
            ],
            id="weights of an offline server",
        ),
        pytest.param(
            [TOO_LONG, EXIT],
            {},
            [
                "one request of 262,144 tokens: it needs 6.13 GiB, but 4.56 GiB is left",
                "vllm.maxModelLen to 165120 or less",
            ],
            id="length",
        ),
        pytest.param(
            [NO_CACHE, EXIT],
            {},
            ["(Available KV cache memory: -1.22 GiB)", "gpuMemoryUtilization"],
            id="no cache memory",
        ),
        pytest.param([CUDA, EXIT], {}, ["2.50 GiB more was requested", "maxNumBatchedTokens"], id="GPU memory"),
        pytest.param(
            [MISMATCH, EXIT, CANCELLED],
            {},
            [
                "CUDA error 803: the driver of the nvidia-l4",
                "Set gemma-serving:cloudRun.cudaCompatibility: false, then",
            ],
            id="driver as new as the libraries",
        ),
        pytest.param(
            [OLD_DRIVER, EXIT, CANCELLED],
            {"run": {"cuda_compatibility": False}},
            ["has CUDA 12.2, older", "Set gemma-serving:cloudRun.cudaCompatibility: true, then"],
            id="old driver",
        ),
        pytest.param(
            [FLAG, "Container called exit(2).", CANCELLED],
            {},
            ["unrecognized arguments: --max-model-length=8192", "gemma-serving:vllm"],
            id="flag",
        ),
        pytest.param(
            [
                "vllm.exceptions.LoRAAdapterNotFoundError: Loading lora sql failed: No adapter found for my-org/nope",
                EXIT,
            ],
            {},
            ["vLLM found no LoRA adapter my-org/nope. Correct gemma-serving:vllm.lora.adapters."],
            id="adapter",
        ),
    ],
)
def test_a_failure_is_explained_with_its_figure_and_the_way_out(lines, changes, says):
    cause = cause_of(lines, failed_start(**changes))
    assert all(part in cause.hint for part in says), cause.hint
    assert cause.line in lines


RECORDED = {
    "vllm-project/vllm#53884": "RuntimeError: Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned.",
    "vllm-project/vllm#48848": "RuntimeError('a and b must have same reduction dim, but got [s47, 3840] X [5632, 1024].')",
    "vllm-project/vllm#51744": (
        "transformers.integrations.heterogeneity.configuration_utils.AmbiguousGlobalPerLayerAttributeError: 'head_dim' is a per-layer attribute"
    ),
    "vllm-project/vllm#56936": "Value error, Number of experts in the model must be greater than 0 when expert parallelism is enabled.",
    "jax-ml/jax#38004": "schecklt: Invalid logical z",
    "12B with a draft model on a TPU": "ValueError: Size of label 'n' for operand 1 (4864) does not match previous terms (7680).",
}
"""The lines as the threads quote them."""


def test_a_crash_on_public_record_is_recognized_with_its_page_and_the_way_out():
    assert RECORDED.keys() == {crash.id for crash in CRASHES.values() if crash.pattern}
    for identifier, line in RECORDED.items():
        cause = cause_of([f"(EngineCore pid=407) {line}", ENGINE_FAILED, EXIT, CANCELLED], failed_start())
        assert cause.finding == "REL01"
        assert CRASHES[identifier].source in cause.hint
        assert CRASHES[identifier].way_out in cause.hint


def test_the_newest_other_error_replaces_the_engines_last_line_and_is_no_known_cause():
    error = "ValueError: the drafter has another vocabulary"
    lines = [
        "ValueError: older",
        f"(EngineCore pid=407) ERROR 11-27 10:00:00 [core.py:1] {error}",
        ENGINE_FAILED,
        EXIT,
        CANCELLED,
    ]
    assert cause_of(lines, failed_start()) == Cause(line=error)


def test_what_the_planner_does_not_know_has_no_hint():
    assert cause_of(["Traceback (most recent call last):", "KeyError: 'x'", EXIT, CANCELLED], failed_start()) is None


def test_more_memory_is_more_than_the_plan_and_more_than_was_used():
    start = failed_start("l4-qat", model="google/gemma-4-31B-it-qat-w4a16-ct", run={"memory_mib": 16384, "cpu": 4})
    assert start.plan.memory.load_peak_host_gib > 22
    assert "at least 28Gi" in cause_of([MEMORY], start).hint


def test_each_cause_of_the_table_has_a_text_and_a_rule_of_the_planner():
    for name, known in known_causes().items():
        assert "text" in known or "else" in known, name
        assert known.get("rule", "FIT01") in RULES, name
        assert known.get("target", "tpu") in {"tpu", "cloud-run"}, name
        assert set(known) <= {"pattern", "text", "if", "else", "given", "rule", "target", "generic"}, name
