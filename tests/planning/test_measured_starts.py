"""A plan says how many measured starts its time of a start comes from."""

from collections import Counter, defaultdict

import pytest

from gemma_serving.planning.data.checkpoints import CHECKPOINTS, find_checkpoint
from gemma_serving.planning.machine.hardware import ACCELERATORS
from gemma_serving.planning.speed.measured_starts import MEASURED_STARTS, behind_the_start, card_of
from tests.planning.corpus.measured import STARTS, WHOLE_STARTS, load


def starts_of_the_corpus() -> dict[str, tuple[int, int]]:
    """Return by card the boots with a time of a whole start, and those with times of parts alone."""
    found = {"whole": Counter[str](), "parts": Counter[str]()}
    for boot in load().boots:
        device = boot.deployment.facts.device
        card = device.name.rpartition(" x ")[2] if device else ACCELERATORS[boot.deployment.facts.accelerator].family
        timed = {figure.key for figure in boot.figures} & {*STARTS}
        if timed:
            found["whole" if timed & {*WHOLE_STARTS} else "parts"][card] += 1
    return {card: (found["whole"][card], found["parts"][card]) for card in {*found["whole"], *found["parts"]}}


def test_a_checkpoint_names_the_cards_on_which_public_logs_show_it_running():
    found = defaultdict[str, set[str]](set)
    for boot in load().boots:
        asked = boot.deployment
        served = find_checkpoint(asked.settings.model)
        is_as_published = asked.facts.model_spec is None and not asked.settings.quantization and not asked.facts.device
        if boot.outcome == "runs" and is_as_published and served is not None and served.id in CHECKPOINTS:
            found[served.id].add(card_of(asked.facts.accelerator))
    assert {name: {*one.runs_on} for name, one in CHECKPOINTS.items() if one.runs_on} == found


def test_a_plan_counts_the_measured_starts_of_its_card():
    assert {card: (row.whole, row.parts) for card, row in MEASURED_STARTS.items()} == starts_of_the_corpus()


@pytest.mark.parametrize(
    ("accelerator", "words"),
    [
        ("v6e-4", "behind this time: 19 whole starts measured on v6e, and loading or compilation of 2 starts"),
        ("L4x2", "behind this time: 1 whole start measured on L4, and loading or compilation of 2 starts"),
        ("H200", "no whole start was measured on H200, only loading or compilation of 1 start"),
        ("2 x RTX 3090", "no whole start was measured on RTX 3090, only loading or compilation of 1 start"),
        ("RTX PRO 6000", "no start was measured on RTX PRO 6000: this time rests on other devices alone"),
        ("this device", "no start was measured on this device: this time rests on other devices alone"),
    ],
)
def test_a_plan_says_how_many_measured_starts_stand_behind_its_start(accelerator: str, words: str):
    assert behind_the_start(accelerator) == words
