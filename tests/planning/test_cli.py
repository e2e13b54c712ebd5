"""The command: its keys, its exit codes, and what it says to a person who made a mistake."""

import json
import re
import shlex
import subprocess
import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gemma_serving.planning.settings.annotations import Matching, OneOf
from gemma_serving.planning.settings.fields import SettingField
from gemma_serving.planning.settings.paths import question_fields, value_at
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import BLOCK_KEYS
from gemma_serving.scripts.cli.options import CommandParser, add_options, read_options
from gemma_serving.scripts.plan.__main__ import main
from gemma_serving.scripts.plan.question import CommandWording, QuestionOptions, question_from

ROOT = Path(__file__).resolve().parents[2]
E2B = ("--model", "google/gemma-4-E2B-it", "--accelerator", "v6e-4")
TOO_LARGE = ("--model", "google/gemma-4-31B-it", "--accelerator", "L4")


def test_the_command_prints_one_object_and_nothing_else_and_loads_no_heavy_library():
    heavy = ("pydantic", "rich", "typer", "yaml", "pulumi", "requests")
    probe = (
        "import runpy, sys\n"
        "try: runpy.run_module('scripts.plan', run_name='__main__')\n"
        f"except SystemExit as end: print(end.code, sorted({{*{heavy}}} & {{*sys.modules}}), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, *E2B, "--json"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr.strip() == "0 []"
    assert json.loads(done.stdout)["fits"] is True


@pytest.mark.parametrize(
    ("accelerator", "code", "says"),
    [("v6e-1", 0, ""), ("v6e1", 0, ""), ("v5e-1", 2, "does not support v5e-1; set acceleratorType to one of v6e-1,")],
)
def test_a_value_is_judged_with_the_accelerator_of_the_question(run, accelerator, code, says):
    found, out, error = run(*E2B[:2], "--accelerator", accelerator, "--set", "tpu.api=compute-engine")
    assert (found, says in out + error) == (code, True)


def test_no_message_about_one_value_has_an_empty_name(run, subtests):
    """A question has blocks whose other values nobody set."""
    values = {
        "tpu.api": "compute-engine",
        "tpu.provisioning": "reservation",
        "tpu.runtimeVersion": "x/images/y",
        "tpu.maxUsdPerHour": "0.01",
        "tpu.existingNetwork.network": "n",
        "cloudRun.minInstances": "9",
        "cloudRun.concurrency": "999",
        "cloudRun.zonalRedundancy": "true",
        "cloudRun.gpuQuota": "1",
        "image.uid": "1",
    }
    for key, value in values.items():
        with subtests.test(key):
            accelerator = "v6e-1" if key.startswith("tpu.") else "L4"
            _, out, error = run(*E2B[:2], "--accelerator", accelerator, "--set", f"{key}={value}", "--json")
            said = error + "".join(
                finding["message"] for finding in (json.loads(out) if out else {}).get("findings", ())
            )
            assert not re.search(r" [;,.:]|\bin [,.;]|\S  \S|\bfor [,.;]", said), said


def test_a_stack_is_planned_with_other_values_and_its_file_stays_as_it_is(run):
    before = (ROOT / "examples" / "stacks" / "Pulumi.tpu-v6e4-turbo.yaml").read_bytes()
    as_it_is = json.loads(run("--stack", "tpu-v6e4-turbo", "--json")[1])
    code, out, _ = run("--stack", "tpu-v6e4-turbo", "--set", "vllm.gpuMemoryUtilization=0.96", "--json")
    changed = json.loads(out)
    assert code == 0
    assert "FIT05" in {finding["id"] for finding in changed["findings"]} - {
        finding["id"] for finding in as_it_is["findings"]
    }
    assert changed["memory"]["kv_gib"] > as_it_is["memory"]["kv_gib"]
    assert (ROOT / "examples" / "stacks" / "Pulumi.tpu-v6e4-turbo.yaml").read_bytes() == before


def test_each_place_that_suggests_an_image_without_a_build_says_so(run):
    day = ("--solve", "--workload", "in=512,out=256,users=4", "--model", "31B")
    model = ("--model", "google/gemma-4-31B-it")
    places = {
        "remedies": (*model, "--accelerator", "v6e-1"),
        "solve": day,
        "comparison": ("--model", "google/gemma-4-31B-it-qat-w4a16-ct", "--compare"),
    }
    said = {
        name: "vllm-tpu-w4a16 (never built yet)" in " ".join(run(*words)[1].split()) for name, words in places.items()
    }
    assert said == dict.fromkeys(places, True)


def test_a_tpu_has_no_startup_probe_and_two_pauses_and_a_service_has_a_probe(run):
    def start(stack: str) -> str:
        text = " ".join(run("--stack", stack)[1].split())
        return text[text.index("Start-up:") : text.index(" ─")]

    assert start("tpu-v6e1") == (
        "Start-up: about 12 min (10 to 14); each later one about 7 min 34 s (the cache saves 63% of compiling); "
        "in-place restart 5 min 4 s, 9 min 13 s if a flag compiles again"
    )
    assert (
        "each later one about 2 min 39 s (the cache saves 72% of compiling); a startup probe needs at least 6 min;"
        in start("l4-12b-qat")
    )


@pytest.mark.parametrize("explained", [(), ("--explain",)])
def test_a_start_names_the_measured_starts_behind_it(run, explained: tuple[str, ...]):
    for stack, words in (
        ("tpu-v6e4", "19 whole starts measured on v6e"),
        ("rtx6000-31b", "no start was measured on RTX"),
    ):
        assert " ".join(run("--stack", stack, *explained)[1].split()).count(words) == 1


def test_exit_codes_are_0_for_fits_and_2_for_blocked_and_out_of_memory(run):
    assert run(*E2B, "--json")[0] == 0
    code, out, _ = run(*E2B, "--set", "vllm.tensorParallelSize=8", "--json")
    assert (code, json.loads(out)["verdict"]) == (2, "blocked")
    code, out, _ = run(*TOO_LARGE, "--json")
    assert (code, json.loads(out)["verdict"]) == (2, "out-of-memory")


VALUES: dict[object, object] = {
    int: 7,
    float: 0.5,
    bool: True,
    str: "word",
    tuple: ("one", "two"),
    Mapping: {"image": 2},
}


EXAMPLES: dict[str, object] = {
    "accept_findings": ("PRB01", "TPU04"),
    "endpoint_url": "https://models.example.com",
    "vllm.image_tokens": 560,
    "vllm.max_image_tokens": 560,
    "vllm.max_lora_rank": 32,
    "vllm.block_size": 32,
    "vllm.lora_adapters": {"sql": "org/adapter"},
    "tpu.provisioning": ("spot", "flex-start"),
    "tpu.zones": ("us-east5-a", "us-east5-b"),
    "tpu.tunnel_members": ("user:a@example.com", "group:b@example.com"),
    "cloud_run.invokers": ("user:a@example.com", "group:b@example.com"),
    "cloud_run.request_timeout_s": 1_800,
    "cloud_run.mount.options": ("file-mode=444", "implicit-dirs"),
    "image.version": "0.28.0",
    "image.digest": f"sha256:{'a' * 64}",
    "image.supports": ("fp8", "w4a16"),
    "alerts.ttft_goal": 0.97,
}


def example(path: str) -> object:
    """Return a value that the field takes."""
    field = question_fields()[path]
    words = [EXAMPLES[path]] if path in EXAMPLES else [*allowed(field)]
    return words[-1] if words else VALUES[typing.get_origin(field.hint) or field.hint]


def allowed(field: SettingField) -> Iterator[object]:
    """Yield values that the type of a field states."""
    if field.quantity is not None:
        yield 5_400
    if typing.get_origin(field.hint) is typing.Literal:
        yield from typing.get_args(field.hint)
    for annotation in field.annotations:
        if isinstance(annotation, OneOf):
            yield from annotation.values
        if isinstance(annotation, Matching) and annotation.example:
            yield annotation.example
    if "ge" in field.words and field.quantity is None and field.hint is int:
        yield max(int(field.words["ge"]), 7)


def question(*arguments: str) -> Question:
    command = CommandParser()
    add_options(command, QuestionOptions)
    words = ("--model", "google/gemma-4-E2B-it", "--accelerator", "v6e-1", *arguments)
    return question_from(read_options(QuestionOptions, command.parse_args(words)))


def test_every_field_can_be_set_and_left_out_in_the_words_of_a_remedy():
    plain = question()
    in_a_block = {"tpu.accelerator_type", "cloud_run.gpu"}  # a question has --accelerator
    for path, kind in question_fields().items():
        if path in in_a_block:
            continue
        change = {path: example(path)}
        words = CommandWording().change(change).removeprefix("add ")
        assert value_at(question(*shlex.split(words)), path) == example(path), path
        if kind.is_optional:
            without = shlex.split(CommandWording().change({path: None}).removeprefix("add "))
            assert value_at(question(*shlex.split(words), *without), path) is None, path
    without = question("--set", "cloudRun.startupProbe.period=9s", "--set", "cloudRun.startupProbe=none")
    assert without.changed(cloud_run=None) == plain


IN_BLOCKS: Mapping[str, tuple[str, tuple[object, ...]]] = {
    "vllm.limit_mm_per_prompt": ("multimodal.images=2", ({"image": 1, "video": 0, "audio": 0}, None)),
    "vllm.speculative_config": ("speculative.method=n-gram", ({"method": "ngram", "num_speculative_tokens": 5}, None)),
    "vllm.enable_auto_tool_choice": ("tools.enabled=true", (False,)),
    "vllm.tool_call_parser": ("tools.parser=hermes", ("gemma4",)),
    "vllm.reasoning_parser": ("thinking.parser=hermes", ("gemma4", None)),
    "vllm.chat_template": ("thinking.template=/a.jinja", ("/b.jinja", None)),
}
"""Options with a key in a block: a pair that sets it there, and other values."""


@pytest.mark.parametrize("path", IN_BLOCKS)
def test_a_remedy_names_the_block_that_the_command_line_uses(path: str):
    assert {path.removeprefix("vllm.") for path in IN_BLOCKS} == BLOCK_KEYS.keys()
    pair, values = IN_BLOCKS[path]
    given = ("--set", f"vllm.{pair}")
    wording = CommandWording(in_blocks=question(*given).settings.vllm_in_blocks)
    for value in values:
        words = shlex.split(wording.change({path: value}).removeprefix("add "))
        assert value_at(question(*given, *words), path) == value
        assert all(word.startswith(f"vllm.{pair.partition('.')[0]}") for word in words[1::2])


SEARCH = "--solve --workload in=700,out=300,users=8"
BOX = "--device memory=24GiB,bandwidth=936GB/s,tflops=71"
OTHER = "tests/fixtures/models/other-8b"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--min-context 4096", "requires --compare"),
        ("--stack tpu-v6e4", "STACK and --model cannot be combined"),
        ("--config no-such-file.json", "no-such-file.json cannot be read"),
        ("--prices no-such-file.json", "no-such-file.json cannot be read"),
        ("--config tests/fixtures/models/none", "none cannot be read"),
        (f"--config {OTHER} --from-hub", "--from-hub and --config cannot be combined"),
        (f"--config {OTHER} --save x", "--save requires --from-hub"),
        ("--colour", "See --help."),
        (BOX, "cannot be combined without --compare"),
        ("--image vllm-tpu-w4", '--image is "vllm-tpu-w4". Allowed: vllm-openai, vllm-openai-0.28.0, vllm-tpu,'),
        ("--image vllm-openai", "vllm-openai is an image for GPUs, but v6e-4"),
    ],
)
def test_an_option_that_a_question_cannot_have_is_one_sentence(run, options: str, said: str):
    refused(run(*E2B, *shlex.split(options)), said)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--stack l4-qat --set cloudRun.memry=32Gi", "Did you mean cloudRun.memory?"),
        ("--compare --model 12B --image vllm-tpu", "--compare and --image cannot be combined"),
        ("--compare l4-12b-qat l4-qatt", "Pulumi.l4-qatt.yaml not found. Did you mean l4-qat?"),
        ("--compare l4-12b-qat tpu-v6e1 --costs", "Stacks after --compare and --costs cannot be combined."),
        (f"--stack l4-qat {BOX}", "STACK and --device cannot be combined"),
        (f"--model 12B {BOX} --costs", "--costs and --device cannot be combined"),
        *(
            (f"--stack l4-qat {words}", f"STACK and {words.split()[0]} cannot be combined. Pass --set {step}.")
            for words, step in (
                ("--vllm 0.22.0", "image=NAME"),
                ("--image vllm-openai", "image=NAME"),
                ("--model google/gemma-4-12B-it", "model=ID"),
            )
        ),
        (f"--model google/gemma-4-12B-it {BOX} --vllm 0.28.0foo", "it must be a release of vLLM"),
        (f"{SEARCH} --vllm 0.22.0", "--solve and --vllm"),
        ("--solve", "--solve requires --workload in=4000"),
        ("--solve --workload in=10,out=10", "Add users=N or rate=N to --workload"),
        (f"{SEARCH} --stack l4-qat", "--solve and STACK cannot be combined"),
        (f"{SEARCH} --min-concurrency 3", "--solve and --min-concurrency cannot be combined"),
        (f"{SEARCH} --conservative", "--max-ttft-s and --max-tpot-s limit typical times; set them lower."),
        (f"{SEARCH} --write Bad_Name", "Use up to 30 lower-case letters"),
        ("--stack l4-qat --max-ttft-s 1", "--max-ttft-s requires --solve"),
    ],
)
def test_options_that_do_not_go_together_are_refused(run, line: str, said: str):
    refused(run(*shlex.split(line)), said)


