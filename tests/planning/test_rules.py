"""Every failure that a preview can name: it stops the bad settings with the figure, and lets the good ones through."""

import re
from dataclasses import replace

import pytest

from authors.accuracy.corpus.measured import load
from planning import CloudRunOptions, Deployment, Finding, Plan, StartupProbe, TpuOptions, VllmOptions, Workload, plan
from planning.data.images import IMAGES
from planning.model.catalog import spec_of
from planning.question.fields import changed
from planning.question.types import WatchOptions
from planning.rules import gateway, registry
from planning.rules.findings import RULES, acceptable_ids, check_accepted
from planning.solve.wording import FIELDS, remedy_of, worded
from scripts.plan.question import CommandWording

MEASURED = load().deployments
TEXT_ONLY = {"image": 0, "video": 0, "audio": 0}


def found(p: Plan, identifier: str) -> Finding | None:
    return next((finding for finding in p.findings if finding.id == identifier), None)


def the(p: Plan, identifier: str) -> Finding:
    finding = found(p, identifier)
    assert finding is not None, f"{identifier} is missing among {[f.id for f in p.findings]}"
    return finding


def said(finding: Finding) -> str:
    return f"{worded(finding.message, CommandWording())} {remedy_of(finding, CommandWording())}"


def change_of(finding: Finding, path: str) -> object:
    return next(remedy.changes[path] for remedy in finding.remedies if path in remedy.changes)


def deployment(model: str = "E2B-it", accelerator: str = "v6e-4", **options: object) -> Deployment:
    return Deployment(
        model=f"google/gemma-4-{model}",
        accelerator=accelerator,
        vllm=VllmOptions(**options),  # pyright: ignore[reportArgumentType] - a test's shorthand
    )


def on_cloud_run(**options: object) -> Deployment:
    return replace(MEASURED["qat-26b-l4"], cloud_run=CloudRunOptions(**options))  # pyright: ignore[reportArgumentType]


def on_tpu(**options: object) -> Deployment:
    return replace(deployment(), tpu=TpuOptions(**options))  # pyright: ignore[reportArgumentType]


def drafted_by(drafter: str) -> dict[str, object]:
    return {"model": drafter, "num_speculative_tokens": 3}


def in_a_network(**vllm):
    """A TPU machine in an existing network, with its weights in the bucket."""
    tpu = TpuOptions(private_google_access=True)
    return replace(deployment(**vllm), weights_mode="disk", tpu=tpu)


STARTS_IN_TIME = StartupProbe(initial_delay_s=240, period_s=60, failure_threshold=25, timeout_s=60)
GOES_ON_TPU = replace(deployment(), tpu=TpuOptions(max_run_duration_s=14_400))

