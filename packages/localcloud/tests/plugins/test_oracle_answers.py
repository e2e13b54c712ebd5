"""Every request that the real provider was seen to send is answered.

`tests/fixtures/oracle` holds the recorded exchanges of resources; `functions.json` the requests of data sources.
"""

from localcloud.environment import REAL_PLUGIN_ENDPOINTS
from localcloud.rest.discovery import has_modelled_form
from localcloud.server.dispatch import _route, _split
from localcloud.services import handlers
from localcloud.tests.plugins.harness import oracle

FUNCTIONS = oracle("functions.json")


def requests():
    for name in ("create.jsonl", "update.jsonl", "delete.jsonl"):
        yield from ((each["request"]["method"], each["request"]["path"]) for each in oracle(name))
    for recorded in FUNCTIONS["functions"].values():
        yield from (request.split() for request in recorded)


def test_every_recorded_url_is_answered(shared_cloud):
    known, missing = handlers(shared_cloud.cloud), []
    for verb, path in sorted(set(map(tuple, requests()))):
        api, below, media = _split(path)
        document, method, _ = _route(verb, api, below, media)
        if method.id not in known or not has_modelled_form(document, method):
            missing.append(f"{verb} {path}")
    assert missing == []


def test_every_recorded_api_has_its_endpoint_for_the_real_provider():
    paths = set(REAL_PLUGIN_ENDPOINTS.values())
    apis = {path.lstrip("/").partition("/")[0] for _, path in requests()} - {"upload"}
    assert [api for api in sorted(apis) if not any(path.startswith(f"{api}/") for path in paths)] == []