def refused(ended: tuple[int, str, str], said: str) -> None:
    """Assert that a command ended with one sentence."""
    code, out, err = ended
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("plan: ")
    assert err.count("\n") == 1


def test_a_table_shows_memory_start_up_cost_and_findings(run):
    code, out, _ = run(*E2B)
    assert code == 0
    for part in (
        "google/gemma-4-E2B-it",
        "v6e-4",
        "weights",
        "KV",
        "weights (hub)",
        "compile",
        "$5.40/h (4 v6e chips, flex-start $5.40)",
    ):
        assert part in out


def test_a_plan_that_cannot_start_shows_its_reason_first_and_no_speed(run):
    """One lacks memory, the other breaks a rule. --costs and --explain begin with the reason too."""
    for words, verdict in ((TOO_LARGE, "out of memory"), ((*E2B, "--set", "vllm.tensorParallelSize=8"), "blocked")):
        for more in ((), ("--workload", "in=100,out=100"), ("--costs",), ("--explain",)):
            code, out, _ = run(*words, *more)
            title, *rows = out.splitlines()
            reasons = [row.split()[0] for row in rows if re.match(r"[A-Z]{3}\d\d block ", row)]
            assert code == 2
            assert verdict in title
            assert rows[0].startswith(f"{reasons[0]} block ")
            assert ("Start-up:" in out) == (verdict == "blocked" and more in {(), ("--workload", "in=100,out=100")})
            if more not in {("--costs",), ("--explain",)}:
                assert not re.search(r"tokens/s|tok/s|per 1M|━━╇", out)
                assert "\n  Cost  " in out