# Per id: settings that must show it, with its severity, and settings like them that must not.
REPLAY: dict[str, tuple[Deployment, str, Deployment]] = {
    "FIT01": (MEASURED["qat-31b-l4"], "block", replace(MEASURED["qat-31b-l4"], accelerator="RTX PRO 6000")),
    "FIT02": (MEASURED["qat-31b-l4-offload-14"], "warn", MEASURED["qat-26b-l4"]),
    "FIT03": (replace(MEASURED["qat-26b-l4"], host_memory_gib=16), "block", MEASURED["qat-26b-l4"]),
    "FIT04": (
        deployment("31B-it", "v6e-4", max_model_len=262_144),
        "block",
        deployment("31B-it", "v6e-4", max_model_len=32_768),
    ),
    "FIT05": (
        deployment("12B-it-qat-w4a16-ct", "L4", gpu_memory_utilization=0.99),
        "block",
        deployment("12B-it-qat-w4a16-ct", "L4", gpu_memory_utilization=0.90),
    ),
    "FIT06": (deployment("E4B-it-qat-w4a16-ct", "v6e-1"), "block", deployment("E4B-it", "v6e-1")),
    "FIT07": (MEASURED["e2b-v6e-4"], "warn", deployment("31B-it", "v6e-1", kv_cache_dtype="fp8")),
    "WRK01": (
        replace(deployment(), workload=Workload(rate_per_s=500.0)),
        "warn",
        replace(deployment(), workload=Workload(rate_per_s=1.0)),
    ),
    "WRK02": (
        replace(deployment(), workload=Workload(users=300)),
        "warn",
        replace(deployment(), workload=Workload(users=200)),
    ),
    "WRK03": (
        replace(deployment(), workload=Workload(input_tokens=16_000)),
        "block",
        replace(deployment(), workload=Workload(input_tokens=15_000)),
    ),
    "WRK04": (
        replace(deployment(), workload=Workload(images=5)),
        "block",
        replace(deployment(), workload=Workload(images=4)),
    ),
    "WRK05": (
        replace(deployment(), workload=Workload(adapters=2)),
        "block",
        replace(deployment(extra_args=("--enable-lora",)), workload=Workload(adapters=2)),
    ),
    "WRK06": (
        deployment(speculative_config={"model": "my/drafter", "num_speculative_tokens": 2}),
        "warn",
        deployment(speculative_config={"model": "google/gemma-4-E2B-it", "num_speculative_tokens": 2}),
    ),
    "WRK09": (
        deployment(lora_adapters={"sql": "org/sql"}),
        "warn",
        deployment("12B-it-qat-w4a16-ct", "L4", lora_adapters={"sql": "org/sql"}),
    ),
    "WRK08": (
        deployment(lora_adapters={"sql": "gs://adapters/sql"}),
        "warn",
        replace(deployment(lora_adapters={"sql": "gs://adapters/sql"}), staged_parts=("gs://adapters/sql",)),
    ),
    "WRK07": (
        deployment(limit_mm_per_prompt={"image": 1, "audio": 1}),
        "warn",
        deployment(limit_mm_per_prompt={"image": 1, "audio": 0}),
    ),
    "FIT08": (
        deployment("26B-A4B-it", "H100", tensor_parallel_size=2),
        "block",
        deployment("26B-A4B-it", "H100", tensor_parallel_size=1),
    ),
    "FIT09": (
        deployment("26B-A4B-it-qat-w4a16-ct", "L4", kv_cache_dtype="fp8", max_model_len=120_000),
        "warn",
        deployment("26B-A4B-it-qat-w4a16-ct", "L4", kv_cache_dtype="fp8", max_model_len=60_000),
    ),
    "LEN02": (
        deployment(max_num_batched_tokens=2_048, disable_chunked_mm_input=True),
        "block",
        deployment(max_num_batched_tokens=4_096, disable_chunked_mm_input=True),
    ),
    "ARG03": (
        deployment(extra_args=('--mm-processor-kwargs={"max_soft_tokens":1000}',)),
        "block",
        deployment(extra_args=('--mm-processor-kwargs={"max_soft_tokens":1120}',)),
    ),
    "ARG04": (deployment(reasoning_parser="deepseek_r1"), "warn", deployment(reasoning_parser="gemma4")),
    "NET03": (
        in_a_network(speculative_config=drafted_by("google/gemma-4-E2B-it-assistant")),
        "block",
        in_a_network(speculative_config=drafted_by("/models/drafter")),
    ),
    "SCL06": (
        replace(MEASURED["qat-26b-l4"], cloud_run=CloudRunOptions(request_timeout_s=60)),
        "warn",
        replace(MEASURED["qat-26b-l4"], cloud_run=CloudRunOptions(request_timeout_s=60, min_instances=1)),
    ),
    "LEN03": (deployment(max_model_len=131_073), "block", deployment(max_model_len=131_072)),
    "MOD01": (
        replace(deployment(), model_spec=replace(spec_of("google/gemma-4-E2B-it"), name="org/other")),
        "info",
        deployment(),
    ),
    "MOD04": (deployment("26B-A4B-it-qat-w4a16-ct", "L4"), "block", deployment("12B-it-qat-w4a16-ct", "L4")),
    "MOD02": (deployment("E2B"), "warn", deployment("E2B", chat_template="/templates/plain.jinja")),
    "MOD03": (
        deployment("31B-it", "H100", speculative_config=drafted_by("google/gemma-4-E2B-it-assistant")),
        "block",
        deployment("31B-it", "H100", speculative_config=drafted_by("google/gemma-4-31B-it-assistant")),
    ),
    "PRB01": (
        on_cloud_run(startup_probe=StartupProbe(initial_delay_s=0, period_s=10, failure_threshold=60, timeout_s=5)),
        "block",
        on_cloud_run(startup_probe=STARTS_IN_TIME),
    ),
    "PRB02": (
        on_cloud_run(startup_probe=replace(STARTS_IN_TIME, failure_threshold=61)),
        "block",
        on_cloud_run(startup_probe=replace(STARTS_IN_TIME, failure_threshold=30)),
    ),
    "SCL01": (on_cloud_run(concurrency=4), "warn", on_cloud_run(concurrency=16)),
    "SCL04": (
        on_cloud_run(max_instances=2, memory_quota_gib=63.0),
        "block",
        on_cloud_run(max_instances=2, memory_quota_gib=64.0),
    ),
    "SCL05": (on_cloud_run(cpu_quota=15), "warn", on_cloud_run(cpu_quota=16)),
    "SCL02": (on_cloud_run(max_instances=2, gpu_quota=1), "block", on_cloud_run(max_instances=2, gpu_quota=2)),
    "SCL03": (on_cloud_run(region="southamerica-east1"), "block", on_cloud_run(region="us-east4")),
    "TPU01": (deployment(tensor_parallel_size=1), "block", deployment(tensor_parallel_size=4)),
    "DPL01": (deployment("26B-A4B-it", data_parallel_size=4), "block", deployment("26B-A4B-it", data_parallel_size=1)),
    "DPL02": (deployment(data_parallel_size=4), "warn", deployment(data_parallel_size=1)),
    "TPU02": (on_tpu(max_run_duration_s=8 * 86_400), "block", on_tpu(max_run_duration_s=7 * 86_400)),
    "TPU04": (on_tpu(zones=("us-east5-b", "us-west1-a")), "block", on_tpu(zones=("us-east5-b",))),
    "TPU06": (on_tpu(compile_cache="off"), "warn", on_tpu()),
    "TPU07": (
        replace(on_tpu(), weights_mode="streamer", image_version="0.26.0"),
        "block",
        replace(on_tpu(), weights_mode="disk", image_version="0.26.0"),
    ),
    "HST02": (
        deployment("31B-it", "v6e-8"),
        "warn",
        replace(deployment("31B-it", "v6e-8"), tpu=TpuOptions(boot_disk_size_gb=200)),
    ),
    "NET01": (
        replace(deployment(), endpoint_url="http://localhost:8000/v1"),
        "block",
        replace(deployment(), endpoint_url="http://127.0.0.1:8000/v1"),
    ),
    "NET02": (
        on_tpu(private_google_access=False),
        "block",
        on_tpu(private_google_access=True),
    ),
    "SEC01": (
        deployment(extra_args=("--api-key=canary",)),
        "block",
        deployment(extra_args=("--api-server-count=2",)),
    ),
    "ARG01": (
        deployment(extra_args=("--max-model-len=262144",)),
        "block",
        deployment(extra_args=("--max-logprobs=5",)),
    ),
    "ARG02": (
        deployment(extra_args=("--disable-log-requests",)),
        "block",
        deployment(extra_args=("--no-enable-log-requests",)),
    ),
    "HST01": (
        replace(MEASURED["qat-26b-l4"], host_memory_gib=32, vcpu=4),
        "block",
        replace(MEASURED["qat-26b-l4"], host_memory_gib=32, vcpu=8),
    ),
    "SEC02": (replace(MEASURED["qat-26b-l4"], public=True), "block", MEASURED["qat-26b-l4"]),
    "SEC03": (on_tpu(ssh="metadata-key"), "warn", on_tpu()),
    "SEC09": (
        on_tpu(tunnel_members=("user:a@example.com",)),
        "warn",
        on_tpu(tunnel_members=("user:a@example.com",), tunnel_role="gemmaTunnel"),
    ),
    "OBS01": (
        replace(deployment(), watch=WatchOptions(alerts_enabled=True, metrics_enabled=True)),
        "info",
        replace(deployment(), watch=WatchOptions(alerts_enabled=True, email="a@example.com", metrics_enabled=True)),
    ),
    "OBS02": (
        replace(MEASURED["qat-26b-l4"], watch=WatchOptions(alerts_enabled=True, email="a@example.com")),
        "warn",
        replace(
            MEASURED["qat-26b-l4"],
            watch=WatchOptions(alerts_enabled=True, email="a@example.com", metrics_enabled=True),
        ),
    ),
    "OBS03": (
        replace(MEASURED["qat-26b-l4"], host_memory_gib=16, vcpu=4, watch=WatchOptions(metrics_enabled=True)),
        "block",
        replace(MEASURED["qat-26b-l4"], host_memory_gib=24, vcpu=8, watch=WatchOptions(metrics_enabled=True)),
    ),
    "FUS01": (
        on_cloud_run(image_uid=2_000, image_gid=2_000, mount_uid=0, mount_gid=0),
        "block",
        on_cloud_run(image_uid=2_000, image_gid=2_000),
    ),
    "LDR01": (
        replace(MEASURED["qat-26b-l4"], vllm=replace(MEASURED["qat-26b-l4"].vllm, load_format="runai_streamer")),
        "block",
        replace(
            MEASURED["qat-26b-l4"],
            weights_mode="streamer",
            vllm=replace(MEASURED["qat-26b-l4"].vllm, load_format="runai_streamer", safetensors_load_strategy=None),
        ),
    ),
    "LDR02": (
        replace(MEASURED["qat-26b-l4"], weights_mode="streamer", image_version="0.11.0"),
        "block",
        replace(MEASURED["qat-26b-l4"], weights_mode="streamer", image_version="0.28.0"),
    ),
    "SEC07": (
        replace(deployment(), model_revision=""),
        "warn",
        replace(deployment(), model_revision="0" * 40),
    ),
    "LDR04": (deployment(load_format="pt"), "warn", deployment(load_format="safetensors")),
    "MOD06": (deployment(trust_remote_code=True), "warn", deployment(trust_remote_code=False)),
    "SEC04": (
        replace(on_cloud_run(), image_version="0.28.0"),
        "info",
        replace(on_cloud_run(), image_version="0.32.0"),
    ),
    "SEC11": (
        replace(deployment(limit_mm_per_prompt={"image": 1, "video": 1}), image_version="0.29.0"),
        "block",
        replace(deployment(limit_mm_per_prompt={"image": 1, "video": 1}), image_version="0.30.0"),
    ),
    "SEC05": (
        replace(deployment(extra_args=("--grpc",)), has_api_key=True),
        "block",
        deployment(extra_args=("--grpc",)),
    ),
    "SEC06": (
        deployment(allowed_media_domains=("a.example",)),
        "warn",
        deployment(allowed_media_domains=("none.invalid",)),
    ),
    "SEC10": (
        deployment(extra_args=("--allowed-local-media-path", "/data")),
        "warn",
        deployment(
            extra_args=("--allowed-origins=[]", "--allowed-local-media-path=", "--no-trust-request-chat-template")
        ),
    ),
    "SEC08": (
        replace(on_tpu(compile_cache="bucket"), existing_bucket="ours"),
        "warn",
        replace(on_tpu(compile_cache="machine"), existing_bucket="ours"),
    ),
    "CST02": (on_cloud_run(min_instances=1), "info", on_cloud_run(min_instances=0)),
    "CST03": (replace(on_tpu(), max_usd=5), "warn", replace(on_tpu(), max_usd=50)),
    "CST04": (replace(on_tpu(), today="2027-02-07"), "info", replace(on_tpu(), today="2027-02-06")),
    "CST05": (on_tpu(zones=("southamerica-west1-a",)), "info", on_tpu(zones=("us-east5-a",))),
}


