"""The tables of packages in docs/architecture.md agree with the lines and imports of the code."""

import re

from authors.house import PAGE, ROOT, Room, differences, rooms_of, rows_of


def test_the_page_is_the_house():
    assert list(differences(rooms_of(ROOT), rows_of((ROOT / PAGE).read_text()))) == []


def test_each_difference_is_named():
    house = {
        "a": Room(lines=500, knows=frozenset({"b"})),
        "b": Room(lines=10, knows=frozenset()),
        "new": Room(1, frozenset()),
    }
    page = {
        "a": Room(lines=400, knows=frozenset()),
        "b": Room(lines=9000, knows=frozenset({"a"})),
        "gone": Room(1, frozenset()),
    }
    sentences = "\n".join(differences(house, page))
    for part in (
        "no row for new/",
        "a row for gone/",
        "a/ has 500 lines, but docs/architecture.md allows 400",
        "Lower the row",
        "a/ imports b/, but",
        "allows b/ to import a/",
    ):
        assert re.search(part, sentences), part


HTTP = {
    "requests": (
        "cloud/",
        "scripts/",
    ),  # Google by google-auth's session; GitHub, a registry and one answer of a server
    "aiohttp": ("scripts/connect/proxy.py",),  # load: many answers at once, as the load tester
    "httpx2": ("cloud/hub.py", "scripts/doctor/model.py"),  # the errors of the hub's client, which makes the calls
    "urllib.request": (),  # the machine alone, which has no packages
    "http.client": (),
    "urllib3": (),
}
"""HTTP libraries, and where each may be imported in the packages that run on a user's machine."""
ROOMS = ("__main__.py", "cloud", "components", "contracts", "engine", "planning", "scripts", "stacks")


def test_each_kind_of_caller_speaks_http_in_one_way():
    files = [path for room in ROOMS for path in [ROOT / room, *(ROOT / room).rglob("*.py")] if path.is_file()]
    found = {
        (library, name)
        for path in files
        for library, allowed in HTTP.items()
        for name in [str(path.relative_to(ROOT))]
        if re.search(rf"^\s*(import|from) {re.escape(library)}\b", path.read_text(), re.MULTILINE)
        and not name.startswith(allowed)
    }
    assert found == set()
