"""Each cause is recognized by a line of a log, its hint has the figures and what to change, and no hint proposes what has failed.

The lines are in tests/fixtures/crash_lines.toml, with the page of each. `{}` in a law stands for a drawn figure.
"""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.records import CRASHES
from gemma_serving.planning.rules.findings import RULES
from gemma_serving.stacks.hooks.failure_hints import Cause, FailedStart, cause_of, known_causes
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question
from localcloud.vllm.places import hub_words
from tests.laws import examples
from tests.records import replace
from tests.stacks.conftest import ROOT
from tests.stacks.failed_start import PROJECT

STACKS = {"cloud-run": "l4-12b-qat", "tpu": "tpu-v6e1"}
LINES = tomllib.loads((Path(__file__).parents[1] / "fixtures" / "crash_lines.toml").read_text(encoding="utf-8"))[
    "lines"
]
LAST = (
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)
EXIT = "Container called exit(1)."
CANCELLED = (
    'STARTUP HTTP probe failed 1 time consecutively for container "vllm" on port 8000 path "/health". The instance was not started. '
    "Connection failed with status CANCELLED."
)
"""Last lines of Cloud Run after a container has exited, which is no slow start."""


def start_of(stack, changes=None, **vllm):
    """Return the failed start of a stack with other settings, by key, and other options of vLLM."""
    found = from_file(settings_file(stack, ROOT), project=PROJECT, changes=changes)
    changed = replace(found, vllm=replace(found.vllm, **vllm))
    return FailedStart(stack=stack, settings=changed, plan=plan(to_question(changed)))


@pytest.mark.parametrize("line", LINES, ids=[f"{line['cause']}: {line['source']}" for line in LINES])
def test_each_line_is_recognized_on_its_targets_between_the_lines_of_vllm(line):
    known = known_causes()[line["cause"]]
    words = re.split(r"\{[^{}]*\}", known.get("text", "").replace("{{{{", "{{").replace("}}}}", "}}"))
    begin = "(EngineCore pid=407) ERROR 11-27 10:00:00 [core.py:1136] "
    for target in line["targets"]:
        texts = ["INFO loading", *(f"{begin}{text}" for text in line["text"].strip().splitlines())]
        texts += [EXIT] if line["cause"] == "too-slow" else [LAST, EXIT, CANCELLED] if target == "cloud-run" else [LAST]
        cause = cause_of(texts, start_of(STACKS[target], line.get("settings")))
        assert all(word in cause.hint for word in words if "{" not in word), cause
        assert all(figure in cause.hint for figure in line.get("figures", [])), cause
        assert cause.line in texts
        assert cause.finding == known.get("rule", "")


@pytest.mark.parametrize("status", [0, 429, 500, 503, 504])
def test_the_simulated_hub_that_is_busy_is_recognized_and_one_that_refuses_is_not(status):
    said = hub_words("server", model="google/gemma-4-E2B-it", status=status).splitlines()
    for stack, then in (
        ("l4-12b-qat", "To try again, run `gemma up l4-12b-qat`."),
        ("tpu-v6e1", "The TPU VM tries again by itself."),
    ):
        assert cause_of([*said, LAST], start_of(stack)).hint.endswith(f"`gemma save_token {stack} hfToken`. {then}")
    refused = hub_words("server", model="google/gemma-4-E2B-it", status=403, code="GatedRepo").splitlines()
    assert "denied access" in cause_of(refused, start_of("l4-12b-qat")).hint
    assert (
        cause_of(
            ["HTTP Error 429 thrown while requesting HEAD https://huggingface.co/x/resolve/main/config.json"],
            start_of("tpu-v6e1"),
        )
        is None
    )


@pytest.mark.parametrize("crash", [one for one in CRASHES.values() if one.line], ids=lambda one: one.id)
@pytest.mark.parametrize("stack", STACKS.values())
def test_a_crash_on_public_record_is_recognized_with_its_page_and_the_way_out(crash, stack):
    cause = cause_of([f"(EngineCore pid=407) {crash.line}", LAST, EXIT, CANCELLED], start_of(stack))
    assert cause.finding == "REL01"
    assert crash.source in cause.hint
    assert crash.way_out in cause.hint


def test_the_newest_other_error_replaces_the_engines_last_line_and_is_no_known_cause():
    error = "ValueError: the drafter has another vocabulary"
    lines = [
        "ValueError: older",
        f"(EngineCore pid=407) ERROR 11-27 10:00:00 [core.py:1] {error}",
        LAST,
        EXIT,
        CANCELLED,
    ]
    assert cause_of(lines, start_of("l4-12b-qat")) == Cause(line=error)