def test_every_rule_is_replayed_both_ways():
    shown_always = {"CST01"}
    assert set(RULES) == REPLAY.keys() | shown_always


def test_each_row_of_a_rule_has_its_own_check():
    assert len(set(registry._CHECKS.values())) == len(RULES) == len(registry._CHECKS)
    assert gateway.GATEWAY_RULES.keys() == gateway._CHECKS.keys()


def test_the_failure_is_named_before_it_costs_anything(subtests: pytest.Subtests):
    for identifier, (bad, severity, _) in REPLAY.items():
        with subtests.test(identifier):
            p = plan(bad)
            finding = the(p, identifier)
            assert finding.severity == severity
            assert (finding in p.stopping) == (severity == "block")
            if severity == "block":
                assert not p.fits
                assert p.verdict in {"blocked", "out-of-memory"}
            assert re.search(r"\d|localhost|off|false", finding.message), "a finding shows its figure"
            assert remedy_of(finding, FIELDS).endswith(".")
            assert finding.source


def test_settings_without_the_failure_do_not_show_it(subtests: pytest.Subtests):
    for identifier, (_, _, good) in REPLAY.items():
        with subtests.test(identifier):
            assert found(plan(good), identifier) is None


@pytest.mark.parametrize(
    "identifier", [i for i, (_, severity, _) in REPLAY.items() if severity == "block" and i in acceptable_ids()]
)
def test_an_accepted_finding_is_shown_and_stops_nothing(identifier: str):
    p = plan(replace(REPLAY[identifier][0], accept_findings=(identifier,)))
    assert found(p, identifier) is not None
    assert identifier in p.accepted
    assert identifier not in {f.id for f in p.stopping}


