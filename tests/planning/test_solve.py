"""`--solve`: the result suffices and is cheapest, the written file is planned as fitting and can be declared, and a miss says why."""

import itertools
import json
import math
import random
import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.data.checkpoints import CHECKPOINTS
from gemma_serving.planning.data.prices import PriceBook, region_of
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine.hardware import ACCELERATORS
from gemma_serving.planning.memory.margins import margin_of
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.model.catalog import spec_of
from gemma_serving.planning.planner import plan
from gemma_serving.planning.rules import memory as rules_memory
from gemma_serving.planning.rules.findings import QUOTA_IDS, RULES, detected_findings
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.workload import Workload, parse_workload
from gemma_serving.planning.solve import search
from gemma_serving.planning.solve.candidates import (
    checkpoints_of,
    image_for,
    longest_request,
    question_of,
    rentable_accelerators,
    servings_of,
    settings_of,
)
from gemma_serving.planning.solve.search import ServiceLimits, Solution, SolutionSet, solve
from gemma_serving.scripts.plan.stack_text import StackFile, stack_text
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question
from gemma_serving.stacks.program import run as program
from tests.laws import examples
from tests.planning.blocks import service_block, tpu_block
from tests.records import replace

CHAT = "in=700,out=300,users=8"
LONG = "in=4000,out=500,users=32"
KINDS = {
    "a slice": (CHAT, "E2B", None),
    "a service": (CHAT, "26B-A4B", "L4"),
    "a large service": (LONG, "31B", "RTX PRO 6000"),
    "a precision made while loading": (CHAT, "google/gemma-4-26B-A4B-it", "RTX PRO 6000"),
    "a rate": ("in=1000,out=200,rate=1.5,prefix=0.5", "E4B", "v6e-1"),
    "more users than the usual batch": (LONG, "E2B", "L4"),
    "adapters and pictures": ("in=800,out=200,users=4,adapters=2,images=6", "E4B", "L4"),
}
FAMILIES = ("E2B", "E4B", "12B", "26B-A4B", "31B")


@cache
def solved(
    workload: str, model: str | None = None, accelerator: str | None = None, limits: ServiceLimits | None = None
) -> SolutionSet:
    return solve(
        parse_workload(workload),
        limits or ServiceLimits(),
        checkpoints=checkpoints_of(model),
        places=rentable_accelerators((), accelerator=accelerator),
    )


def written(folder: Path, solution: Solution, limits: ServiceLimits) -> Path:
    path = folder / "Pulumi.new.yaml"
    path.write_text(
        stack_text(StackFile(name="new", solution=solution, limits=limits, revision="a" * 40)), encoding="utf-8"
    )
    return path


def check_file(path: Path, solution: Solution) -> None:
    """Assert that the file is planned as fitting, without a warning but those that were shown, with the figures that were shown."""
    question = to_question(from_file(path, project="my-project"))
    planned = plan(question)
    assert planned.fits
    assert planned.margin is None
    shown = {f.id: f.severity for f in planned.findings if f.severity != "info" or f.id.startswith("WRK")}
    assert tuple(name for name in shown if name not in QUOTA_IDS) == solution.warnings
    assert all(RULES[name].is_choice for name in solution.warnings)
    assert set(shown.values()) <= {"warn"}
    assert planned.workload == solution.answer
    assert planned.cost.usd_per_hour == pytest.approx(solution.usd_per_hour)
    assert planned.memory == solution.subject.memory
    assert planned.vllm == solution.subject.resolved.vllm


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_file_is_planned_as_fitting_and_the_program_declares_it(kind, tmp_path, declare, monkeypatch):
    solution = solved(*KINDS[kind]).solutions[0]
    path = written(tmp_path, solution, ServiceLimits())
    check_file(path, solution)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=docs/settings.schema.json\n# ")
    config = {**yaml.safe_load(text)["config"], "gcp:project": "my-project"}
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps(texts))
    monkeypatch.setenv("PULUMI_CONFIG_SECRET_KEYS", "[]")
    recorder, _ = declare(program)
    servers = recorder.all("cloudrunv2/service:Service") + recorder.all("gcp-tpu:index:QueuedResource")
    assert len(servers) == 1


