"""Known faults against every boot of the corpus, and a law: a plan names a record if and only if the deployment has what fails."""

import itertools
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec import Struct

from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.data.checkpoints import CHECKPOINTS
from gemma_serving.planning.data.images import DEFAULT_IMAGES, IMAGES
from gemma_serving.planning.machine.hardware import ACCELERATORS
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.model.catalog import spec_of
from gemma_serving.planning.model.support import is_between, kind_of_model, support_rows
from gemma_serving.planning.question.records import CRASHES, Crash, severity_of
from gemma_serving.planning.rules.findings import RULES, detected_findings
from gemma_serving.planning.settings.image import image_of_version
from gemma_serving.planning.settings.question import NO_TPU, Question
from gemma_serving.planning.settings.vllm_args import VllmOptions
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed.prefill import cached_tokens
from tests.laws import examples
from tests.planning.corpus.measured import Boot, load, subject_of
from tests.records import replace

BOOTS = load().boots
RAN = [boot for boot in BOOTS if not boot.died]
BASE = "google/gemma-4-12B-it-assistant"
DENSE, UNIFIED, EXPERTS = (f"google/gemma-4-{size}-it" for size in ("31B", "12B", "26B-A4B"))
BLOCKS, ROWS = (f"RedHatAI/gemma-4-31B-it-FP8-{kind}" for kind in ("block", "Dynamic"))
SPECULATOR = "RedHatAI/gemma-4-31B-it-speculator.eagle3"
DRAFTERS = sorted(
    {f"{DENSE}-assistant", SPECULATOR, *(name for row in CRASHES.values() for name in row.models + row.sisters)}
)
DIGESTS = ("", *(digest for row in CRASHES.values() for digest in row.images))
RELEASES = [
    *(
        "0.18.1",
        "0.19.0",
        "0.19.1",
        "0.20.0",
        "0.20.2",
        "0.22.1.dev1",
        "0.22.1",
        "0.23.0",
        "0.24.0",
        "0.25.0",
        "0.25.1",
        "0.26.0",
    ),
    *("0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0"),
]
"""Oldest first, with every bound of the rows."""
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "LoRA adapters": {"lora_adapters": {"sql": "someone/sql"}},
    "replicas": {"data_parallel_size": 2},
    "a KV cache with a scale per head": {"kv_cache_dtype": "int8_per_token_head"},
    "the tool parser gemma4": {"enable_auto_tool_choice": True, "tool_call_parser": "gemma4"},
    "the reasoning parser gemma4": {"reasoning_parser": "gemma4"},
}
OFF: Final[Mapping[str, Mapping[str, Any]]] = {
    "a prefix cache": {"enable_prefix_caching": False},
    "the tool parser gemma4": {"enable_auto_tool_choice": False, "tool_call_parser": None},
    "the reasoning parser gemma4": {"reasoning_parser": "deepseek_r1"},
}
"""Options without a part that is on by default."""
SHARED = Workload(input_tokens=2000, prefix_share=0.9)
FLAGS = ("--enable-expert-parallel", "--enable-tower-connector-lora")
SWITCHES = ("a draft model", "CUDA graphs", "a compile cache", "fp8 while loading", "a prefix cache", *OPTIONS, *FLAGS)
"""Parts that settings turn on."""