@pytest.mark.parametrize("accepted", [("FIT01",), tuple(RULES)])
def test_what_does_not_fit_is_never_said_to_fit_even_when_accepted(accepted: tuple[str, ...]):
    p = plan(replace(MEASURED["qat-31b-l4"], accept_findings=accepted))
    assert (p.fits, p.verdict) == (False, "out-of-memory")
    assert [f.id for f in p.stopping] == ["FIT01"]


def test_a_secret_stops_every_plan_even_when_accepted():
    p = plan(replace(REPLAY["SEC01"][0], accept_findings=tuple(RULES)))
    assert (p.fits, p.verdict) == (False, "blocked")
    assert [f.id for f in p.stopping] == ["SEC01"]


def test_only_ids_that_exist_and_may_be_accepted_are_taken():
    assert check_accepted(acceptable_ids()) is None
    unknown = check_accepted(["PRB01", "FIT99"])
    assert unknown is not None
    assert unknown.startswith('finding "FIT99" does not exist')
    assert "TPU04" in unknown
    for never in ("FIT01", "SEC01"):
        assert f"{never} (" in str(check_accepted([never]))


@pytest.mark.parametrize(
    "good",
    [
        MEASURED["e2b-v6e-4"],
        MEASURED["turbo-26b-v6e-4"],
        MEASURED["qat-26b-l4"],
        MEASURED["qat-31b-l4-offload-14"],
        MEASURED["qat-31b-l4-offload-5"],
        GOES_ON_TPU,
    ],
)
def test_what_was_seen_to_run_is_not_stopped(good: Deployment):
    assert plan(good).stopping == ()


def test_31b_on_an_l4_is_told_where_it_would_run_and_for_how_much():
    finding = the(plan(MEASURED["qat-31b-l4"]), "FIT01")
    assert "21.96 GiB is usable" in finding.message
    assert "19.5 GiB of weights" in finding.message
    deployable = {r.title: r.usd_per_hour for r in finding.remedies if r.is_deployable}
    assert deployable["RTX PRO 6000 on Cloud Run"] == pytest.approx(3.19, abs=0.01)
    assert deployable["google/gemma-4-12B-it-qat-w4a16-ct here"] == pytest.approx(1.42, abs=0.01)
    assert next(iter(deployable)) == "v6e-1 with image vllm-tpu-w4a16", "cheapest first"
    assert deployable["v6e-1 with image vllm-tpu-w4a16"] == pytest.approx(1.35, abs=0.01)


def test_the_first_way_out_of_one_finding_does_not_end_in_another():
    bad = Deployment(model="nvidia/Gemma-4-31B-IT-NVFP4", accelerator="v6e-1")
    assert {f.id for f in plan(bad).stopping} == {"FIT01", "FIT06"}
    for identifier in ("FIT01", "FIT06"):
        ways = the(plan(bad), identifier).remedies
        assert {"model": "google/gemma-4-31B-it"} not in [way.changes for way in ways], "58 GiB on one chip"
        for way in ways:
            assert plan(changed(bad, way.changes)).fits, f"{identifier}: {way}"


def test_a_way_out_selects_the_image_of_this_project_that_loads_the_precision():
    bad = Deployment(
        model="google/gemma-4-31B-it-qat-w4a16-ct", accelerator="v6e-1", vllm=VllmOptions(max_model_len=4_096)
    )
    first = the(plan(bad), "FIT06").remedies[0]
    assert first.changes == {"image_version": IMAGES["vllm-tpu-w4a16"].version}
    assert plan(changed(bad, first.changes)).fits
    on_v5e = the(plan(replace(bad, accelerator="v5e-8")), "FIT06")
    assert not any("image_version" in way.changes for way in on_v5e.remedies if way.move is None), "untested there"


def test_a_move_to_the_other_kind_of_accelerator_leaves_the_image_behind():
    bad = replace(deployment("31B-it", "v6e-1"), image_version="0.31.0", image_supports=("w4a16",))
    move = next(way for way in the(plan(bad), "FIT01").remedies if way.title.startswith("RTX"))
    assert move.changes["image_version"] is None
    assert move.changes["image_supports"] == ()


def test_machines_of_compute_engine_are_marked_as_outside_the_project():
    finding = the(plan(MEASURED["qat-31b-l4"]), "FIT01")
    outside = [r.title for r in finding.remedies if not r.is_deployable]
    assert outside
    assert all("on Compute Engine" in title for title in outside)
    inside, _, rest = remedy_of(finding, FIELDS).partition("Outside this project: ")
    assert "Compute Engine" not in inside
    assert all(title in rest for title in outside)


def test_a_utilisation_too_low_for_the_weights_is_out_of_memory_too():
    p = plan(deployment("E2B-it", "L4", gpu_memory_utilization=0.35))
    assert p.verdict == "out-of-memory"
    assert "No memory is left for the KV cache" in the(p, "FIT01").message


def test_offload_names_the_speed_that_remains():
    message = the(plan(MEASURED["qat-31b-l4-offload-14"]), "FIT02").message
    assert "14.0 GiB" in message
    assert "0.8" in message