def test_what_the_planner_does_not_know_has_no_hint():
    assert (
        cause_of(["Traceback (most recent call last):", "KeyError: 'x'", EXIT, CANCELLED], start_of("l4-12b-qat"))
        is None
    )


def test_more_memory_is_more_than_the_plan_and_more_than_was_used():
    changes = {
        "model": "google/gemma-4-31B-it-qat-w4a16-ct",
        "modelRevision": None,
        "cloudRun.memory": "16Gi",
        "cloudRun.cpu": 4,
    }
    start = start_of("l4-qat", changes)
    assert start.plan.memory.load_peak_host_gib > 22
    line = "Memory limit of 16384 MiB exceeded with 16793 MiB used. Consider increasing the memory limit"
    assert "at least 28Gi" in cause_of([line], start).hint


def test_each_cause_of_the_table_has_a_text_and_a_rule_of_the_planner():
    for name, known in known_causes().items():
        assert "text" in known or "else" in known, name
        assert known.get("rule", "FIT01") in RULES, name
        assert known.get("target", "tpu") in {"tpu", "cloud-run"}, name
        assert set(known) <= {"pattern", "text", "if", "else", "given", "rule", "target", "generic"}, name


def test_each_cause_has_a_line_for_each_of_its_targets():
    seen = {(line["cause"], target) for line in LINES for target in line["targets"]}
    for name, known in known_causes().items():
        targets = [known["target"]] if "target" in known else list(STACKS)
        assert name in CRASHES or {(name, target) for target in targets} <= seen, name


NOT_POSSIBLE = "That was not possible. There are {}"
CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB. GPU 0 has a total capacity of 22.03 GiB of which {} GiB is free."
OUT_OF_MEMORY = {
    "reserve": ("tpu", f"Error loading program 'f': Attempting to reserve {{}}G at the bottom of memory. {NOT_POSSIBLE}G free, 0B reserved"),
    "allocate": ("tpu", f"RuntimeProgramAllocationFailure:\nError loading program 'f':\nAttempting to allocate {{}}G. {NOT_POSSIBLE}G free."),
    "megabytes": ("tpu", f"Error loading program 'f': Attempting to allocate {{}}M. {NOT_POSSIBLE}M free."),
    "no figure": ("tpu", "RESOURCE_EXHAUSTED: E0101: RuntimeProgramAllocationFailure:"),
    "buffer": ("tpu", f"Error allocating device buffer: Attempting to allocate {{}}G. {NOT_POSSIBLE}G free.; (0x0x0_HBM0)"),
    "compile": ("tpu", "Ran out of memory in memory space hbm. Used {}G of {}G hbm. Exceeded hbm capacity by 1.00G."),
    "temporaries": ("tpu", "Ran out of memory on HBM, the total memory required for HLO temporaries ({}G) exceeds available HBM ({}G)."),
    "CUDA": ("cloud-run", CUDA),
    "CUDA in MiB": ("cloud-run", CUDA.replace("{} GiB", "{} MiB")),
    "sampler": ("cloud-run", "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests."),
}  # fmt: skip
"""Messages about memory outside the budget, with what is needed and what is free."""
TOO_SMALL = {
    "cache": "No available memory for the cache blocks (Available KV cache memory: -{1} GiB). Try increasing `gpu_memory_utilization`.",
    "length": (
        "max seq len (16384), ({0} GiB KV cache is needed, which is larger than the available KV cache memory ({1} GiB). "
        "Based on the available memory, the estimated maximum model length is 9000."
    ),
}
"""Messages about a budget that is too small."""
DRAWN_STACKS = {"tpu": ("tpu-v6e1", "tpu-v6e4", "tpu-v6e4-31b"), "cloud-run": ("l4-12b-qat", "l4-qat", "rtx6000-31b")}
UTILIZATIONS = st.sampled_from((0.4, 0.5, 0.85, 0.9, 0.905, 0.93, 0.95, 0.97, 0.98, 1.0))
SIZES = st.tuples(st.floats(0.01, 60), st.floats(0.0, 60)).map(sorted)


def proposed(hint, key):
    """Return the values of a setting that a hint proposes."""
    found = re.findall(rf"{key} (?:to|below) (\d[\d,]*(?:\.\d+)?)", hint)
    return [float(number.replace(",", "")) for number in found]


