"""The sixth law: what vLLM's own configuration refuses does not fit, and what is blocked for vLLM's sake is refused by it."""

import math
from itertools import chain
from pathlib import Path

import pytest

from gemma_serving.planning.data.tables import data_file
from gemma_serving.planning.question.validators import refused_by
from gemma_serving.planning.rules.findings import detected_findings
from gemma_serving.planning.rules.validators import server_facts
from localcloud.vllm.arguments import ArgumentError, facts_of, parse
from localcloud.vllm.refusals import configuration_refusal
from tests.laws import examples
from tests.planning.configured import Row, answers, configured, contradictions
from tests.planning.test_remedies import STACKS

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "packages" / "localcloud" / "vllm" / "data" / "validators.json"


def drawn_rows(*, test: int) -> list[Row]:
    """Return the rows of this run: for each sentence of vLLM the five stacks with the fewest edits, and some of the others."""
    rows = answers().rows
    simple = sorted(rows, key=lambda row: len(row.edits))
    by_sentence = {
        number: [row for row in simple if number in row.answers.values()][:5]
        for number in range(len(answers().refusals))
    }
    others = rows[:: math.ceil(len(rows) / examples(test=test, part=len(rows), night=len(rows)))]
    return [*chain(*by_sentence.values()), *others]


@pytest.mark.law
def test_no_answer_of_vllm_contradicts_the_plan():
    found = list(contradictions(drawn_rows(test=40)))
    assert not found, f"{len(found)}: {found[:3]}"
    assert len(answers().rows) >= 4_000


def test_each_check_of_vllm_refuses_a_drawn_stack():
    """A row that no answer shows may be wrong; those about devices cannot be shown on a processor."""
    asked = " ".join(answers().refusals)
    rows = {row["name"]: row["words"] for row in data_file("validators.json")["rows"]}
    unseen = {
        name
        for name, words in rows.items()
        if not all(part.split("{")[0].split("\n")[-1].strip() in asked for part in words.split("}"))
    }
    assert unseen <= {"GPUs of a pipeline"}


def test_the_simulated_server_has_the_same_table():
    assert COPY.read_bytes() == (ROOT / "gemma_serving/planning/data/validators.json").read_bytes()


@pytest.mark.law
def test_the_simulated_server_refuses_with_the_same_sentence():
    compared = 0
    for row in drawn_rows(test=1):
        found = configured(row.stack, row.edits)
        assert found is not None
        if "ARG02" in found.blocks:  # refused before its configuration, by the parser of the image's release
            continue
        facts = server_facts(found.subject)
        sentences = [one.sentence(facts) for one in refused_by({**facts, "experts": None, "kv_heads": None})]
        try:
            given = facts_of(parse(["vllm", "serve", *found.words]))
        except (ArgumentError, SystemExit):  # refused before its configuration
            continue
        gpus = facts.get("gpus")
        said = configuration_refusal({**given, "is_tpu": gpus is None, "gpus": gpus})
        compared += bool(sentences)
        assert said in (sentences or [""]), (row.edits, said)
    assert compared


GOALS = {
    "OBS04": (
        "Pulumi.l4-12b-qat.yaml",
        {"cloudRun.minInstances": 1},
        {"alerts.dailyCost": (1.0, 900.0), "smoke.minDecodeTokPerS": (900.0, 1.0)},
    ),
    "CST03": ("Pulumi.l4-12b-qat.yaml", {"cloudRun.minInstances": 1}, {"maxUsd": (1, 900)}),
    "LEN04": ("Pulumi.l4-12b-qat.yaml", {"vllm.limitMmPerPrompt": {"image": 9}}, {"vllm.maxModelLen": (2_048, 8_192)}),
    "WRK11": (
        "Pulumi.l4-e2b-lora.yaml",
        {"vllm.lora": {"adapters": {"sql": "org/sql"}}},
        {"vllm.servedModelName": ("sql", "mine")},
    ),
}
"""Rules that compare a goal with the plan's own figure: a stack, settings, and for each key a value that the figure misses and one that it does not."""


@pytest.mark.parametrize("identifier", GOALS)
def test_a_goal_is_compared_with_the_figure_of_the_plan(identifier):
    stack, prepared, keys = GOALS[identifier]
    for key, (missed, reached) in keys.items():
        found = [configured(stack, {**prepared, key: value}) for value in (missed, reached)]
        ids = [detected_findings(one.subject) for one in found if one is not None]
        assert [identifier in one for one in ids] == [True, False], key


def test_a_reservation_is_in_the_zones():
    named = {"tpu.provisioning": "reservation", "tpu.waitTotal": None, "tpu.waitPerZone": None}
    places = {
        zone: configured(
            "Pulumi.tpu-v6e4.yaml",
            {**named, "tpu.zones": [zone], "tpu.reservation": "projects/p/locations/us-east5-a/reservations/r"},
        )
        for zone in ("us-east5-a", "us-east5-b")
    }
    assert [one is not None for one in places.values()] == [True, False]
    assert "tpu" in STACKS["Pulumi.tpu-v6e4.yaml"]