def test_host_memory_names_the_size_that_is_enough_and_its_price():
    finding = the(plan(replace(MEASURED["qat-26b-l4"], host_memory_gib=16)), "FIT03")
    assert "the host has 16 GiB" in finding.message
    assert change_of(finding, "host_memory_gib") == 32
    assert "Add --set hostMemoryGib=32 ($1.42/h, $0.12/h more)." in said(finding)


def test_more_memory_comes_with_the_vcpu_that_cloud_run_asks_for_beside_it():
    finding = the(plan(replace(MEASURED["qat-26b-l4"], host_memory_gib=16, vcpu=4)), "FIT03")
    assert finding.remedies[0].changes == {"host_memory_gib": 32, "vcpu": 8}


def test_host_memory_that_no_machine_has_is_said_to_be_so():
    finding = the(
        plan(replace(deployment("31B-it", "RTX PRO 6000"), platform="cloud-run", host_memory_gib=16)), "FIT03"
    )
    enough = change_of(finding, "host_memory_gib")
    assert isinstance(enough, float)
    assert 58 < enough < 176
    finding = the(plan(replace(deployment("31B-it", "L4", cpu_offload_gib=50), host_memory_gib=32)), "FIT03")
    assert "The platform maximum is 32 GiB" in finding.advice


def test_the_largest_length_offered_is_accepted_and_one_token_more_is_not():
    bad = deployment("31B-it", "v6e-4", max_model_len=262_144)
    finding = the(plan(bad), "FIT04")
    length = change_of(finding, "vllm.max_model_len")
    assert isinstance(length, int)
    assert f"Largest value that fits: {length:,}." in finding.message
    assert plan(replace(bad, vllm=replace(bad.vllm, max_model_len=length, block_size=128))).fits
    assert not plan(replace(bad, vllm=replace(bad.vllm, max_model_len=length + 1, block_size=128))).fits


def test_the_headroom_offered_is_accepted():
    bad = deployment("12B-it-qat-w4a16-ct", "L4", gpu_memory_utilization=0.99)
    offered = change_of(the(plan(bad), "FIT05"), "vllm.gpu_memory_utilization")
    assert isinstance(offered, float)
    assert found(plan(replace(bad, vllm=VllmOptions(gpu_memory_utilization=offered))), "FIT05") is None


def test_a_checkpoint_that_works_is_named_instead_of_the_quantized_one():
    finding = the(plan(deployment("E4B-it-qat-w4a16-ct", "v6e-1")), "FIT06")
    assert finding.remedies[0].changes["model"] == "google/gemma-4-E4B-it"
    assert the(plan(replace(deployment("E4B-it", "v6e-1"), quantization="fp8")), "FIT06").severity == "block"


def test_fp8_on_tpu_shows_the_tokens_that_there_really_are():
    p = plan(MEASURED["e2b-v6e-4"])
    message = the(p, "FIT07").message
    assert f"{p.memory.kv_tokens:,} tokens of 18 KiB, no more than with bf16" in message


def test_the_least_batch_that_holds_a_video_is_accepted():
    bad = deployment(max_num_batched_tokens=2_048, disable_chunked_mm_input=True)
    least = change_of(the(plan(bad), "LEN02"), "vllm.max_num_batched_tokens")
    assert isinstance(least, int)
    for tokens, shown in ((least, False), (least - 1, True)):
        p = plan(replace(bad, vllm=replace(bad.vllm, max_num_batched_tokens=tokens)))
        assert (found(p, "LEN02") is not None) is shown


def test_len02_names_the_projects_own_assumption_where_it_decides():
    def len02(**vllm):
        return the(plan(deployment("E4B-it", vllm.pop("on", "L4"), max_num_batched_tokens=2_048, **vllm)), "LEN02")

    assumed, chosen = len02(), len02(disable_chunked_mm_input=True)
    assert "because `vllm.disable_chunked_mm_input` is true by this project's default, but" in assumed.message
    assert "because `vllm.disable_chunked_mm_input` is true, but" in chosen.message
    assert {"vllm.disable_chunked_mm_input": False} in [remedy.changes for remedy in assumed.remedies]
    on_tpu = len02(on="v6e-1")
    assert "Set it to false only if clients send text" in on_tpu.advice
    assert {"vllm.disable_chunked_mm_input": False} not in [remedy.changes for remedy in on_tpu.remedies]
    assert (
        found(
            plan(deployment("E4B-it", "v6e-1", max_num_batched_tokens=2_048, disable_chunked_mm_input=False)), "LEN02"
        )
        is None
    )


def test_an_item_that_the_model_never_splits_has_no_setting_for_it():
    finding = the(plan(deployment("31B-it", "H100", max_num_batched_tokens=2_048)), "LEN02")
    assert "disable_chunked" not in finding.message
    assert not any("vllm.disable_chunked_mm_input" in remedy.changes for remedy in finding.remedies)


@pytest.mark.parametrize(
    ("extra", "nearest"),
    [
        (('--mm-processor-kwargs={"images_kwargs":{"max_soft_tokens": 300}}',), 280),
        (("--mm-processor-kwargs.max_soft_tokens=64",), 70),
        (("--mm_processor_kwargs.max_soft_tokens", "2000"), 1120),
        (('--mm-processor-kwargs={"max_soft_tokens":300,"key":"hf_canary0canary"}',), 280),
    ],
)
def test_a_number_of_image_tokens_moves_to_its_key_or_is_removed(extra, nearest):
    finding = the(plan(deployment(extra_args=("--grpc", *extra))), "ARG03")
    assert [remedy.changes for remedy in finding.remedies] == [
        {"vllm.image_tokens": nearest, "vllm.extra_args": ("--grpc",)},
        {"vllm.extra_args": ("--grpc",)},
    ]


