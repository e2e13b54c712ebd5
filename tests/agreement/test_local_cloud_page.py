"""Pages of the local cloud list the modeled methods and the environment variables."""

import re
from pathlib import Path

from localcloud import environment, services

AUTHORS = Path(__file__).resolve().parents[2] / "dev" / "docs"
INTERNALS = AUTHORS / "local-cloud-internals.md"


def methods_list(cloud):
    """One item for each API, and below it each resource with its methods."""
    rows = {}
    for method_id in sorted(services.handlers(cloud)):
        resource, _, verb = method_id.rpartition(".")
        api, _, name = resource.partition(".")
        rows.setdefault(api, {}).setdefault(name, []).append(verb)
    return "\n".join(
        line
        for api, found in rows.items()
        for line in (f"- `{api}`", *(f"  - {name}: {', '.join(verbs)}" for name, verbs in found.items()))
    )


def test_the_page_lists_every_modelled_method(shared_cloud):
    wanted = methods_list(shared_cloud.cloud)
    found = re.search(
        r"<!-- methods -->\n(.*?)\n<!-- /methods -->",
        INTERNALS.read_text(),
        re.DOTALL,
    )
    assert found is not None
    assert found[1] == wanted, f"put this between the marks in {INTERNALS.name}:\n{wanted}"


def test_the_page_names_every_variable():
    text = INTERNALS.read_text()
    values = environment.variables(
        base_url="http://127.0.0.1:1",
        state=Path("/s"),
        project="p",
        speed=200,
        access_token="t",
        operator_token="t",
        credentials=Path("/c"),
        commands=Path("/b"),
        debug_providers="gcp:1",
        inherited={},
    )
    missing = [name for name in values if name not in text and not name.startswith("CLOUDSDK_")]
    assert missing == []
    assert all(f"`{name.lower()}`" in text for name in environment.API_OVERRIDES)
