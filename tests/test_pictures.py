"""The pictures of terminals show what they are for, and nothing of the machine that made them."""

import re
from xml.dom import minidom

import pytest

from tests.pictures import FOLDER, ROOT, private_words, words_of

WORDS = {
    "up-waiting.svg": [
        r"\$ gemma up tpu-v6e1 --yes",
        r"Cost: \$1\.35/h maximum",
        r"\d+s/30m us-east5-a WAITING \(zone 1 of \d\)",
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


def test_a_page_shows_each_picture_with_a_text_for_those_who_do_not_see_it():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = dict(
        reversed(found)
        for page in pages
        for found in re.findall(r"!\[([^\]]+)\]\(\S*?([\w-]+\.svg)\)", page.read_text())
    )
    assert [name for name in WORDS if len(shown.get(name, "")) < 20] == []