def test_a_number_of_image_tokens_matters_only_to_a_server_that_reads_images():
    extra = ('--mm-processor-kwargs={"max_soft_tokens":1000}',)
    assert found(plan(deployment(extra_args=extra, limit_mm_per_prompt=TEXT_ONLY)), "ARG03") is None


def test_the_tokens_of_an_image_count_for_the_step_that_holds_it():
    def len02(tokens):
        extra = (f"--mm-processor-kwargs.max_soft_tokens={tokens}",)
        limits = {"image": 1, "video": 0, "audio": 0}
        return found(
            plan(deployment(max_num_batched_tokens=1_024, limit_mm_per_prompt=limits, extra_args=extra)), "LEN02"
        )

    assert len02(560) is None
    assert "One image item has up to 1,120 tokens" in len02(1_120).message


def test_a_parser_that_a_plugin_registers_is_not_judged():
    own = deployment(tool_call_parser="mine", extra_args=("--tool-parser-plugin=/plugins/mine.py",))
    assert found(plan(own), "ARG04") is None
    assert "vllm.tool_call_parser" in the(plan(deployment(tool_call_parser="mine")), "ARG04").message
    assert found(plan(deployment(tool_call_parser="mine", enable_auto_tool_choice=False)), "ARG04") is None


@pytest.mark.parametrize("extra", [("--lora-modules", "a=org/adapter"), ("--tokenizer=org/tokenizer",)])
def test_adapters_and_tokenizers_of_the_hub_need_a_way_there_too(extra):
    finding = the(plan(in_a_network(extra_args=("--enable-lora", *extra))), "NET03")
    assert extra[-1].rpartition("=")[2] in finding.message
    assert [remedy.changes for remedy in finding.remedies] == [
        {"tpu.private_google_access": None},
        {"vllm.extra_args": ("--enable-lora",)},
    ]
    hub = replace(in_a_network(extra_args=("--enable-lora", *extra)), weights_mode="hub")
    assert found(plan(hub), "NET03") is None, "the subnet has Cloud NAT for the weights"


def test_a_cold_start_within_both_timeouts_is_silent():
    def scl06(timeout_s, **more):
        run = CloudRunOptions(request_timeout_s=timeout_s)
        return found(plan(replace(MEASURED["qat-26b-l4"], cloud_run=run, **more)), "SCL06")

    late = scl06(300)
    assert "Cloud Run ends it after 5 min (`cloud_run.request_timeout_s`), and OpenAI's" in late.message
    assert "Cloud Run ends it" not in scl06(3_600).message
    assert scl06(3_600, weights_mode="fuse-buffered") is None
    assert scl06(None) is None, "not a stack's question"


def test_items_that_are_not_served_need_no_room():
    p = plan(deployment(max_num_batched_tokens=256, disable_chunked_mm_input=True, limit_mm_per_prompt=TEXT_ONLY))
    assert found(p, "LEN02") is None


def test_the_probe_that_is_offered_passes_both_probe_rules():
    bad = REPLAY["PRB01"][0]
    p = plan(bad)
    finding = the(p, "PRB01")
    assert "10 min" in finding.message
    offered = changed(bad, finding.remedies[0].changes)
    probe = offered.cloud_run.startup_probe
    assert probe is not None
    assert probe.budget_s >= p.startup.probe_budget_s > p.startup.total_s
    good = plan(offered)
    assert found(good, "PRB01") is None
    assert found(good, "PRB02") is None


def test_without_direct_vpc_no_weights_mode_is_faster_than_the_network():
    def load_s(mode, direct_vpc):
        run = CloudRunOptions(direct_vpc=direct_vpc)
        deployed = Deployment(
            model="google/gemma-4-31B-it-qat-w4a16-ct", accelerator="RTX PRO 6000", weights_mode=mode, cloud_run=run
        )
        return plan(deployed).startup.load_s

    for mode in ("fuse-buffered", "fuse-cached", "streamer"):
        assert load_s(mode, direct_vpc=False) == pytest.approx(310, rel=0.01)
        assert load_s(mode, direct_vpc=True) < 60
    assert load_s("fuse", direct_vpc=False) == load_s("fuse", direct_vpc=True)


def test_a_start_longer_than_any_probe_is_told_so():
    bf16 = replace(deployment("31B-it", "RTX PRO 6000"), weights_mode="fuse", host_memory_gib=80)
    finding = the(plan(bf16), "PRB01")
    assert "Cloud Run allows at most 34 min" in finding.message
    assert "No probe within Cloud Run's limits is long enough." in finding.advice
    assert finding.remedies[0].changes == {"weights_mode": "fuse-buffered"}
    assert found(plan(replace(bf16, weights_mode="fuse-buffered")), "PRB01") is None


@pytest.mark.parametrize(
    ("change", "limit"),
    [
        ({"initial_delay_s": 241}, "startupProbe.initialDelay is 241 s; allowed: 0 to 240 s"),
        ({"period_s": 241, "failure_threshold": 1}, "startupProbe.period is 241 s; allowed: 1 to 240 s"),
        ({"failure_threshold": 0}, "startupProbe.failureThreshold is 0"),
        ({"timeout_s": 61}, "startupProbe.timeout is 61 s"),
        ({"failure_threshold": 31}, "period times failure threshold is 1860 s; the maximum with a GPU is 1800 s"),
    ],
)
def test_each_limit_of_a_probe_is_named_with_its_value(change: dict[str, int], limit: str):
    assert limit in said(the(plan(on_cloud_run(startup_probe=replace(STARTS_IN_TIME, **change))), "PRB02"))


