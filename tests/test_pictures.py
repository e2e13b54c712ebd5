"""The pictures of terminals show what they are for, and nothing of the machine that made them."""

import json
import re
from xml.dom import minidom

import pytest

from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.planning.planner import plan
from gemma_serving.scripts.gemma.__main__ import main
from gemma_serving.stacks.loading import from_file, read_yaml
from gemma_serving.stacks.planned import to_deployment
from gemma_serving.stacks.program import run
from tests.pictures import FOLDER, REFUSED, ROOT, STACK, private_words, words_of

WORDS = {
    "plan-refused.svg": [r"google/gemma-4-12B-it as bf16 on L4 \(cloud-run\): out of memory", "FIT01 block", "- serve"],
    "served.svg": [
        r"\$ gemma chat tpu-v6e1 'Say hello\.'",
        r"59 tokens, 2\d\d\.\d tokens/s",
        "No leaked resources",
        r"Receipt: \.work/teardown/tpu-v6e1",
    ],
    "up-ready.svg": [r"tpu-v6e1 deployed in \d+ s", "gemma chat tpu-v6e1"],
    "status-ready.svg": [r"ACTIVE │ ready │ \dh\d\dm"],
}
WIDEST = 830
"""Pixels of a page of text: a wider picture is shown smaller, and its text is hard to read."""


def picture(name):
    return (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", WORDS)
def test_a_picture_holds_its_words(name):
    words = words_of(picture(name))
    assert [word for word in (*WORDS[name], "local cloud, simulated") if not re.search(word, words)] == []


@pytest.mark.parametrize("name", WORDS)
def test_a_picture_shows_nothing_of_a_machine(name):
    assert private_words(words_of(picture(name))) == []


@pytest.mark.parametrize("name", WORDS)
def test_a_picture_is_small_sound_and_complete_in_itself(name):
    text = picture(name)
    assert len(text.encode()) < 60_000
    assert text.startswith("<svg ")
    assert int(re.search(r' width="(\d+)"', text)[1]) <= WIDEST
    minidom.parseString(text)  # noqa: S318 - a file of ours
    assert re.search(r"@import|@font-face|href|<script|<image", text) is None


def test_every_picture_of_the_folder_is_tested():
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(WORDS)


def test_the_figures_of_the_pictures_are_those_of_the_stack(subtests, declare, monkeypatch):
    """`make pictures` writes them again."""
    path = settings_file(STACK, ROOT)
    settings = from_file(path, project="my-project")
    planned = plan(to_deployment(settings))
    values = {"gcp:project": "my-project", **read_yaml(path.read_text())["config"]}
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps(texts))
    resources = len(declare(run)[0].declared)
    run_h, price = settings.tpu.max_run_duration_s / 3600, planned.cost.usd_per_hour
    figures = {
        r"Resources: (\d+) to create": f"{resources}",
        r"\$([\d.]+)/h": f"{price:.2f}",
        r"at most \$([\d.]+) for one run": f"{price * run_h:.2f}",
        r"one run of (\S+) h": f"{run_h:g}",
        r"ready │ .* │ +([\d.]+) │": f"{price:.2f}",
        r"maxAge (\d+) h": f"{settings.max_age_s / 3600:g}",
        r"\d\d:\d\d(:\d\d\.\d+\S*)": None,  # parts of a second
    }
    words = "\n".join(words_of(picture(name)) for name in WORDS if name != "plan-refused.svg")  # of another stack
    for pattern, figure in figures.items():
        with subtests.test(pattern):
            assert set(re.findall(pattern, words)) == ({figure} if figure else set())


def test_the_refusal_is_what_the_planner_prints(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert main(REFUSED) == 2
    printed = "".join(capsys.readouterr().out.split())
    shown = "\n".join(words_of(picture("plan-refused.svg")).splitlines()[2:])
    parts = ["".join(part.split()) for part in re.split(r"\.\.\. \d+ rows \.\.\.", shown)]
    assert len(parts) == 4
    assert [part for part in parts if part not in printed] == []


def test_a_page_shows_each_picture_with_a_text_for_those_who_do_not_see_it():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = dict(
        reversed(found)
        for page in pages
        for found in re.findall(r"!\[([^\]]+)\]\(\S*?([\w-]+\.svg)\)", page.read_text())
    )
    assert [name for name in WORDS if len(shown.get(name, "")) < 20] == []