def test_only_a_stated_workload_has_a_table(run):
    table, line = "time to first token, s", "\n  Load     1,500 tokens in, 300 out, 32 users: "
    shown = run("--stack", "tpu-v6e1")[1]
    assert (table in shown, line in shown) == (False, True)
    assert line not in run(*E2B)[1]
    for more in (("--workload", "in=1500,out=300,users=32"), ("--explain",)):
        shown = run("--stack", "tpu-v6e1", *more)[1]
        assert (table in shown, line in shown) == (True, False)


def test_explaining_shows_the_arithmetic_and_keeps_the_exit_code(run):
    code, out, _ = run(*E2B, "--explain")
    assert code == 0
    assert "18 KiB" in out or "18,432" in out
    assert run(*TOO_LARGE, "--explain")[0] == 2


def test_comparing_keeps_to_the_limits(run):
    code, out, _ = run(
        "--model", "google/gemma-4-31B-it", "--compare", "--json",
        "--min-context", 32_768, "--min-concurrency", 2.5, "--max-usd-per-hour", 6,
    )  # fmt: skip
    document = json.loads(out)
    enough = [row for row in document["rows"] if row["enough"]]
    assert code == 0
    assert document["cheapest"] in {row["accelerator"] for row in enough}
    assert all(row["cost"]["usd_per_hour"] <= 6 and row["memory"]["max_concurrency"] >= 2.5 for row in enough)


