"""Every failure that a preview can name: it stops the bad settings with the figure, and lets the good ones through."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gemma_serving.contracts.three_answers import Present
from gemma_serving.gke.rules import GKE_RULES
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.data.checkpoints import CHECKPOINTS
from gemma_serving.planning.data.tables import data_file
from gemma_serving.planning.model.support import known_key, support_rows
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.recommendation import TEXT_ONLY
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.rules import registry
from gemma_serving.planning.rules.crashes import CRASHES
from gemma_serving.planning.rules.findings import RULES
from gemma_serving.planning.rules.security import exposure
from gemma_serving.planning.rules.security.advisories import ADVISORIES, vulnerabilities
from gemma_serving.planning.settings.accepted import acceptable_ids, check_accepted
from gemma_serving.planning.settings.bucket import BucketSettings
from gemma_serving.planning.settings.cloud_run import ProbeSettings
from gemma_serving.planning.settings.finding import Finding
from gemma_serving.planning.settings.image import image_of_version
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.tpu import ExistingNetworkSettings
from gemma_serving.planning.settings.vllm_args import VllmOptions
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.solve.remedy_wording import message_of, remedy_of, together_text
from gemma_serving.scripts.plan.explained_finding import explained
from gemma_serving.scripts.plan.question import CommandWording
from tests.laws import examples
from tests.planning.blocks import service_block, tpu_block
from tests.planning.corpus.measured import load
from tests.records import replace

law = settings(max_examples=examples(test=40, part=500, night=3000), deadline=None)

MEASURED = load().deployments
RELEASES = data_file("flags.json")
EXISTING = ExistingNetworkSettings(network="net", subnetwork="sub", private_google_access=True)


def found(p: Plan, identifier: str) -> Finding | None:
    return next((finding for finding in p.findings if finding.id == identifier), None)


def the(p: Plan, identifier: str) -> Finding:
    finding = found(p, identifier)
    assert finding is not None, f"{identifier} is missing among {[f.id for f in p.findings]}"
    return finding


def said(finding: Finding) -> str:
    return f"{message_of(finding, CommandWording())} {remedy_of(finding, CommandWording())}"


def change_of(finding: Finding, path: str) -> object:
    return next(remedy.changes[path] for remedy in finding.remedies if path in remedy.changes)


def question(model: str = "E2B-it", accelerator: str = "v6e-4", **options: object) -> Question:
    return Question().changed(
        model=f"google/gemma-4-{model}",
        accelerator=accelerator,
        vllm=VllmOptions(**options),  # pyright: ignore[reportArgumentType] - a test's shorthand
    )


def on_cloud_run(**options: object) -> Question:
    return MEASURED["qat-26b-l4"].changed(cloud_run=service_block(**options))  # pyright: ignore[reportArgumentType]


def on_tpu(**options: object) -> Question:
    return question().changed(tpu=tpu_block(**options))  # pyright: ignore[reportArgumentType]


def in_a_network(**vllm):
    """A TPU machine in an existing network, with its weights in the bucket."""
    tpu = tpu_block(existing_network=EXISTING)
    return question(**vllm).changed(weights_mode="disk", tpu=tpu)


def asked(**workload: int) -> Question:
    return question().changed(workload=Workload(**workload))


STARTS_IN_TIME = ProbeSettings(initial_delay_s=240, period_s=60, failure_threshold=25, timeout_s=60)

# Per id: settings that must show it, and settings just beyond its edge that must not.
EDGES: dict[str, tuple[Question, Question]] = {
    "FIT04": (
        question("31B-it", "v6e-4", max_model_len=262_144),
        question("31B-it", "v6e-4", max_model_len=32_768),
    ),
    "FIT09": (
        question("26B-A4B-it-qat-w4a16-ct", "L4", kv_cache_dtype="fp8", max_model_len=110_000),
        question("26B-A4B-it-qat-w4a16-ct", "L4", kv_cache_dtype="fp8", max_model_len=60_000),
    ),
    "LEN03": (question(max_model_len=131_073), question(max_model_len=131_072)),
    "WRK02": (asked(users=300), asked(users=200)),
    "WRK03": (asked(input_tokens=16_000), asked(input_tokens=15_000)),
    "WRK04": (asked(images=5), asked(images=4)),
    "SCL01": (on_cloud_run(concurrency=4), on_cloud_run(concurrency=16)),
    "SCL02": (on_cloud_run(max_instances=2, gpu_quota=1), on_cloud_run(max_instances=2, gpu_quota=2)),
    "SCL04": (
        on_cloud_run(memory_mib=32 * 1024, max_instances=2, memory_quota_mib=63 * 1024),
        on_cloud_run(memory_mib=32 * 1024, max_instances=2, memory_quota_mib=64 * 1024),
    ),
    "SCL05": (on_cloud_run(cpu=8, cpu_quota=15), on_cloud_run(cpu=8, cpu_quota=16)),
    "PRB02": (
        on_cloud_run(startup_probe=replace(STARTS_IN_TIME, failure_threshold=61)),
        on_cloud_run(startup_probe=replace(STARTS_IN_TIME, failure_threshold=30)),
    ),
    "TPU02": (on_tpu(max_run_duration_s=8 * 86_400), on_tpu(max_run_duration_s=7 * 86_400)),
    "CST04": (on_tpu().changed(today="2027-02-07"), on_tpu().changed(today="2027-02-06")),
}


def test_each_row_of_a_rule_has_its_own_check():
    assert len(set(registry._CHECKS.values())) == len(RULES) == len(registry._CHECKS)


def test_a_finding_is_shown_up_to_its_edge_and_not_beyond(subtests: pytest.Subtests):
    for identifier, (bad, good) in EDGES.items():
        with subtests.test(identifier):
            assert found(plan(bad), identifier) is not None
            assert found(plan(good), identifier) is None


@pytest.mark.parametrize("accepted", [("FIT01",), tuple(RULES)])
def test_what_does_not_fit_is_never_said_to_fit_even_when_accepted(accepted: tuple[str, ...]):
    p = plan(MEASURED["qat-31b-l4"].changed(accept_findings=accepted))
    assert (p.fits, p.verdict) == (False, "out-of-memory")
    assert [f.id for f in p.stopping] == ["FIT01"]


def test_a_secret_stops_every_plan_even_when_accepted():
    p = plan(question(extra_args=("--api-key=canary",)).changed(accept_findings=tuple(RULES)))
    assert (p.fits, p.verdict) == (False, "blocked")
    assert [f.id for f in p.stopping] == ["SEC01"]


def test_only_ids_that_exist_and_may_be_accepted_are_taken():
    assert check_accepted(acceptable_ids()) == acceptable_ids()
    for refused, ids in {
        '"FIT99" is not a finding': ["PRB01", "FIT99"],
        "FIT01 (": ["FIT01"],
        "SEC01 (": ["SEC01"],
    }.items():
        with pytest.raises(ValueError, match=f"^{re.escape(refused)}"):
            check_accepted(ids)


def test_the_first_way_out_of_one_finding_does_not_end_in_another():
    bad = Question().changed(model="nvidia/Gemma-4-31B-IT-NVFP4", accelerator="v6e-1")
    assert {f.id for f in plan(bad).stopping} == {"FIT01", "FIT06"}
    for identifier in ("FIT01", "FIT06"):
        ways = the(plan(bad), identifier).remedies
        assert {"model": "google/gemma-4-31B-it"} not in [way.changes for way in ways], "58 GiB on one chip"
        for way in ways:
            assert plan(with_changes(bad, way.changes)).fits, f"{identifier}: {way}"


def test_machines_of_compute_engine_are_marked_as_outside_the_project():
    finding = the(plan(MEASURED["qat-31b-l4"]), "FIT01")
    outside = [r.title for r in finding.remedies if not r.is_deployable]
    assert outside
    assert all("on Compute Engine" in title for title in outside)
    inside, _, rest = remedy_of(finding, CommandWording()).partition("Outside this project: ")
    assert "Compute Engine" not in inside
    assert all(title in rest for title in outside)


def test_len02_names_the_projects_own_assumption_where_it_decides():
    def len02(**vllm):
        return the(plan(question("E4B-it", vllm.pop("on", "L4"), max_num_batched_tokens=2_048, **vllm)), "LEN02")

    assumed, chosen = len02(), len02(disable_chunked_mm_input=True)
    assert "because vllm.disableChunkedMmInput is true by this project's default, but" in assumed.message
    assert "because vllm.disableChunkedMmInput is true, but" in chosen.message
    assert {"vllm.disable_chunked_mm_input": False} in [remedy.changes for remedy in assumed.remedies]
    on_tpu = len02(on="v6e-1", limit_mm_per_prompt={"video": 1})
    assert "Set it to false only if clients send text" in on_tpu.advice
    assert {"vllm.disable_chunked_mm_input": False} not in [remedy.changes for remedy in on_tpu.remedies]
    assert (
        found(plan(question("E4B-it", "v6e-1", max_num_batched_tokens=2_048, disable_chunked_mm_input=False)), "LEN02")
        is None
    )


@pytest.mark.parametrize(
    ("extra", "nearest"),
    [
        (('--mm-processor-kwargs={"images_kwargs":{"max_soft_tokens": 300}}',), 280),
        (("--mm-processor-kwargs.max_soft_tokens=64",), 70),
        (("--mm_processor_kwargs.max_soft_tokens", "2000"), 1120),
        (('--mm-processor-kwargs={"max_soft_tokens":300,"key":"hf_canary0canary"}',), 280),
    ],
)
def test_a_number_of_image_tokens_moves_to_its_key(extra, nearest):
    finding = the(plan(question(extra_args=("--max-logprobs=5", *extra))), "ARG03")
    assert [remedy.changes for remedy in finding.remedies] == [
        {"vllm.image_tokens": nearest, "vllm.extra_args": ("--max-logprobs=5",)}
    ]


def test_a_parser_that_a_plugin_registers_is_not_judged():
    own = question(tool_call_parser="mine", extra_args=("--tool-parser-plugin=/plugins/mine.py",))
    assert found(plan(own), "ARG04") is None
    assert (
        "vllm.toolCallParser (mine) has an invalid value"
        in the(plan(question(tool_call_parser="mine")), "ARG02").message
    )
    assert "vllm.toolCallParser" in the(plan(question(tool_call_parser="hermes")), "ARG04").message
    off = plan(question(tool_call_parser="mine", enable_auto_tool_choice=False))
    assert found(off, "ARG04") is found(off, "ARG02") is None, "vLLM does not read it then"


@pytest.mark.parametrize("extra", [("--lora-modules", "a=org/adapter"), ("--tokenizer=org/tokenizer",)])
def test_adapters_and_tokenizers_of_the_hub_need_a_way_there_too(extra):
    asked = in_a_network(extra_args=("--enable-lora", *extra)).changed(accept_findings=("WRK09",))
    finding = the(plan(asked), "NET03")
    assert extra[-1].rpartition("=")[2] in finding.message
    assert [remedy.changes for remedy in finding.remedies] == [
        {"tpu.existing_network": None},
        {"vllm.extra_args": ("--enable-lora",)},
    ]
    assert found(plan(asked.changed(weights_mode="hub")), "NET03") is None, "the subnet has Cloud NAT for the weights"


def test_a_4_bit_model_on_a_tpu_is_offered_with_its_encoders_to_a_workload_with_images():
    """Without images it serves text only, as the shipped stack does: test_stack_findings."""
    asked = Question().changed(model="google/gemma-4-31B-it", accelerator="v6e-1", workload=Workload(images=1))
    changes = [way.changes for way in the(plan(asked), "FIT01").remedies]
    offered = next(one for one in changes if str(one.get("model")).endswith("w4a16-ct"))
    assert "vllm.limit_mm_per_prompt" not in offered


def test_a_start_longer_than_any_probe_is_told_so():
    bf16 = with_changes(question("31B-it", "RTX PRO 6000"), {"weights_mode": "fuse", "cloud_run.memory_mib": 81_920})
    finding = the(plan(bf16), "PRB01")
    assert "Cloud Run allows at most 34 min" in finding.message
    assert "No probe within Cloud Run's limits is long enough." in finding.advice
    assert finding.remedies[0].changes == {"weights_mode": "fuse-buffered"}
    assert found(plan(bf16.changed(weights_mode="fuse-buffered")), "PRB01") is None


@pytest.mark.parametrize(("seconds", "allowed"), [(0, 600), (599, 600), (7 * 86_400 + 1, 7 * 86_400)])
@pytest.mark.parametrize("provisioning", ["flex-start", "spot"])
def test_a_run_duration_outside_the_range_is_moved_to_its_end(seconds: int, allowed: int, provisioning: str):
    bad = on_tpu(max_run_duration_s=seconds, provisioning=(provisioning,)).changed(accept_findings=("TPU08",))
    assert change_of(the(plan(bad), "TPU02"), "tpu.max_run_duration_s") == allowed


@pytest.mark.parametrize(
    ("url", "fixed"),
    [
        ("http://LOCALHOST:8000", "http://127.0.0.1:8000"),
        ("https://localhost/v1", "https://127.0.0.1/v1"),
    ],
)
def test_localhost_is_refused_however_it_is_written(url: str, fixed: str):
    assert change_of(the(plan(question().changed(endpoint_url=url)), "NET01"), "endpoint_url") == fixed


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (("--api-key=canary", "--tokenizer=x"), ("--tokenizer=x",)),
        (("--tokenizer=x", "--api-key", "canary"), ("--tokenizer=x",)),
        (("--hf-token", "canary", "--tokenizer=x"), ("--tokenizer=x",)),
        (("--token", "hf_canary0canary"), ()),
        (("--anything=hf_canaryCANARY01",), ()),
        (("--api_key", "canary"), ()),
        (("--ssl-keyfile-password=canary", "--tokenizer=x"), ("--tokenizer=x",)),
        (("--anything", "sk-canarycanarycanary"), ()),
        (("--anything=eyJhbGciOiJI.eyJcanary",), ()),
        (("--tokenizer=x", "--api-key=canary", "--allow-credentials"), ("--tokenizer=x", "--allow-credentials")),
    ],
)
def test_a_secret_argument_is_never_shown_and_taken_out_with_its_flag(
    arguments: tuple[str, ...], kept: tuple[str, ...]
):
    finding = the(plan(question(extra_args=arguments)), "SEC01")
    assert "canary" not in repr(finding)
    assert change_of(finding, "vllm.extra_args") == kept


def test_a_host_that_only_begins_like_localhost_is_not_refused():
    assert found(plan(question().changed(endpoint_url="https://localhost.example.com")), "NET01") is None


def test_each_argument_that_opens_a_server_is_named_and_removed(subtests: pytest.Subtests):
    origins = ('--allowed-origins=["https://a.example"]', "--allowed_origins=null")
    switches = ("--trust-request-chat-template", "--enable-prompt-embeds", "--enable-mm-embeds", "--tokens-only")
    values = ("--config=/x", "--middleware=a.B", "--tool-server=demo", "--logits-processors=a:B", "--worker-cls=a.B")
    more = ("--tool-parser-plugin=/x.py", '--kv-events-config={"endpoint": "tcp://*:5557"}', "--scheduler-cls=a.B")
    others = ("--otlp-traces-endpoint=http://x:4317", "--reasoning-parser-plugin=/x.py", "--io-processor-plugin=x")
    later = ("--hf-config-path=evil/repo", "--enable-log-requests")
    for argument in (*origins, *switches, *values, *more, *others, *later):
        with subtests.test(argument):
            finding = the(plan(question(extra_args=("--max-logprobs=5", argument))), "SEC10")
            assert f"opens the server: {argument.partition('=')[0].replace('_', '-')} " in finding.message
            assert finding.remedies[0].changes == {"vllm.extra_args": ("--max-logprobs=5",)}


def test_every_flag_of_the_table_is_one_of_vllms():
    known = {
        line.split()[0] for line in json.loads(Path("gemma_serving/planning/data/flags.json").read_text())["flags"]
    }
    assert set(exposure._OPENS) - known == set()


def test_the_remedy_of_an_opening_argument_shows_no_secret():
    p = plan(question(extra_args=("--api-key=canary", "--grpc", "--config=/x")).changed(has_api_key=True))
    kept = {"SEC01": ("--grpc", "--config=/x"), "SEC05": ("--config=/x",), "SEC10": ("--grpc",)}
    assert {one: the(p, one).remedies[0].changes["vllm.extra_args"] for one in kept} == kept
    assert "canary" not in together_text(p.together, CommandWording())


def test_a_domain_that_only_an_inner_network_has_blocks(subtests: pytest.Subtests):
    for name in ("localhost", "db", "10.0.0.5", "metadata.google.internal", "printer.local"):
        with subtests.test(name):
            finding = the(plan(question(allowed_media_domains=("a.example", name))), "SEC06")
            assert finding.severity == "block"
            assert f"{name} can only be inside it" in finding.message


def test_a_known_vulnerability_is_found_where_everybody_may_call_and_depends_on_what_the_stack_has():
    def said(identifier="SEC04", **changes):
        public = on_cloud_run(public=changes.pop("public", True)).changed(image=image_of_version("0.28.0"))
        found_one = found(plan(public.changed(**changes)), identifier)
        count = found_one and re.search(r"has (\d+) published", found_one.message)
        return found_one and (found_one.severity, int(count[1]) if count else 0)

    vllm = on_cloud_run().settings.vllm
    template = replace(vllm, chat_template="/t.jinja")
    own_code = replace(template, trust_remote_code=True)
    with_video = replace(vllm, limit_mm_per_prompt={"image": 1, "video": 1})
    assert said() == ("warn", 5)
    assert said(public=False) is None
    assert len(vulnerabilities(examine(on_cloud_run().changed(image=image_of_version("0.28.0"))))) == 5
    assert plan(on_cloud_run().changed(image=image_of_version("0.31.0"))).vulnerabilities == (
        "PYSEC-2026-4344",
        "PYSEC-2026-4349",
    )
    assert plan(on_cloud_run().changed(image=image_of_version("0.32.0"))).vulnerabilities == ()
    assert said(image=image_of_version("0.30.1rc1.dev221+gc8d7a7dd1")) == ("warn", 2)
    assert said(image=image_of_version("0.30.0rc1.dev5")) == ("warn", 5), "its commit may be older than the repair"
    assert said(image=image_of_version("0.31.0"), vllm=template) is None
    assert said(vllm=replace(template, limit_mm_per_prompt={"image": 1, "video": 0})) == ("warn", 2)
    assert said(image=image_of_version("0.30.0"), vllm=own_code) == ("warn", 1)
    assert said("SEC11", vllm=own_code) == ("block", 1)
    assert said("SEC11", vllm=replace(with_video, trust_remote_code=True)) == ("block", 2)
    assert said("SEC11", image=image_of_version("0.31.0"), vllm=own_code) is None
    assert said("SEC11") is None, "nothing turned on a feature"
    assert said("SEC11", image=image_of_version(""), vllm=own_code) is None, "SEC04 says that the version is unknown"


@law
@given(
    st.sampled_from(["", "nightly", "0.33.1", "0.33.1rc1.dev3", "25.9rc1.dev1"])
    | st.builds("{}.{}.{}".format, *3 * [st.integers(0, 40)])
)
@example("0.99.0")
@example("25.09")
@example("3.2.5")
def test_an_unknown_version_is_named_by_one_warning_and_no_record_speaks_of_it(version: str):
    p = plan(on_cloud_run(public=True).changed(image=image_of_version(version)))
    is_known = version in {*RELEASES["releases"].split(), *RELEASES["others"].split()}
    warned = found(p, "SEC04")
    is_named = warned is not None and "are unknown" in warned.message
    assert is_named is not is_known
    if not is_known:
        assert the(p, "SEC04").severity == "warn"
        assert version in the(p, "SEC04").message
        assert {"REL01", "FIT06", "SEC11"}.isdisjoint(one.id for one in p.findings)


def test_each_bound_of_a_record_is_a_known_release():
    crashes = [bound for crash in CRASHES.values() for pair in crash.releases for bound in pair]
    support = [bound for row in support_rows() for bound in (row.first, row.last)]
    advised = [bound for one in ADVISORIES.values() for bound in (one.first, one.fixed)]
    assert [one for one in (*crashes, *support, *advised) if one and known_key(one) is None] == []


def test_the_least_batch_that_holds_a_video_is_accepted():
    bad = question(
        max_num_batched_tokens=2_048, disable_chunked_mm_input=True, limit_mm_per_prompt={"image": 4, "video": 1}
    )
    least = change_of(the(plan(bad), "LEN02"), "vllm.max_num_batched_tokens")
    assert isinstance(least, int)
    for tokens, shown in ((least, False), (least - 1, True)):
        p = plan(bad.changed(vllm=replace(bad.settings.vllm, max_num_batched_tokens=tokens)))
        assert (found(p, "LEN02") is not None) is shown


def test_fewer_instances_are_also_fewer_minimum_instances():
    scaling = {"max_instances": 4, "gpu_quota": 2}
    busy = the(plan(on_cloud_run(min_instances=3, **scaling)), "SCL02")
    assert busy.remedies[0].changes == {"cloud_run.max_instances": 2, "cloud_run.min_instances": 2}
    calm = the(plan(on_cloud_run(min_instances=2, **scaling)), "SCL02")
    assert calm.remedies[0].changes == {"cloud_run.max_instances": 2}


LIMIT = st.none() | st.sampled_from([1, 2, 4, 15, 16, 17, 40, 63, 64, 100])


@law
@given(st.integers(1, 4), st.tuples(LIMIT, LIMIT, LIMIT), st.tuples(LIMIT, LIMIT, LIMIT))
def test_what_a_quota_will_do_is_said_only_of_one_that_was_read_or_set(instances, read, stated):
    """Three quotas: GPUs, vCPU, GiB. What was read precedes what the settings have, and both precede a new project's."""
    units = ("GPUs", "vCPU", "GiB")
    stated_settings = {
        "gpu_quota": stated[0],
        "cpu_quota": stated[1],
        "memory_quota_mib": stated[2] and stated[2] * 1024,
    }
    asked = on_cloud_run(region="us-east4", cpu=4, memory_mib=16 * 1024, max_instances=instances, **stated_settings)
    quotas = tuple((unit, Present(float(limit))) for unit, limit in zip(units, read, strict=True) if limit)
    planned = plan(asked.changed(quotas=quotas))
    gpus, *known = [one or other for one, other in zip(read, stated, strict=True)]
    shown = found(planned, "SCL02")
    assert (shown is not None) is (instances > (gpus or 1))
    assert shown is None or ("will fail" in shown.message) is (gpus is not None)
    for identifier, revisions, sure, unsure in (
        ("SCL04", 1, "The deployment will fail", "The deployment may fail"),
        ("SCL05", 2, "The new revision will not start", "The new revision may not start"),
    ):
        need = [revisions * instances * each for each in (4, 16)]
        over = [limit for each, limit, new in zip(need, known, (20, 40), strict=True) if each > (limit or new)]
        shown = found(planned, identifier)
        is_first = identifier == "SCL04" or found(planned, "SCL04") is None
        assert (shown is not None) is (bool(over) and is_first)
        if shown is not None:
            is_known = any(limit is not None for limit in over)
            assert (sure in shown.message, unsure in shown.message) == (is_known, not is_known)
            assert (shown.severity == "block") is (is_known and identifier == "SCL04")