def test_concurrency_is_measured_against_the_kv_cache_and_against_max_num_seqs():
    few = the(plan(on_cloud_run(concurrency=4)), "SCL01")
    assert "allows 4 concurrent requests (concurrency 4 x maxInstances 1), but one instance can serve 16" in said(few)
    assert change_of(few, "cloud_run.concurrency") == 16
    many = the(plan(on_cloud_run(concurrency=64)), "SCL01")
    assert "can serve 16 concurrent requests" in many.message


def test_concurrency_is_measured_against_the_kv_cache_where_that_holds_less_than_max_num_seqs():
    wide = replace(on_cloud_run(concurrency=64), vllm=replace(on_cloud_run().vllm, max_num_seqs=256))
    finding = the(plan(wide), "SCL01")
    held = change_of(finding, "cloud_run.concurrency")
    assert isinstance(held, int)
    assert held < 64
    assert f"can serve {held} concurrent requests (KV cache full with requests of 1,024 tokens)" in finding.message
    assert found(plan(changed(wide, {"cloud_run.concurrency": held})), "SCL01") is None


def test_an_unknown_quota_warns_and_one_instance_needs_no_quota():
    assert the(plan(on_cloud_run(max_instances=3)), "SCL02").severity == "warn"
    assert found(plan(on_cloud_run(max_instances=1)), "SCL02") is None
    assert "the GPU quota of the region is 1" in the(plan(on_cloud_run(max_instances=2, gpu_quota=1)), "SCL02").message


def test_without_a_project_nothing_is_said_about_its_quota():
    assert {"SCL04", "SCL05"} & {finding.id for finding in plan(on_cloud_run(max_instances=3)).findings} == set()


def test_a_service_that_cannot_be_created_is_not_told_about_updates():
    planned = plan(on_cloud_run(max_instances=2, memory_quota_gib=40.0))
    assert (the(planned, "SCL04").severity, found(planned, "SCL05")) == ("block", None)
    fewer = changed(on_cloud_run(max_instances=2, memory_quota_gib=40.0), {"cloud_run.max_instances": 1})
    assert the(plan(fewer), "SCL05").severity == "warn"


def test_a_roll_out_needs_gpus_for_two_revisions():
    """Tagged revisions are started, and keep their least number of instances (Cloud Run, minimum instances)."""
    assert found(plan(on_cloud_run(max_instances=1, gpu_quota=2, rolls_out=True)), "SCL02") is None
    never = the(plan(on_cloud_run(max_instances=1, gpu_quota=1, rolls_out=True)), "SCL02")
    assert (never.severity, "1 for the new revision and up to 1 " in never.message, "never start" in never.message) == (
        "block",
        True,
        True,
    )
    busy = the(plan(on_cloud_run(max_instances=3, min_instances=1, gpu_quota=3, rolls_out=True)), "SCL02")
    assert (busy.severity, "needs 4 GPUs" in busy.message) == ("warn", True)
    unknown = the(plan(on_cloud_run(max_instances=1, rolls_out=True)), "SCL02")
    assert (
        "a rollout needs 1 more for the revision under test, but the GPU quota of the region is not set"
        in unknown.message
    )


def test_flex_start_without_an_end_is_stopped_and_reckoned_with():
    p = plan(on_tpu(max_run_duration_s=None))
    finding = the(p, "TPU02")
    assert finding.severity == "block"
    assert change_of(finding, "tpu.max_run_duration_s") == 14_400
    assert p.cost.max_usd == pytest.approx(p.cost.usd_per_hour * 7 * 24)
    assert found(plan(on_tpu(provisioning_model="standard", max_run_duration_s=None)), "TPU02") is None


@pytest.mark.parametrize(("seconds", "allowed"), [(0, 600), (599, 600), (7 * 86_400 + 1, 7 * 86_400)])
@pytest.mark.parametrize("provisioning", ["flex-start", "spot"])
def test_a_run_duration_outside_the_range_is_moved_to_its_end(seconds: int, allowed: int, provisioning: str):
    bad = on_tpu(max_run_duration_s=seconds, provisioning_model=provisioning)
    assert change_of(the(plan(bad), "TPU02"), "tpu.max_run_duration_s") == allowed


@pytest.mark.parametrize(
    ("url", "fixed"),
    [
        ("http://LOCALHOST:8000", "http://127.0.0.1:8000"),
        ("https://localhost/v1", "https://127.0.0.1/v1"),
    ],
)
def test_localhost_is_refused_however_it_is_written(url: str, fixed: str):
    assert change_of(the(plan(replace(deployment(), endpoint_url=url)), "NET01"), "endpoint_url") == fixed


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (("--api-key=canary", "--seed=1"), ("--seed=1",)),
        (("--seed=1", "--api-key", "canary"), ("--seed=1",)),
        (("--hf-token", "canary", "--seed=1"), ("--seed=1",)),
        (("--token", "hf_canary0canary"), ()),
        (("--anything=hf_canaryCANARY01",), ()),
        (("--api_key", "canary"), ()),
        (("--ssl-keyfile-password=canary", "--seed=1"), ("--seed=1",)),
        (("--anything", "sk-canarycanarycanary"), ()),
        (("--anything=eyJhbGciOiJI.eyJcanary",), ()),
        (("--tokenizer=x", "--api-key=canary", "--allow-credentials"), ("--tokenizer=x", "--allow-credentials")),
    ],
)
def test_a_secret_argument_is_never_shown_and_taken_out_with_its_flag(
    arguments: tuple[str, ...], kept: tuple[str, ...]
):
    finding = the(plan(deployment(extra_args=arguments)), "SEC01")
    assert "canary" not in repr(finding)
    assert change_of(finding, "vllm.extra_args") == kept