@pytest.mark.parametrize(
    ("card", "decode", "prefill"),
    [
        ("A100-80GB", "", "only one public source has a time to the first token"),
        ("H200", "only one public source has a", "no public source has a time to the first token"),
        ("H100", "", ""),
    ],
)
def test_a_card_with_few_sources_names_them(run, card: str, decode: str, prefill: str):
    options = ("--model", "google/gemma-4-E4B-it", "--accelerator", card, "--workload", "in=500,out=100,users=1")
    out = " ".join(run(*options)[1].split())
    for words, end in ((decode, "time per token on"), (prefill, "on this accelerator")):
        assert f"{words} {end}" in out if words else f"public source has a {end}" not in out, out


@pytest.mark.parametrize("stack", ["tpu-v6e4-turbo", "l4-qat"])
def test_costs_show_the_bill_with_its_sources_and_the_break_even(run, stack: str):
    code, out, err = run("--stack", stack, "--costs")
    assert (code, err) == (0, "")
    document = json.loads(run("--stack", stack, "--json")[1])["cost"]
    for part in document["bill"]:
        assert part["name"] in out
        assert part["price"] is None or part["price"]["url"] in out
    until_first = float(re.search(r"costs (?:up to )?\$([0-9.]+) until the first response", out)[1])
    assert until_first == pytest.approx(
        document["cold_start"]["usd"], abs=0.0051
    )  # cents, of tenths of a cent in the document
    assert f"${document['always_on']['usd_per_month']:,.2f}" in out
    assert all(f"${window['usd_per_month']:,.2f}" in out for window in document["windows"])
    requests = document["break_even"]["requests_per_day"]
    said = (
        "Runs of any length cost less" if requests is None else f"cheaper above {requests:.0f} single requests per day"
    )
    assert said in out
    zones = [place["place"] for place in document["places"]]
    assert all(zone in out for zone in zones)


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        (("--model", "12B"), "google/gemma-4-12B-it"),
        (("--model", "12B", "--quantization", "w4a16"), "google/gemma-4-12B-it-qat-w4a16-ct"),
        (("--model", "12B", "--quantization", "fp8"), "RedHatAI/gemma-4-12B-it-FP8-Dynamic"),
    ],
)
def test_a_family_is_its_original_or_the_checkpoint_stored_in_the_precision(run, options, chosen: str):
    _, out, err = run(*options, "--accelerator", "H100", "--json")
    assert json.loads(out)["model"] == chosen
    assert f"{options[1]} is {chosen}" in err
    assert "--solve compares" in err


