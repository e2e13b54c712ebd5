"""There is one way to open a session with Google, so that no call goes without its project for quota."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from requests.adapters import BaseAdapter

from gemma_serving.cloud import google_session
from gemma_serving.cloud.google_session import NotJsonError, sent

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


class Endless(BaseAdapter):
    """Transport whose responses have no end: a piece each `piece_s` seconds of the clock."""

    def __init__(self, clock, piece_s):
        super().__init__()
        self.clock, self.piece_s, self.read_bytes = clock, piece_s, 0

    def send(self, request, **_):
        answer = requests.Response()
        answer.status_code, answer.url, answer.raw = 200, request.url, self
        return answer

    def read(self, size):
        self.clock[0] += self.piece_s
        self.read_bytes += size
        return b" " * size

    def close(self): ...


@pytest.mark.parametrize(("piece_s", "most_bytes"), [(0, 2**26 + 2**16), (100, 2**18)])
def test_a_response_without_an_end_is_one_sentence(monkeypatch, piece_s, most_bytes):
    clock, session = [0.0], requests.Session()
    monkeypatch.setattr(google_session, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    endless = Endless(clock, piece_s)
    session.mount("https://", endless)
    said = r"^https://run\.googleapis\.com/v2/x sent [\d,]+ bytes without an end\. At most 67,108,864 bytes in 300 s are read\. Check"
    with pytest.raises(NotJsonError, match=said):
        sent(session, "GET", "https://run.googleapis.com/v2/x?key=1")
    assert endless.read_bytes <= most_bytes