class Drawn(Struct, frozen=True, kw_only=True):
    """A deployment by its card, its release and the parts that are turned on."""

    accelerator: str
    release: str
    model: str
    drafter: str
    digest: str
    on: frozenset[str]

    @property
    def set_on(self) -> frozenset[str]:
        """The parts that can be turned on: a checkpoint in fp8 is not converted, and a TPU has no KV cache with a scale per head."""
        kept = self.on - {"fp8 while loading"} if self.model in {BLOCKS, ROWS} else self.on
        return kept - {"a KV cache with a scale per head"} if ACCELERATORS[self.accelerator].is_tpu else kept

    def parts(self) -> Iterator[str]:
        """Yield every part that the deployment has, without the planner."""
        yield from ("Gemma 4", *self.set_on)
        if self.model in {BLOCKS, ROWS}:
            yield "a checkpoint in fp8"
        if "a draft model" in self.set_on and self.drafter == SPECULATOR:
            yield "a speculator"
        if self.model == BLOCKS:
            yield "fp8 in blocks"
        if self.model == EXPERTS:
            yield "experts"
        if ACCELERATORS[self.accelerator].is_tpu:
            yield from ("a TPU", "the PyTorch path" if self.model == UNIFIED else "the JAX path")
        else:
            moved = "0.29.0" if self.model == EXPERTS else "0.25.0"
            yield from ["a GPU", *["the first model runner"] * (not self.release or self.is_in("", moved))]
            yield from ["the second model runner"] * (not self.release or self.is_in(moved, ""))

    def is_in(self, first: str, before: str) -> bool:
        """Return whether the release is known and within bounds."""
        return (
            self.release in RELEASES[RELEASES.index(first or RELEASES[0]) : RELEASES.index(before) if before else None]
        )

    def severity(self, crash: Crash) -> str | None:
        """Return what a plan makes of a record, without the planner."""
        is_image = self.digest in crash.images
        if not (is_image or crash.releases == (("", ""),) or any(self.is_in(*bounds) for bounds in crash.releases)):
            return None
        if not {*crash.needs} <= {*self.parts()} or (
            crash.cards and ACCELERATORS[self.accelerator].family not in crash.cards
        ):
            return None
        if crash.models + crash.sisters and self.drafter not in crash.models + crash.sisters:
            return None
        if crash.asked:
            default = IMAGES[DEFAULT_IMAGES["tpu" if ACCELERATORS[self.accelerator].is_tpu else "cloud-run"]].version
            return None if self.release == default else "info"
        dies = crash.dies and self.drafter not in crash.sisters and (is_image or not crash.images)
        return "block" if dies else "warn"

    def question(self) -> Question:
        """Return the deployment, whose workload has a shared prefix."""
        off = {key: value for part in OFF.keys() - self.on for key, value in OFF[part].items()}
        options = off | {key: value for part in self.set_on for key, value in OPTIONS.get(part, {}).items()}
        if "a draft model" in self.set_on:
            options["speculative_config"] = {"model": self.drafter, "num_speculative_tokens": 3}
        flags = [flag for flag in FLAGS if flag in self.set_on]
        return Question().changed(
            model=self.model,
            accelerator=self.accelerator,
            quantization="fp8" if "fp8 while loading" in self.set_on else None,
            image=replace(image_of_version(self.release), digest=self.digest),
            vllm=VllmOptions(enforce_eager="CUDA graphs" not in self.set_on, extra_args=flags, **options),
            tpu=replace(NO_TPU, compile_cache="bucket" if "a compile cache" in self.set_on else "off"),
        )

    def message(self) -> str:
        """Return what the planner says."""
        found = RULES["REL01"].result(examine(self.question()))
        return f"{found.severity}: {found.message} {found.advice}" if found else ""


def drawn(chance: random.Random) -> Drawn:
    return Drawn(
        accelerator=chance.choice([*ACCELERATORS]),
        release=chance.choice(["", *RELEASES]),
        model=chance.choice((DENSE, UNIFIED, EXPERTS, BLOCKS, ROWS)),
        drafter=chance.choice(DRAFTERS),
        digest=chance.choice(DIGESTS),
        on=frozenset(part for part in SWITCHES if chance.random() < 0.5),
    )


def around(crash: Crash, chance: random.Random) -> Iterator[Drawn]:
    """Yield a deployment that the record is about, then the same with one other value for each of its fields."""
    one = next(one for _ in range(100_000) if (one := drawn(chance)).severity(crash))
    yield one
    for name in Drawn.__struct_fields__:
        other = getattr(drawn(chance), name)
        yield replace(one, **{name: other if name != "on" else one.on ^ {chance.choice(SWITCHES)}})
    for part in sorted(one.on.intersection(crash.needs)):
        yield replace(one, on=one.on - {part})


@pytest.mark.law
@pytest.mark.parametrize("crash", CRASHES.values(), ids=lambda crash: crash.id)
def test_a_plan_names_a_record_if_and_only_if_the_deployment_has_what_fails(crash: Crash):
    chance = random.Random(crash.id)  # noqa: S311 - draws cases, not secrets
    for one in (one for _ in range(examples(test=6, part=30, night=200)) for one in around(crash, chance)):
        severities = {row.id: one.severity(row) for row in CRASHES.values()}
        worst = next((one for one in ("block", "warn") if one in severities.values()), "info")
        said = one.message()
        assert said.startswith(worst if any(severities.values()) else ""), one
        for row in CRASHES.values():
            clause = row.asked or (row.dies if worst == "block" else row.likely)
            assert (f"{clause} ({row.source})" in said) is (severities[row.id] in (worst, "info")), (row.id, one)
        pairs = any(row.kind == "pair" and severities[row.id] for row in CRASHES.values())
        cached = cached_tokens(resolve(one.question()), SHARED)
        assert (cached == 0) is ("a prefix cache" not in one.on or pairs), one
        if advised := re.search(r"Or set image to a release from (\S+) by its digest", said):
            later = chance.choice(RELEASES[RELEASES.index(advised[1]) :])
            assert re.fullmatch(r"(?:info: .*)?", replace(one, release=later, digest="").message()), (later, one)