def test_a_region_is_replaced_by_the_nearest_that_has_the_gpu():
    finding = the(plan(on_cloud_run(region="europe-west3")), "SCL03")
    assert [str(r.changes["cloud_run.region"])[:6] for r in finding.remedies[:2]] == ["europe", "europe"]


def test_zones_that_are_known_are_kept():
    finding = the(plan(on_tpu(zones=("us-west1-a", "us-east5-b"))), "TPU04")
    assert finding.remedies[0].changes == {"tpu.zones": ("us-east5-b",)}


def test_a_host_that_only_begins_like_localhost_is_not_refused():
    assert found(plan(replace(deployment(), endpoint_url="https://localhost.example.com")), "NET01") is None


def test_a_public_endpoint_names_the_most_that_others_could_spend():
    p = plan(replace(MEASURED["qat-26b-l4"], public=True))
    assert f"${p.cost.max_usd:,.0f}" in the(p, "SEC02").message


def test_each_argument_that_opens_a_server_is_named_and_removed(subtests: pytest.Subtests):
    origins = ('--allowed-origins=["https://a.example"]', "--allowed_origins=null")
    for argument in (*origins, "--config=/x", "--middleware=a.B", "--trust-request-chat-template"):
        with subtests.test(argument):
            finding = the(plan(deployment(extra_args=("--max-logprobs=5", argument))), "SEC10")
            assert f"open the server: {argument.partition('=')[0].replace('_', '-')} " in finding.message
            assert finding.remedies[0].changes == {"vllm.extra_args": ("--max-logprobs=5",)}


def test_the_remedy_of_an_opening_argument_shows_no_secret():
    p = plan(replace(deployment(extra_args=("--api-key=canary", "--grpc", "--config=/x")), has_api_key=True))
    assert the(p, "SEC05").remedies[0].changes == {"vllm.extra_args": ("--config=/x",)}
    assert the(p, "SEC10").remedies[0].changes == {"vllm.extra_args": ("--grpc",)}


def test_a_server_of_text_only_reads_no_media():
    text_only = deployment(
        allowed_media_domains=("a.example",), limit_mm_per_prompt={"image": 0, "audio": 0, "video": 0}
    )
    assert found(plan(text_only), "SEC06") is None


def test_a_domain_that_only_an_inner_network_has_blocks(subtests: pytest.Subtests):
    for name in ("localhost", "db", "10.0.0.5", "::1", "metadata.google.internal", "printer.local"):
        with subtests.test(name):
            finding = the(plan(deployment(allowed_media_domains=("a.example", name))), "SEC06")
            assert finding.severity == "block"
            assert f"{name} can only be inside it" in finding.message


def test_a_mount_of_another_user_is_named_with_both():
    message = the(plan(REPLAY["FUS01"][0]), "FUS01").message
    assert "uid 0 (the image runs as 2000)" in message
    assert found(plan(on_cloud_run(image_uid=2_000, mount_uid=2_000)), "FUS01") is None


def test_the_bill_counts_processors_memory_and_idle_instances():
    p = plan(on_cloud_run(min_instances=1, max_instances=2, gpu_quota=2))
    finding = the(p, "CST01")
    assert finding.severity == "info"
    assert [name for name, _ in p.cost.parts_usd_per_hour] == ["1 L4", "8 vCPU", "32 GiB"]
    assert sum(usd for _, usd in p.cost.parts_usd_per_hour) == pytest.approx(p.cost.usd_per_hour)
    assert p.cost.idle_usd_per_hour == pytest.approx(p.cost.usd_per_hour)
    assert p.cost.max_usd == pytest.approx(2 * 730 * p.cost.usd_per_hour)
    assert "/h while idle" in finding.message
    assert plan(on_cloud_run(min_instances=0)).cost.idle_usd_per_hour == 0


def test_findings_that_stop_come_first():
    order = ["block", "warn", "info"]
    severities = [f.severity for f in plan(replace(REPLAY["FIT03"][0], public=True)).findings]
    assert severities == sorted(severities, key=order.index)
    assert severities[0] == "block"


def test_a_known_vulnerability_is_worse_where_everybody_may_call_and_depends_on_what_the_stack_has():
    def said(identifier="SEC04", **changes):
        found_one = found(plan(replace(on_cloud_run(), **{"image_version": "0.28.0", **changes})), identifier)
        count = found_one and re.search(r"has (\d+) published", found_one.message)
        return found_one and (found_one.severity, int(count[1]) if count else 0)

    vllm = on_cloud_run().vllm
    template = replace(vllm, chat_template="/t.jinja")
    own_code = replace(template, trust_remote_code=True)
    with_video = replace(vllm, limit_mm_per_prompt={"image": 1, "video": 1})
    assert said() == ("info", 5)
    assert said(public=True) == ("warn", 5)
    assert said(image_version="0.30.1rc1.dev221+gc8d7a7dd1") == ("info", 2)
    assert said(image_version="0.30.0rc1.dev5") == ("info", 5), "its commit may be older than the repair"
    assert said(image_version="0.31.0", vllm=template) is None
    assert said(vllm=replace(template, limit_mm_per_prompt={"image": 1, "video": 0})) == ("info", 2)
    assert said(image_version="0.30.0", vllm=own_code) == ("info", 1)
    assert said(image_version="") == ("info", 0)
    assert said("SEC11", vllm=own_code) == ("block", 1)
    assert said("SEC11", vllm=replace(with_video, trust_remote_code=True)) == ("block", 2)
    assert said("SEC11", image_version="0.31.0", vllm=own_code) is None
    assert said("SEC11") is None, "nothing turned on a feature"
    assert said("SEC11", image_version="", vllm=own_code) is None, "SEC04 says that the version is unknown"