def test_without_a_project_nothing_is_said_about_its_quota():
    assert {"SCL04", "SCL05"} & {finding.id for finding in plan(on_cloud_run(max_instances=3)).findings} == set()


def test_items_that_are_not_served_need_no_room():
    p = plan(question(max_num_batched_tokens=256, disable_chunked_mm_input=True, limit_mm_per_prompt=TEXT_ONLY))
    assert found(p, "LEN02") is None


def test_a_utilisation_too_low_for_the_weights_is_out_of_memory_too():
    p = plan(question("E2B-it", "L4", gpu_memory_utilization=0.35))
    assert p.verdict == "out-of-memory"
    assert "No memory is left for the KV cache" in the(p, "FIT01").message


def test_the_age_of_a_template_is_its_record_else_that_of_the_pinned_commit_and_never_guessed(
    subtests: pytest.Subtests,
):
    model = "google/gemma-4-E2B-it"
    pinned = question().changed(project="p", model=model, model_revision=CHECKPOINTS[model].commit)
    own, image = (
        replace(pinned.settings.vllm, chat_template="./a.jinja"),
        replace(pinned.settings.vllm, chat_template="/a.jinja"),
    )
    read = {"chat_template.jinja": "2026-07", "./a.jinja": "unknown"}
    for name, changed, severity in (
        ("a known commit", {}, None),
        ("another commit", {"model_revision": "0" * 40}, "info"),
        ("no commit", {"model_revision": None}, "info"),
        ("no stack", {"project": "", "model_revision": None}, None),
        (
            "a record goes before the commit",
            {"bucket": BucketSettings(templates={**read, "chat_template.jinja": "older"})},
            "warn",
        ),
        ("an unknown record too", {"bucket": BucketSettings(templates={"chat_template.jinja": "unknown"})}, "info"),
        ("the project's own has no other's record", {"bucket": BucketSettings(templates=read), "vllm": own}, "info"),
        ("one of the image has none", {"vllm": image}, None),
    ):
        with subtests.test(name):
            finding = found(plan(pinned.changed(**changed)), "MOD08")
            assert (finding and finding.severity) == severity


@pytest.mark.parametrize("identifier", [*RULES, *GKE_RULES])
def test_every_finding_has_a_reason_of_its_own(identifier: str):
    """`gemma plan --finding` shows it, and no other text repeats it."""
    found = explained(identifier)
    assert re.fullmatch(r"(\w.{40,})\.", found["why"])
    assert found["what"] not in found["why"]
    assert sum(found["why"] == explained(other)["why"] for other in (*RULES, *GKE_RULES)) == 1


@pytest.mark.parametrize("config", [{"method": "mtp"}, {"method": "draft_model"}, {"method": "eagle3"}, {}])
def test_a_method_that_needs_a_draft_model_is_blocked_without_one(config: dict[str, str]):
    blocked = the(plan(question(speculative_config={**config, "num_speculative_tokens": 2})), "MOD03")
    assert blocked.severity == "block"
    assert change_of(blocked, "vllm.speculative_config")["model"].startswith("google/gemma-4-E2B-it")
