"""There is one way to open a session with Google, so that no call goes without its project for quota."""

import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from gemma_serving.cloud import google_session
from gemma_serving.cloud.google_session import NotJsonError

ROOT = Path(__file__).parents[2]
ROOMS = (
    "authors",
    "stacks",
    "scripts",
    "components",
    "gemma_serving",
)
OPENS = re.compile(r"AuthorizedSession\(|google\.auth\.default\(|AuthorizedHttp|Credentials\(token=")
ALLOWED = {
    "gemma_serving/cloud/google_session.py": "the one that opens sessions",
    "scripts/stack/access.py": "exchanges a federated identity for an ID token: the call is a service account's about itself",
}
CONNECTS = re.compile(r"(?<!def )\bconnect\((?P<given>[^)]*)\)")
WITHOUT_A_PROJECT = {
    "scripts/doctor/checkup.py": "a service account that may not use the project yet",
}


def sources():
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text()


def test_nothing_else_opens_a_session():
    found = {path for path, text in sources() if OPENS.search(text)}
    assert found == set(ALLOWED)


def test_every_session_of_a_command_names_its_project():
    found = set()
    for path, text in sources():
        if "google_api" in text:
            for call in CONNECTS.finditer(text):
                first = call["given"].partition(",")[0]
                if not first or "=" in first or first.startswith("*(["):
                    found.add(path)
    assert found == set(WITHOUT_A_PROJECT)


@pytest.mark.parametrize(("piece_s", "pieces"), [(0, 1025), (100, 4)])
def test_a_response_without_an_end_is_one_sentence(piece_s, pieces):
    read = []

    def endless(size):
        while True:
            read.append(size)
            yield b" " * size

    answer = Mock(url="https://run.googleapis.com/v2/x?key=1", iter_content=endless)
    said = r"^https://run\.googleapis\.com/v2/x sent [\d,]+ bytes without an end\. At most 64 MiB in 300 s are read\. Check"
    with pytest.raises(NotJsonError, match=said):
        google_session._body_of(answer, lambda: len(read) * piece_s)
    assert len(read) == pieces
