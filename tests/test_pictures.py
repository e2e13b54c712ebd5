"""The pictures of terminals show what they are for, and nothing of the machine that made them."""

import re
from xml.dom import minidom

import pytest

from tests.pictures import COLOURS, FOLDER, ROOT, Run, draw, private_words, words_of

WORDS = {
    "up-waiting.svg": [
        r"\$ gemma up tpu-v6e1 --yes",
        r"Cost: \$1\.35/h maximum",
        r"\d+s/30m us-east5-a WAITING \(zone 1 of \d\)",
    ],
    "up-ready.svg": [r"tpu-v6e1 deployed in \d+ s", "gemma chat tpu-v6e1"],
    "status-waiting.svg": ["WAITING_FOR_RESOURCES since", r"next +gemma status .*--watch"],
    "status-ready.svg": [r"ACTIVE │ ready │ \dh\d\dm", r"planned \d+ tok/s"],
    "chat.svg": [r"\$ gemma chat tpu-v6e1 .Say hello", "This is a simulated answer"],
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


def test_a_page_shows_each_picture_with_a_text_for_those_who_do_not_see_it():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = dict(
        reversed(found)
        for page in pages
        for found in re.findall(r"!\[([^\]]+)\]\(\S*?([\w-]+\.svg)\)", page.read_text())
    )
    assert [name for name in WORDS if len(shown.get(name, "")) < 20] == []


@pytest.mark.parametrize("planted", ["of ann@there (process 7", "in /home/ann", '"/tmp/run"', "/srv"])
def test_words_of_a_machine_are_found_in_a_drawing(planted):
    drawn = draw("make", [[Run(column=4, data="fine & <well>")], [Run(column=2, data=planted, fg="red")]])
    assert "    fine & <well>" in words_of(drawn)
    assert private_words(words_of(drawn)) != []


def test_every_colour_is_readable_on_the_dark_ground():
    def light(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    ground = re.search(r'fill="(#\w{6})" stroke', draw("make", []))
    assert ground
    ratios = {name: (light(colour) + 0.05) / (light(ground[1]) + 0.05) for name, colour in COLOURS.items()}
    assert {name for name, ratio in ratios.items() if ratio < 4.5} == set()