WORKLOADS = st.builds(
    lambda tokens, output, load, share, images: Workload(
        input_tokens=tokens, output_tokens=output, prefix_share=share, images=images, **load
    ),
    st.one_of(st.integers(1, 3_000), st.integers(1, 100_000)),
    st.integers(1, 2_000),
    st.one_of(
        st.integers(1, 100).map(lambda users: {"users": users}),
        st.floats(0.05, 5).map(lambda rate: {"rate_per_s": round(rate, 3)}),
    ),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([0, 0, 2, 6]),
)


@given(WORKLOADS, st.sampled_from(FAMILIES))
@settings(max_examples=examples(test=8, part=40, night=400), deadline=None)
def test_a_checkpoint_on_a_card_is_tried_at_most_three_times(workload, family):
    need, places = longest_request(workload, None), rentable_accelerators(())
    for served, (place, *_) in itertools.product(servings_of(checkpoints_of(family)), places):
        question = question_of(served, place, workload, None)
        tries = [one.settings.vllm for one in settings_of(question, need, workload.users or 0)]
        lengths = [one.max_model_len for one in tries]
        assert 2 <= len(tries) <= 3
        assert lengths[0] > lengths[1] or len(tries) == 2
        assert lengths[-2:] == [min(-(-need // 256) * 256, spec_of(served.checkpoint.id).max_positions)] * 2
        assert [one.kv_cache_dtype for one in tries] == [None] * (len(tries) - 1) + ["fp8"]
        assert {one.max_num_seqs for one in tries} <= {None, 256, -(-(workload.users or 0) // 8) * 8}
        assert {(one.gpu_memory_utilization, one.data_parallel_size) for one in tries} == {(None, None)}


@pytest.mark.law
@given(WORKLOADS, st.sampled_from(FAMILIES))
@settings(max_examples=examples(test=8, part=40, night=400), deadline=None)
def test_all_that_is_found_for_drawn_workloads_is_planned_as_fitting(tmp_path_factory, workload, family):
    limits = ServiceLimits(max_ttft_s=10, max_tpot_s=0.2)
    answer = solve(workload, limits, checkpoints=checkpoints_of(family), places=rentable_accelerators(()))
    folder = tmp_path_factory.mktemp("drawn")
    for one in (*answer.solutions[:2], *answer.solutions[-1:]):
        check_file(written(folder, one, limits), one)
        assert one.answer.ttft_s.typical <= 10
        assert one.answer.tpot_s.typical <= 0.2
    assert (answer.nearest is None) == bool(answer.solutions)


def plain(model: str, accelerator: str, workload: Workload) -> Question:
    """Return what a person would ask without thinking of settings: the model there, at the planner's own settings."""
    on_run = not ACCELERATORS[accelerator].is_tpu
    return Question().changed(
        model=model,
        accelerator=accelerator,
        platform="cloud-run" if on_run else "tpu-vm",
        workload=workload,
        tpu=tpu_block(max_run_duration_s=4 * 3_600),
        cloud_run=service_block(region="us-central1" if on_run else None),
    )


@pytest.mark.parametrize(
    ("text", "limits", "families"),
    [
        (CHAT, ServiceLimits(), FAMILIES),
        ("in=2000,out=300,rate=2", ServiceLimits(max_ttft_s=2), FAMILIES[:2]),
    ],
)
def test_no_plain_deployment_is_cheaper_than_what_is_found(text, limits, families):
    workload = parse_workload(text)
    for family in families:
        found = solved(text, family, None, limits).chosen
        prices = [
            subject.cost.usd_per_hour
            for checkpoint, accelerator in itertools.product(checkpoints_of(family), ACCELERATORS)
            if set(ACCELERATORS[accelerator].platforms) & {"tpu-vm", "cloud-run"}
            and not ACCELERATORS[accelerator].plan_only
            for subject in [examine(plain(checkpoint.id, accelerator, workload))]
            if set(detected_findings(subject).values()) <= {"info"}
            and (limits.max_ttft_s is None or subject.workload.ttft_s.typical <= limits.max_ttft_s)
            and (limits.max_tpot_s is None or subject.workload.tpot_s.typical <= limits.max_tpot_s)
        ]
        assert (found is not None) >= bool(prices)
        assert all(found.usd_per_hour <= price + 1e-9 for price in prices)


def enumerated(workload: Workload, limits: ServiceLimits, family: str, below_usd: float) -> list[float]:
    """Return the price of each deployment that fits and keeps the limits below a price: any checkpoint, place, host and settings."""
    need, found = longest_request(workload, limits.min_context), []
    for served, hosts in itertools.product(servings_of(checkpoints_of(family)), rentable_accelerators(())):
        for place in hosts if image_for(served, hosts[0].accelerator) else ():
            if place.usd_per_hour >= below_usd or need > spec_of(served.checkpoint.id).max_positions:
                continue
            here = question_of(served, place, workload, None)
            for tuned in settings_of(here, need, workload.users or 0):
                subject = search.with_concurrency(resolve(tuned))
                answer = subject.workload
                fits = answer is not None and all(RULES[name].is_choice for name in search.warnings_of(subject))
                if not fits or answer is None or margin_of(subject.memory) is not None:
                    continue
                if answer.ttft_s.typical <= (limits.max_ttft_s or math.inf):
                    found.append(place.usd_per_hour)
    return found


@pytest.mark.long
def test_nothing_of_a_full_enumeration_is_cheaper_in_ten_drawn_questions():
    drawn = random.Random(49)  # noqa: S311 - ten questions, the same in each run
    for _ in range(10):
        load = (
            {"users": drawn.choice([1, 4, 16, 40])}
            if drawn.random() < 0.7
            else {"rate_per_s": drawn.choice([0.2, 1.5])}
        )
        workload = Workload(
            input_tokens=drawn.choice([300, 4_000, 20_000]), output_tokens=drawn.choice([50, 700]), **load
        )
        limits = ServiceLimits(max_ttft_s=drawn.choice([None, 2.0, 10.0]))
        family = drawn.choice(FAMILIES)
        best = solve(workload, limits, checkpoints=checkpoints_of(family), places=rentable_accelerators(())).chosen
        below_usd = best.usd_per_hour - 1e-9 if best is not None else math.inf
        assert not enumerated(workload, limits, family, below_usd), (workload, limits, family)


def test_a_context_that_is_asked_for_is_possible():
    limits = ServiceLimits(min_context=65_536)
    assert all(one.subject.resolved.max_model_len >= 65_536 for one in solved(CHAT, "12B", None, limits).solutions)
    assert solved(CHAT, "12B", None, limits).solutions


def test_prices_of_regions_without_a_known_price_are_marked(command):
    asked = ("--solve", "--workload", CHAT, "--model", "E2B", "--accelerator", "L4")
    code, out, _ = command(*asked, "--region", "asia-southeast1")
    assert code == 0
    assert "* No price is known for a location of this row." in out
    assert re.search(r"\d\.\d\d\*", out)
    _, out, _ = command(*asked, "--region", "us-east4")
    assert "No price is known" not in out
    assert not re.search(r"\d\.\d\d\*", out)
    answer = json.loads(command(*asked, "--region", "asia-southeast1", "--json")[1])
    assert all(row["price_is_assumed"] for row in answer["rows"])


def test_marks_name_the_best_of_all_and_each_model_has_its_cheapest():
    answer = solved(LONG)
    shown = answer.best_per_model()
    assert {CHECKPOINTS[one.served.checkpoint.id].architecture for one in shown} == {
        f"google/gemma-4-{family}-it" for family in FAMILIES
    }
    for mark, key in (
        ("cheapest", lambda one: round(one.usd_per_hour, 2)),
        ("fastest", lambda one: one.answer.request_s.typical),
        ("cheapest/M", lambda one: one.usd_per_million_tokens),
    ):
        (best,) = (one for one in shown if mark in answer.marks(one))
        assert key(best) == min(key(one) for one in answer.solutions)


@pytest.mark.parametrize(
    ("limits", "key"),
    [
        (ServiceLimits(max_usd_per_hour=1), "max_usd_per_hour"),
        (ServiceLimits(max_tpot_s=0.001), "max_tpot_s"),
        (ServiceLimits(max_ttft_s=0.01), "max_ttft_s"),
    ],
)
def test_the_nearest_miss_is_found_as_soon_as_the_limit_that_it_names_allows_it(limits, key):
    miss = solved(CHAT, "31B", "RTX PRO 6000", limits).nearest
    assert f"--{key.replace('_', '-')} {getattr(limits, key):g}" in str(miss)
    looser = replace(limits, **{key: getattr(limits, key) * miss.excess * 1.0001})
    assert miss.served in {one.served for one in solved(CHAT, "31B", "RTX PRO 6000", looser).solutions}
    tighter = replace(limits, **{key: getattr(limits, key) * miss.excess * 0.99})
    assert not solved(CHAT, "31B", "RTX PRO 6000", tighter).solutions


@pytest.mark.parametrize(
    ("workload", "model", "accelerator", "said"),
    [
        ("in=300000,out=500,users=1", None, None, "requests have 300,500 tokens, but the model supports 262,144"),
        ("in=100,out=100,users=1", "google/gemma-4-31B-it", "L4", "loading needs 34.4 of 21.96 GiB on L4"),
        ("in=100,out=100,rate=5000", "E2B", "L4", "requests/s, but 5000 arrive"),
        ("in=8000,out=500,users=900", "12B", "v6e-1", "concurrent users"),
    ],
)
def test_a_miss_says_what_fell_short(workload, model, accelerator, said):
    answer = solved(workload, model, accelerator)
    assert answer.solutions == ()
    assert said in str(answer.nearest)


def test_only_places_that_are_asked_for_and_known_are_used():
    for hosts in rentable_accelerators(("europe-west4", "us-west4")):
        for one in hosts:
            assert {region_of(place) for place in one.places} <= {"europe-west4", "us-west4"}
    names = {hosts[0].accelerator.name for hosts in rentable_accelerators(("us-east4",))}
    assert "L4" in names
    assert "RTX PRO 6000" not in names
    with pytest.raises(PlanningError, match="--region mars-north1 is not listed for"):
        rentable_accelerators(("mars-north1",))
    with pytest.raises(PlanningError, match="--region us-east4 is not listed for RTX PRO 6000"):
        rentable_accelerators(("us-east4",), accelerator="RTX PRO 6000")
    with pytest.raises(PlanningError, match="This project deploys v5e-1"):
        rentable_accelerators((), accelerator="H100")


def test_the_cheapest_place_is_taken():
    book = PriceBook.from_mapping({"regions": {"europe-west4": {"v6e_flex_start_usd_per_chip_hour": 0.5}}})
    ((slice_,),) = rentable_accelerators((), accelerator="v6e-1", prices=book)
    assert slice_.places == ("europe-west4-a",)
    assert slice_.usd_per_hour == 0.5


@pytest.fixture
def command(monkeypatch, tmp_path, run):
    """The command on stacks in a folder of their own."""
    for module in ("question", "stack_text"):
        monkeypatch.setattr(f"gemma_serving.scripts.plan.{module}.ROOT", tmp_path)
    return run


def test_the_command_shows_a_table_and_writes_a_stack_that_fits(command, tmp_path):
    asked = ("--solve", "--workload", CHAT, "--max-ttft-s", "1", "--max-usd-per-hour", "6")
    code, out, err = command(
        *asked, "--model", "12B", "--region", "us-east4", "--region", "us-central1", "--write", "mine"
    )
    assert code == 0
    assert "TTFT and TPOT are typical values." in out
    assert "cheapest" in out
    assert "wrote Pulumi.mine.yaml" in err
    text = (tmp_path / "Pulumi.mine.yaml").read_text(encoding="utf-8")
    assert "Limits: TTFT 1 s, $6/h" in text
    planned, _, refusal = command("--stack", "mine")
    assert (planned, refusal) == (0, "")
    again, _, refusal = command(*asked, "--write", "mine")
    assert again == 2
    assert re.fullmatch(
        r"plan: Pulumi\.mine\.yaml already exists\. Choose another --write or remove the file\.\n", refusal
    )
    assert (tmp_path / "Pulumi.mine.yaml").read_text(encoding="utf-8") == text


def test_a_machine_on_which_no_log_shows_the_server_has_a_mark_in_the_table(command):
    asked = ("--solve", "--workload", CHAT, "--model", "31B", "--rows", "99")
    _, out, _ = command(*asked)
    _, text, _ = command(*asked, "--json")
    recorded = {(row["model"], row["accelerator"]): row["is_recorded"] for row in json.loads(text)["rows"]}
    assert recorded["RedHatAI/gemma-4-31B-it-FP8-Dynamic", "v5e-4"] is False
    assert recorded["google/gemma-4-31B-it-qat-w4a16-ct", "v6e-8"] is True
    assert "v5e-4?" in out
    assert "v6e-8 " in out
    assert "? No public log shows a server with this checkpoint" in out


@pytest.mark.parametrize(
    ("workload", "words", "served"),
    [
        ("in=700,out=300,users=8", (), " and serve requests of 4,096 tokens (--min-context)"),
        ("in=4000,out=500,users=4", (), " and serve requests of 4,500 tokens"),
        ("in=4000,out=500,users=4", ("--min-context", "9000"), ""),
    ],
)
def test_the_note_has_the_length_of_a_request_that_every_row_serves(command, workload, words, served):
    _, out, _ = command("--solve", "--workload", workload, "--model", "12B", *words)
    assert f"among the deployments that meet the limits{served}; of equal ones" in " ".join(out.split())


@pytest.mark.parametrize(("asked", "printed"), [((), 5), (("--rows", "2"), 2), (("--rows", "99"), None)])
def test_the_table_ends_with_how_to_show_the_other_rows(command, asked, printed):
    words = ("--solve", "--workload", CHAT, "--model", "31B", *asked)
    rows = json.loads(command(*words, "--json")[1])["rows"]
    _, out, _ = command(*words)
    assert sum("│" in line for line in out.splitlines()) == (printed or len(rows))
    named = [mark for line in out.splitlines() for mark in line.partition(": ")[0].split(", ")]
    assert {mark for row in rows for mark in row["marks"]} <= set(named)  # the best are named, printed or not
    more = f"{len(rows) - (printed or 0):,} more rows: --rows {len(rows)}"
    assert (out.splitlines()[-1] == more) == (printed is not None)


def test_with_json_all_rows_are_one_object(command):
    code, out, _ = command("--solve", "--workload", CHAT, "--model", "E2B", "--json", "--max-tpot-s", "0.03")
    answer = json.loads(out)
    assert code == 0
    assert answer["limits"]["max_tpot_s"] == 0.03
    assert all(row["tpot_s"]["typical"] <= 0.03 for row in answer["rows"])
    assert [row["usd_per_hour"] for row in answer["rows"]] == sorted(row["usd_per_hour"] for row in answer["rows"])
    assert answer["rows"][0]["marks"][0] == "cheapest"
    assert {row["platform"] for row in answer["rows"]} == {"tpu-vm", "cloud-run"}


def test_31b_on_one_chip_is_offered_with_the_image_that_has_to_be_built(command, tmp_path):
    asked = ("--solve", "--workload", "in=512,out=256,users=4", "--model", "31B", "--accelerator", "v6e-1")
    code, out, err = command(*asked, "--json", "--write", "mine")
    assert code == 0, err
    (row,) = json.loads(out)["rows"]
    assert (row["model"], row["image"]) == ("google/gemma-4-31B-it-qat-w4a16-ct", "vllm-tpu-w4a16")
    assert row["usd_per_hour"] == 1.35
    assert row["start_s"] < 1_800, "with the encoders of images and sound it starts in 45 min"
    written_file = tmp_path / "Pulumi.mine.yaml"
    assert "gemma-serving:image: vllm-tpu-w4a16\n" in written_file.read_text(encoding="utf-8")
    assert plan(to_question(from_file(written_file, project="my-project"))).fits
    code, out, _ = command(*asked)
    assert code == 0
    assert "hub, text only" in out
    assert "(--image vllm-tpu-w4a16): google/gemma-4-31B-it-qat-w4a16-ct on v6e-1." in out
    code, out, _ = command(*asked[:2], f"{asked[2]},images=1", *asked[3:])
    assert "text only" not in out
    code, out, _ = command("--solve", "--workload", CHAT, "--model", "E2B", "--json")
    assert {row["image"] for row in json.loads(out)["rows"]} == {None}


def test_where_nothing_is_enough_one_line_says_why_and_no_file_is_written(command, tmp_path):
    code, out, err = command(
        "--solve", "--workload", CHAT, "--model", "31B", "--max-usd-per-hour", "1", "--write", "mine"
    )
    assert (code, out) == (2, "")
    assert re.fullmatch(r"plan: no deployment meets the limits. Closest: \S+ on v6e-1 .*--max-usd-per-hour 1\.\n", err)
    assert list(tmp_path.iterdir()) == []


def test_prices_outside_the_project_are_not_named_in_a_file(command, tmp_path, tmp_path_factory):
    prices = tmp_path_factory.mktemp("elsewhere") / "prices.json"
    prices.write_text(json.dumps({"v6e_flex_start_usd_per_chip_hour": 0.01}), encoding="utf-8")
    options = ("--solve", "--workload", CHAT, "--model", "E4B", "--prices", str(prices), "--write", "mine")
    code, _, error = command(*options)
    assert (code, (tmp_path / "Pulumi.mine.yaml").exists()) == (2, False)
    assert f"Copy the file into {tmp_path}" in " ".join(error.split())


def test_prices_of_ones_own_decide_and_are_named_in_the_file(command, tmp_path):
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"v6e_flex_start_usd_per_chip_hour": 0.01}), encoding="utf-8")
    code, out, _ = command(
        "--solve", "--workload", CHAT, "--model", "E4B", "--prices", str(prices), "--write", "mine", "--json"
    )
    row = json.loads(out)["rows"][0]
    assert (code, row["accelerator"], row["usd_per_hour"]) == (0, "v6e-1", 0.01)
    planned = plan(to_question(from_file(tmp_path / "Pulumi.mine.yaml", project="my-project"), tmp_path))
    assert planned.cost.usd_per_hour == 0.01


def fully_doubled(monkeypatch):
    """Let FIT07 warn of every fp8 KV cache that does not double the tokens, and solve for 31B."""
    monkeypatch.setattr(rules_memory, "_WORTH_KEEPING", 2.0)
    workload, places = parse_workload(LONG), rentable_accelerators(())
    return lambda: solve(workload, ServiceLimits(), checkpoints=checkpoints_of("31B"), places=places)


def test_a_warning_about_a_choice_ranks_last(monkeypatch):
    solutions = fully_doubled(monkeypatch)().solutions
    assert {one.warnings for one in solutions} == {(), ("FIT07",)}
    assert [bool(one.warnings) for one in solutions] == sorted(bool(one.warnings) for one in solutions)


@pytest.mark.parametrize("size", ["E2B", "E4B", "12B", "26B-A4B", "31B"])
def test_a_question_has_the_price_and_the_start_of_the_file_that_new_writes(size: str) -> None:
    """`gemma plan --model M --accelerator A` plans what `gemma init --model M --accelerator A` writes.

    Only a checkpoint that needs an image of this project on a TPU differs, whose file also serves text only.
    """
    found = solve(
        parse_workload(CHAT), ServiceLimits(), checkpoints=checkpoints_of(size), places=rentable_accelerators(())
    )
    asked = [one for one in found.solutions if not one.image]
    assert asked
    for one in asked:
        accelerator = one.subject.resolved.accelerator.name
        question = Question().changed(
            model=one.served.checkpoint.id, quantization=one.served.quantization, accelerator=accelerator
        )
        planned = plan(question)
        figures = round(planned.cost.usd_per_hour, 2), round(planned.startup.ready_s / 60, 1)
        assert figures == (round(one.usd_per_hour, 2), round(one.subject.startup.ready_s / 60, 1)), (
            f"{one.served.words} on {accelerator}"
        )