class TestNoHintProposesWhatFailed:
    @pytest.mark.parametrize("name", OUT_OF_MEMORY)
    @settings(max_examples=examples(test=15, part=60, night=400), deadline=None)
    @given(st.data())
    def test_less_memory_for_the_budget_if_something_outside_it_did_not_fit(self, name, data):
        target, message = OUT_OF_MEMORY[name]
        stack = data.draw(st.sampled_from(DRAWN_STACKS[target]))
        failed, (free, needs) = data.draw(UTILIZATIONS), data.draw(SIZES)
        start = start_of(stack, gpu_memory_utilization=failed)
        hint = cause_of(message.format(f"{needs:.2f}", f"{free:.2f}").splitlines(), start).hint
        found = proposed(hint, "gpuMemoryUtilization")
        assert found or "larger" in hint, hint
        assert all(0 < value < failed for value in found), hint
        if found and name in {"reserve", "allocate", "buffer", "compile", "CUDA"}:
            lacking = round(needs, 2) - round(free, 2)
            assert found[0] <= failed - lacking / start.plan.memory.usable_gib + 1e-6, hint
        assert all(value <= 256 for value in proposed(hint, "maxNumSeqs"))
        assert (
            "The planner recommends" not in hint
            or start.plan.memory.headroom_gib < start.plan.memory.outside_enough_gib
        )

    @settings(max_examples=examples(test=20, part=100, night=400), deadline=None)
    @given(UTILIZATIONS, SIZES, UTILIZATIONS)
    def test_less_than_what_vllm_found_in_use_by_others(self, share, sizes, planned):
        free, needs = sizes
        line = f"Free memory on device cuda:0 ({free:.2f}/22.05 GiB) on startup is less than desired GPU memory utilization ({share}, {needs:.2f} GiB)."
        hint = cause_of([line], start_of("l4-12b-qat", gpu_memory_utilization=planned)).hint
        assert all(value < share for value in proposed(hint, "gpuMemoryUtilization")), hint

    @pytest.mark.parametrize("name", TOO_SMALL)
    @settings(max_examples=examples(test=15, part=60, night=400), deadline=None)
    @given(UTILIZATIONS, SIZES, st.sampled_from(("l4-12b-qat", "tpu-v6e1")))
    def test_more_memory_for_the_budget_only_where_it_suffices_and_is_allowed(self, name, failed, sizes, stack):
        start = start_of(stack, gpu_memory_utilization=failed)
        hint = cause_of([TOO_SMALL[name].format(f"{sizes[1]:.2f}", f"{sizes[0]:.2f}")], start).hint
        most = max(proposed(hint, "up"), default=0)
        for value in proposed(hint, "gpuMemoryUtilization"):
            assert failed < value <= most < 1, hint
        assert all(value < 16384 for value in proposed(hint, "maxModelLen"))


@pytest.mark.parametrize(("stack", "most"), [("tpu-v6e1", 0.88), ("tpu-v6e4-31b", 0.88)])
def test_the_log_goes_before_the_plan_that_it_disproves(stack, most):
    """vllm-project/tpu-inference#3408: the plan leaves 3.12 GiB and thought it enough."""
    lines = [
        "RESOURCE_EXHAUSTED: RuntimeProgramAllocationFailure:",
        "Error loading program 'jit__forward': Attempting to allocate 1.13G. That was not possible. There are 528.72M free.",
    ]
    hint = cause_of(lines, start_of(stack, gpu_memory_utilization=0.9)).hint
    assert hint == (
        "A compiled program did not fit on the chip. It needs 1.13GB. 528.72MB is free. gemma-serving:vllm.gpuMemoryUtilization 0.9 leaves 3.12 GiB "
        f"outside the budget, which is too little. Set gemma-serving:vllm.gpuMemoryUtilization to {most} or less."
    )


@pytest.mark.parametrize(
    ("version", "container", "says"),
    [
        (None, "confined", "Set gemma-serving:tpu.container: privileged."),
        (
            "tpu-ubuntu2204-base",
            "confined",
            "Remove gemma-serving:tpu.runtimeVersion (tpu-ubuntu2204-base) unless it is Google's default",
        ),
        (None, "privileged", "`gemma teardown tpu-v6e1`, then `gemma up tpu-v6e1` for another TPU VM"),
    ],
)
def test_a_chip_that_is_not_found_is_not_explained_by_a_setting_that_is_set(version, container, says):
    """pytorch/xla#9753: a v6e with the runtime version of older types has no driver for its chips."""
    start = start_of("tpu-v6e1")
    tpu = replace(start.settings.tpu, runtime_version=version, container=container)
    start = replace(start, settings=replace(start.settings, tpu=tpu))
    assert says in cause_of(["RuntimeError: Failed to get global TPU topology."], start).hint
