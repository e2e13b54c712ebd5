"""Every failure that a preview can name: it stops the bad settings with the figure, and lets the good ones through."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.accuracy import measured
from planning import CloudRunOptions, Deployment, Finding, Plan, StartupProbe, TpuOptions, VllmOptions, plan
from planning.preflight import RULES

TEXT_ONLY = {"image": 0, "video": 0, "audio": 0}


def found(p: Plan, identifier: str) -> Finding | None:
    return next((finding for finding in p.findings if finding.id == identifier), None)


def the(p: Plan, identifier: str) -> Finding:
    finding = found(p, identifier)
    assert finding is not None, f"{identifier} is missing among {[f.id for f in p.findings]}"
    return finding


def deployment(model: str = "E2B-it", accelerator: str = "v6e-4", **options: object) -> Deployment:
    return Deployment(
        model=f"google/gemma-4-{model}",
        accelerator=accelerator,
        vllm=VllmOptions(**options),  # pyright: ignore[reportArgumentType] - a test's shorthand
    )


def on_cloud_run(**options: object) -> Deployment:
    return replace(measured.QAT_26B_L4, cloud_run=CloudRunOptions(**options))  # pyright: ignore[reportArgumentType]


def on_tpu(**options: object) -> Deployment:
    return replace(deployment(), tpu=TpuOptions(**options))  # pyright: ignore[reportArgumentType]


STARTS_IN_TIME = StartupProbe(initial_delay_s=240, period_s=60, failure_threshold=25, timeout_s=60)
GOES_ON_TPU = replace(deployment(), tpu=TpuOptions(max_run_duration_s=14_400))

# Per id: settings that must show it, with its severity, and settings like them that must not.
REPLAY: dict[str, tuple[Deployment, str, Deployment]] = {
    "FIT01": (measured.QAT_31B_L4, "block", replace(measured.QAT_31B_L4, accelerator="RTX PRO 6000")),
    "FIT02": (measured.QAT_31B_L4_OFFLOAD, "warn", measured.QAT_26B_L4),
    "FIT03": (replace(measured.QAT_26B_L4, host_memory_gib=16), "block", measured.QAT_26B_L4),
    "FIT04": (
        deployment("31B-it", "v6e-4", max_model_len=262_144),
        "block",
        deployment("31B-it", "v6e-4", max_model_len=32_768),
    ),
    "FIT05": (
        deployment("12B-it-qat-w4a16-ct", "L4", gpu_memory_utilization=0.99),
        "warn",
        deployment("12B-it-qat-w4a16-ct", "L4", gpu_memory_utilization=0.90),
    ),
    "FIT06": (deployment("E4B-it-qat-w4a16-ct", "v6e-1"), "block", deployment("E4B-it", "v6e-1")),
    "FIT07": (measured.E2B_V6E4, "warn", deployment("31B-it", "v6e-1", kv_cache_dtype="fp8")),
    "FIT08": (
        deployment("26B-A4B-it", "H100", tensor_parallel_size=2),
        "block",
        deployment("26B-A4B-it", "H100", tensor_parallel_size=1),
    ),
    "LEN02": (
        deployment(max_num_batched_tokens=2_048, disable_chunked_mm_input=True),
        "block",
        deployment(max_num_batched_tokens=4_096, disable_chunked_mm_input=True),
    ),
    "LEN03": (deployment(max_model_len=131_073), "block", deployment(max_model_len=131_072)),
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
    "SCL02": (on_cloud_run(max_instances=2, gpu_quota=1), "block", on_cloud_run(max_instances=2, gpu_quota=2)),
    "SCL03": (on_cloud_run(region="southamerica-east1"), "warn", on_cloud_run(region="us-east4")),
    "TPU01": (deployment(tensor_parallel_size=1), "block", deployment(tensor_parallel_size=4)),
    "TPU02": (on_tpu(max_run_duration_s=8 * 86_400), "block", on_tpu(max_run_duration_s=7 * 86_400)),
    "TPU04": (on_tpu(zones=("us-east5-b", "us-west1-a")), "warn", on_tpu(zones=("us-east5-b",))),
    "TPU06": (on_tpu(compile_cache_path=None), "warn", on_tpu()),
    "NET01": (
        replace(deployment(), endpoint_url="http://localhost:8000/v1"),
        "block",
        replace(deployment(), endpoint_url="http://127.0.0.1:8000/v1"),
    ),
    "NET02": (
        replace(deployment(), subnet_private_google_access=False),
        "block",
        replace(deployment(), subnet_private_google_access=True),
    ),
    "SEC01": (
        replace(deployment(), token_source="metadata"),
        "block",
        replace(deployment(), token_source="secret-manager"),
    ),
    "SEC02": (replace(measured.QAT_26B_L4, public=True), "block", measured.QAT_26B_L4),
    "FUS01": (
        on_cloud_run(image_uid=2_000, image_gid=2_000, mount_uid=0, mount_gid=0),
        "block",
        on_cloud_run(image_uid=2_000, image_gid=2_000),
    ),
}


def test_every_rule_is_replayed_both_ways():
    shown_always = {"CST01"}
    ids = {re.sub(r"^([a-z]+\d+)_.*", r"\1", rule.__name__).upper() for rule in RULES}
    assert ids == REPLAY.keys() | shown_always


def test_every_finding_is_documented_with_its_severity():
    page = (Path(__file__).resolve().parents[2] / "docs" / "planning.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| ([A-Z]{3}\d\d) \| ([a-z ]+) \|", page, flags=re.MULTILINE))
    assert documented.keys() == REPLAY.keys() | {"CST01"}
    assert all(severity in documented[identifier].split() for identifier, (_, severity, _) in REPLAY.items())


@pytest.mark.parametrize("identifier", REPLAY)
def test_the_failure_is_named_before_it_costs_anything(identifier: str):
    bad, severity, _ = REPLAY[identifier]
    p = plan(bad)
    finding = the(p, identifier)
    assert finding.severity == severity
    assert (finding in p.stopping) == (severity == "block")
    if severity == "block":
        assert not p.fits
        assert p.verdict in {"blocked", "oom"}
    assert re.search(r"\d|localhost|Google Access|environment|metadata", finding.message), "a finding shows its figure"
    assert finding.remedy.endswith((".", "?"))
    assert finding.source


@pytest.mark.parametrize("identifier", REPLAY)
def test_settings_without_the_failure_do_not_show_it(identifier: str):
    assert found(plan(REPLAY[identifier][2]), identifier) is None


@pytest.mark.parametrize(
    "identifier", [i for i, (_, severity, _) in REPLAY.items() if severity == "block" and i != "FIT01"]
)
def test_an_accepted_finding_is_shown_and_stops_nothing(identifier: str):
    p = plan(replace(REPLAY[identifier][0], accept_findings=(identifier,)))
    assert found(p, identifier) is not None
    assert identifier in p.accepted
    assert identifier not in {f.id for f in p.stopping}


def test_what_does_not_fit_is_never_said_to_fit_even_when_accepted():
    p = plan(replace(measured.QAT_31B_L4, accept_findings=("FIT01",)))
    assert (p.fits, p.verdict) == (False, "oom")


@pytest.mark.parametrize(
    "good",
    [
        measured.E2B_V6E4,
        measured.TURBO_26B_V6E4,
        measured.QAT_26B_L4,
        measured.QAT_31B_L4_OFFLOAD,
        measured.QAT_31B_L4_OFFLOAD_5,
        GOES_ON_TPU,
    ],
)
def test_what_was_seen_to_run_is_not_stopped(good: Deployment):
    assert plan(good).stopping == ()


def test_31b_on_an_l4_is_told_where_it_would_run_and_for_how_much():
    finding = the(plan(measured.QAT_31B_L4), "FIT01")
    assert "21.96 GiB usable" in finding.message
    assert "19.5 GiB of weights" in finding.message
    for way in (r"RTX PRO 6000 on Cloud Run [^;]*\$\d", r"12B-it-qat-w4a16-ct here [^;]*\$\d", r"v6e-1 \(\$1\.35/h\)"):
        assert re.search(way, finding.remedy), finding.remedy


def test_a_utilisation_too_low_for_the_weights_is_out_of_memory_too():
    p = plan(deployment("E2B-it", "L4", gpu_memory_utilization=0.35))
    assert p.verdict == "oom"
    assert "leaves nothing for the KV cache" in the(p, "FIT01").message


def test_offload_names_the_speed_that_remains():
    message = the(plan(measured.QAT_31B_L4_OFFLOAD), "FIT02").message
    assert "14.0 GiB" in message
    assert "0.8" in message


def test_host_memory_names_the_size_that_is_enough_and_its_price():
    finding = the(plan(replace(measured.QAT_26B_L4, host_memory_gib=16)), "FIT03")
    assert "the host has 16 GiB" in finding.message
    assert re.search(r"hostMemoryGib to 32 GiB \(\$\d+\.\d\d/h, \$0\.12/h more\)", finding.remedy)


def test_host_memory_that_no_machine_has_is_said_to_be_so():
    finding = the(
        plan(replace(deployment("31B-it", "RTX PRO 6000"), platform="cloud-run", host_memory_gib=16)), "FIT03"
    )
    enough = re.search(r"hostMemoryGib to (\d+) GiB", finding.remedy)
    assert enough is not None
    assert 58 < int(enough[1]) < 176
    finding = the(plan(replace(deployment("31B-it", "L4", cpu_offload_gib=50), host_memory_gib=32)), "FIT03")
    assert "This platform has 32 GiB at most" in finding.remedy


def test_the_largest_length_offered_is_accepted_and_one_token_more_is_not():
    bad = deployment("31B-it", "v6e-4", max_model_len=262_144)
    offered = re.search(r"largest maxModelLen that fits is ([\d,]+)", the(plan(bad), "FIT04").remedy)
    assert offered is not None
    length = int(offered[1].replace(",", ""))
    assert plan(replace(bad, vllm=replace(bad.vllm, max_model_len=length, block_size=128))).fits
    assert not plan(replace(bad, vllm=replace(bad.vllm, max_model_len=length + 1, block_size=128))).fits


def test_the_headroom_offered_is_accepted():
    bad = deployment("12B-it-qat-w4a16-ct", "L4", gpu_memory_utilization=0.99)
    offered = re.search(r"gpuMemoryUtilization to (0\.\d+)", the(plan(bad), "FIT05").remedy)
    assert offered is not None
    assert found(plan(replace(bad, vllm=VllmOptions(gpu_memory_utilization=float(offered[1])))), "FIT05") is None


def test_a_checkpoint_that_works_is_named_instead_of_the_quantized_one():
    finding = the(plan(deployment("E4B-it-qat-w4a16-ct", "v6e-1")), "FIT06")
    assert "Serve google/gemma-4-E4B-it as bf16" in finding.remedy
    assert the(plan(replace(deployment("E4B-it", "v6e-1"), quantization="fp8")), "FIT06").severity == "block"


def test_fp8_on_tpu_shows_the_tokens_that_there_really_are():
    p = plan(measured.E2B_V6E4)
    message = the(p, "FIT07").message
    assert f"{p.memory.kv_tokens:,} tokens at 18 KiB each, not one more than with bf16" in message


def test_the_least_batch_that_holds_a_video_is_accepted():
    bad = deployment(max_num_batched_tokens=2_048, disable_chunked_mm_input=True)
    offered = re.search(r"maxNumBatchedTokens to ([\d,]+) or more", the(plan(bad), "LEN02").remedy)
    assert offered is not None
    least = int(offered[1].replace(",", ""))
    for tokens, shown in ((least, False), (least - 1, True)):
        p = plan(replace(bad, vllm=replace(bad.vllm, max_num_batched_tokens=tokens)))
        assert (found(p, "LEN02") is not None) is shown


def test_items_that_are_not_served_need_no_room():
    p = plan(deployment(max_num_batched_tokens=256, disable_chunked_mm_input=True, limit_mm_per_prompt=TEXT_ONLY))
    assert found(p, "LEN02") is None


def test_the_probe_that_is_offered_passes_both_probe_rules():
    bad = REPLAY["PRB01"][0]
    p = plan(bad)
    finding = the(p, "PRB01")
    assert "10 min" in finding.message
    numbers = re.search(r"initialDelay (\d+)s, period (\d+)s, failureThreshold (\d+)", finding.remedy)
    assert numbers is not None
    delay, period, threshold = (int(n) for n in numbers.groups())
    probe = StartupProbe(initial_delay_s=delay, period_s=period, failure_threshold=threshold, timeout_s=10)
    assert probe.budget_s >= p.startup.probe_budget_s > p.startup.total_s
    good = plan(replace(bad, cloud_run=replace(bad.cloud_run, startup_probe=probe)))
    assert found(good, "PRB01") is None
    assert found(good, "PRB02") is None


def test_a_start_longer_than_any_probe_is_told_so():
    bf16 = replace(deployment("31B-it", "RTX PRO 6000"), weights_mode="fuse", host_memory_gib=80)
    finding = the(plan(bf16), "PRB01")
    assert "Cloud Run allows 34 min at most" in finding.message
    assert "No probe that Cloud Run allows is long enough." in finding.remedy
    assert "fuse-buffered" in finding.remedy
    assert found(plan(replace(bf16, weights_mode="fuse-buffered")), "PRB01") is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"initial_delay_s": 241}, "initialDelay is 241 s; 0 to 240 s"),
        ({"period_s": 241, "failure_threshold": 1}, "period is 241 s; 1 to 240 s"),
        ({"failure_threshold": 0}, "failureThreshold is 0"),
        ({"timeout_s": 61}, "timeout is 61 s"),
        ({"failure_threshold": 31}, "period x failureThreshold is 1860 s; 1800 s"),
    ],
)
def test_each_limit_of_a_probe_is_named_with_its_value(change: dict[str, int], said: str):
    assert said in the(plan(on_cloud_run(startup_probe=replace(STARTS_IN_TIME, **change))), "PRB02").message


def test_concurrency_is_measured_against_the_kv_cache_and_against_max_num_seqs():
    few = the(plan(on_cloud_run(concurrency=4)), "SCL01")
    assert "Cloud Run lets 4 requests" in few.message
    assert "Set concurrency to " in few.remedy
    many = the(plan(on_cloud_run(concurrency=64)), "SCL01")
    assert "computes 16 at a time" in many.message


def test_an_unknown_quota_warns_and_one_instance_needs_no_quota():
    assert the(plan(on_cloud_run(max_instances=3)), "SCL02").severity == "warn"
    assert found(plan(on_cloud_run(max_instances=1)), "SCL02") is None
    assert "allows 1 GPUs" in the(plan(on_cloud_run(max_instances=2, gpu_quota=1)), "SCL02").message


def test_flex_start_without_an_end_is_said_and_reckoned_with():
    p = plan(on_tpu())
    finding = the(p, "TPU02")
    assert finding.severity == "info"
    assert p.cost.max_usd == pytest.approx(p.cost.usd_per_hour * 7 * 24)
    assert found(plan(on_tpu(provisioning_model="standard")), "TPU02") is None
    assert the(plan(on_tpu(max_run_duration_s=0)), "TPU02").severity == "block"


def test_an_address_outside_replaces_private_google_access():
    bad = replace(deployment(), subnet_private_google_access=False)
    assert found(plan(replace(bad, tpu=TpuOptions(external_ip=True))), "NET02") is None


@pytest.mark.parametrize("url", ["http://LOCALHOST:8000", "https://localhost/v1"])
def test_localhost_is_refused_however_it_is_written(url: str):
    assert the(plan(replace(deployment(), endpoint_url=url)), "NET01").remedy == "Write 127.0.0.1."


def test_a_host_that_only_begins_like_localhost_is_not_refused():
    assert found(plan(replace(deployment(), endpoint_url="https://localhost.example.com")), "NET01") is None


def test_a_public_endpoint_names_the_most_that_others_could_spend():
    p = plan(replace(measured.QAT_26B_L4, public=True))
    assert f"${p.cost.max_usd:,.0f}" in the(p, "SEC02").message


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
    assert "while nobody calls" in finding.message
    assert plan(on_cloud_run(min_instances=0)).cost.idle_usd_per_hour == 0


def test_findings_that_stop_come_first():
    order = ["block", "warn", "info"]
    severities = [f.severity for f in plan(replace(REPLAY["FIT03"][0], public=True)).findings]
    assert severities == sorted(severities, key=order.index)
    assert severities[0] == "block"