@pytest.mark.parametrize("boot", RAN, ids=lambda boot: boot.id)
def test_nothing_that_ran_is_blocked(boot: Boot):
    assert detected_findings(subject_of(boot)).get("REL01") != "block"


def test_the_corpus_has_boots_that_a_wider_row_would_block():
    """With 12B's draft model before 0.25.0, and with Gemma 4 on 0.27: both ran."""
    drafted = [boot for boot in RAN if (boot.deployment.settings.vllm.speculative_config or {}).get("model") == BASE]
    assert [boot.deployment.image_version for boot in drafted] == ["0.22.0"]
    assert {detected_findings(subject_of(boot)).get("REL01") for boot in RAN} >= {"warn", None}


def test_every_row_can_be_found_read_and_recognized():
    for crash in CRASHES.values():
        assert crash.dies or crash.likely or crash.asked, crash.id
        assert bool(crash.likely) is bool(crash.sisters or crash.images or not (crash.dies or crash.asked)), crash.id
        repository, _, number = crash.id.partition("#")
        # What the project found itself, by building upstream's server, stands on a page of its own.
        of_thread = rf"https://github\.com/{repository}/(issues|pull)/{number}"
        assert re.fullmatch(of_thread if number else r"dev/docs/compiled\.md", crash.source)
        assert re.compile(crash.pattern).groups == 0
        assert bool(crash.pattern) is bool(crash.line)
        assert crash.pattern or not crash.dies
        assert not crash.dies or crash.kind == "start"
        assert crash.basis
        assert not crash.way_out.startswith(" ")
        defaults = [IMAGES[name].version for name in DEFAULT_IMAGES.values()]
        affected = any(is_between(version, *bounds) for version in defaults for bounds in crash.releases)
        assert not (affected and "Remove gemma-serving:image" in crash.way_out), crash.id


STORED = {
    (one.scheme, kind_of_model(spec_of(one.id)), spec_of(one.id).block_width): one.id
    for one in CHECKPOINTS.values()
    if not one.is_drafter
}
"""A checkpoint of each stored precision and kind of model."""
SCHEMES = {scheme for scheme, _, _ in STORED}
ON_GPU = ("L4", "H100", "RTX PRO 6000")
PARTS = {"fp8 while loading": ("fp8", 0), "fp8 in blocks": ("fp8", 128), "a checkpoint in fp8": ("fp8", 0)}
"""Precision and width of blocks by the part of a record."""


def recorded_precisions() -> Iterator[tuple[str, Mapping[str, str], tuple[str, int], tuple[str, ...], str]]:
    """Yield the faults of a precision on GPUs: name, reason for the others, precision, kinds of models, release."""
    for row in support_rows():
        if row.is_gemma4 and row.answer != "yes" and row.last and row.scheme in SCHEMES and "ada" in row.devices:
            yield row.note, row.others, (row.scheme, 0), row.models, row.last
    for crash in CRASHES.values():
        for part in set(PARTS).intersection(crash.needs):
            for first, _ in crash.releases:
                yield crash.id, crash.others, PARTS[part], ("dense", "experts"), first


def test_each_other_precision_of_a_recorded_one_has_a_row_too_or_a_reason(subtests: pytest.Subtests):
    for name, others, recorded, kinds, release in recorded_precisions():
        for ((scheme, kind, width), sister), accelerator in itertools.product(STORED.items(), ON_GPU):
            if kind not in kinds or scheme == "bf16" or (scheme, width) == recorded:
                continue
            question = Question().changed(model=sister, accelerator=accelerator, image=image_of_version(release))
            subject = examine(question)
            has_row = detected_findings(subject).get("FIT06") in {"warn", "block"}
            is_same = name in CRASHES and severity_of(CRASHES[name], subject.resolved)
            with subtests.test(f"{name} {sister} {accelerator} {release}"):
                assert has_row or is_same or scheme.partition("-")[0] in others


def test_no_way_out_is_a_precision_which_can_have_faults_of_its_own():
    assert [crash.id for crash in CRASHES.values() if re.search("fp8|nvfp4|w4a16", crash.way_out)] == []


def test_the_release_of_each_default_image_has_been_searched():
    page = (Path(__file__).parents[2] / "docs" / "upgrade-vllm.md").read_text(encoding="utf-8")
    searched = re.search(r"^Last search of public issues .*: \d+ \w+ 20\d\d, (.*)\.$", page, re.MULTILINE)
    names = set(DEFAULT_IMAGES.values())
    assert searched, "the page says when"
    assert set(searched[1].split(" and ")) == {f"`{name}` {IMAGES[name].version}" for name in names}, (
        "search the subjects below that line for the new release, add what was found to crashes.json, and change the line"
    )