QAT = ("--model", "google/gemma-4-31B-it-qat-w4a16-ct")


def test_an_image_of_this_project_is_compared_where_only_it_loads_the_precision(run):
    code, out, _ = run("--compare", *QAT, "--set", "vllm.maxModelLen=4096", "--json")
    rows = {row["accelerator"]: row for row in json.loads(out)["rows"]}
    assert code == 0
    assert json.loads(out)["cheapest"] == "v6e-1"
    assert (rows["v6e-1"]["verdict"], rows["v6e-1"]["image"]) == ("fits", "vllm-tpu-w4a16")
    assert rows["L4"]["image"] is None
    assert rows["v5e-8"]["image"] is None, "the image is for v6e"
    assert "(--image vllm-tpu-w4a16): v6e-1 on tpu-vm, v6e-4 on tpu-vm, v6e-8 on tpu-vm." in " ".join(
        run("--compare", *QAT)[1].split()
    )


def test_the_way_out_of_a_card_that_is_too_small_fits_as_it_is_printed(run):
    code, out, _ = run(*QAT, "--accelerator", "L4", "--json")
    finding = next(one for one in json.loads(out)["findings"] if one["id"] == "FIT01")
    first = finding["remedies"][0]["text"].removeprefix("add ")
    assert code == 2
    assert "--image vllm-tpu-w4a16" in first
    assert run(*QAT, "--accelerator", "L4", *shlex.split(first))[0] == 0


def test_comparing_says_when_nothing_is_enough(run):
    code, out, _ = run("--model", "google/gemma-4-31B-it", "--compare", "--max-usd-per-hour", "0.5")
    assert code == 2
    assert "H200" in out


def test_a_plan_tells_that_up_will_refuse_another_region_if_a_local_backend_has_the_state(
    tmp_path, monkeypatch, capsys
):
    item = {"urn": "urn:pulumi:l4-qat::gemma-serving::gcp:cloudrunv2/service:Service::vllm", "custom": True}
    item |= {"type": "gcp:cloudrunv2/service:Service", "outputs": {"project": "p-of-state", "location": "us-east1"}}
    item["inputs"] = item["outputs"]
    folder = tmp_path / ".pulumi" / "stacks" / "gemma-serving"
    folder.mkdir(parents=True)
    state = {"version": 3, "checkpoint": {"latest": {"manifest": {}, "resources": [item]}}}
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path}")
    assert main(["--stack", "l4-qat"]) == 0
    (folder / "l4-qat.json").write_text(json.dumps(state))
    capsys.readouterr()
    assert main(["--stack", "l4-qat", "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["fits"] is True
    assert "plan: `gemma up l4-qat` will reject these settings. gemma-serving:cloudRun.region" in err
    monkeypatch.setenv("PULUMI_BACKEND_URL", "gs://a-bucket")
    assert main(["--stack", "l4-qat", "--json"]) == 0
