"""Requests of a web page or another user of the machine are rejected on every route."""

import http.client
import json
import urllib.parse
from dataclasses import dataclass

import pytest

from localcloud import services
from localcloud.tests.rest.test_no_inner_errors import every_method, path_of

P = "/projects/local-project"
ZONE = f"{P}/locations/us-east5-a"
SECRETS = f"/secretmanager/v1{P}/secrets"
MADE_UP = (
    "ya29.local.eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9."
    "eyJzdWIiOiJsb2NhbC1vcGVyYXRvckBsb2NhbC1wcm9qZWN0LmlhbS5nc2VydmljZWFjY291bnQuY29tIiwiZXhwIjo0MDcwOTA4ODAwLCJhdWQiOiJ5YTI5LmxvY2FsLiJ9"
    ".c2lnbmF0dXJl"
)
"""It names the operator and is valid until 2099, but no cloud has signed it."""
MEDIA = [
    ("POST", "/upload/storage/v1/b/thing/o?uploadType=media&name=a"),
    ("POST", "/storage/upload/storage/v1/b/thing/o?uploadType=multipart"),
    ("GET", "/download/storage/v1/b/thing/o/thing?alt=media"),
]
_SPELT_OUT = {
    "(securityPolicies/)?[0-9]{0,20}": "1",
    "(firewallPolicies/)?[0-9]{0,20}": "1",
    "([a-z](?:[-a-z0-9]{0,61}[a-z0-9])?|[1-9][0-9]{0,19})": "thing",
    "/us-east4-a/thing/reservationSubBlocks/": "/us-east4-a/reservations/a/reservationBlocks/b/reservationSubBlocks/",
}
"""Parts of paths whose pattern in the document is not a list of names."""
OPEN_ROUTES = {
    "/admin/": "says that this is a local cloud",
    "/oauth2/token": "takes a signed assertion, and answers 400 without one",
    "/registry/auth.docker.io/token": "returns the same word to every client, as Docker Hub does",
    "/hub/": "shows made files of public repositories, as the Hugging Face hub does",
}
"""Routes, including those below `/hub/`, that need no token, with their effect. They change nothing and reveal no secret. They reject web pages too."""
_OWN_PARTS = {"{host}": "us-east4-docker.pkg.dev", "{name}": "local-project/hub/a", "{reference}": "1"}


@dataclass(frozen=True)
class Intruder:
    """A way to send a request without being a client of this machine's user."""

    headers: dict
    query: str = ""
    refusals: tuple = (401, 403)


def intruders(cloud):
    identity = {"Authorization": f"Bearer {cloud.token}"}
    return {
        "a foreign host": Intruder({**identity, "Host": "rebound.evil.example"}),
        "a foreign host with the port": Intruder({**identity, "Host": "rebound.evil.example:" + port(cloud)}),
        "a web page": Intruder({**identity, "Origin": "https://evil.example"}),
        "a web page without an origin": Intruder({**identity, "Sec-Fetch-Site": "cross-site"}),
        "no token": Intruder({}),
        "a made-up token": Intruder({"Authorization": f"Bearer {MADE_UP}"}),
        "a token in the query": Intruder({}, query=f"access_token={cloud.token}"),
    }


def port(cloud):
    return str(urllib.parse.urlsplit(cloud.base_url).port)


def routes(cloud):
    """Every route of the local cloud as verb and path: Google's methods, Cloud Storage's contents, the local cloud's own."""
    zone = {"tpu": "us-east5-a"}
    google = [
        (method.verb, spelt_out(path_of(api, document, method, zone.get(api, "us-east4")), _SPELT_OUT))
        for api, document, method in every_method()
    ]
    return [*google, *MEDIA, *((verb, spelt_out(path, _OWN_PARTS)) for verb, path in cloud.routes)]


def modelled(cloud):
    """The routes that do something: the other methods of Google are answered with 501."""
    known = services.handlers(cloud.cloud)
    return [
        (method.verb, path_of(api, document, method, "us-east5-a" if api == "tpu" else "us-east4"))
        for api, document, method in every_method()
        if method.id in known
    ]


def is_open(path):
    return path in OPEN_ROUTES or path.startswith("/hub/")


def spelt_out(path, parts):
    for pattern, name in parts.items():
        path = path.replace(pattern, name)
    return path


class Connection:
    """A connection that stays open, without a library's own ideas of headers."""

    def __init__(self, cloud):
        self.http = http.client.HTTPConnection("127.0.0.1", int(port(cloud)), timeout=30)

    def send(self, verb, path, headers, body="{}", kind="application/json"):
        self.http.putrequest(verb, path, skip_host="Host" in headers, skip_accept_encoding=True)
        data = b"" if verb in {"GET", "HEAD", "DELETE"} else body.encode()
        given = {**headers, "Content-Length": str(len(data)), **({"Content-Type": kind} if data else {})}
        for name, value in given.items():
            self.http.putheader(name, value)
        self.http.endheaders(data)
        response = self.http.getresponse()
        return response.status, response.read()


WAYS = (
    "no token",
    "a web page",
    "a foreign host",
    "a foreign host with the port",
    "a web page without an origin",
    "a made-up token",
    "a token in the query",
)


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        *((kind, 20) for kind in WAYS),
        *(pytest.param(kind, 1, marks=pytest.mark.long) for kind in WAYS),
    ],
)
def test_no_route_answers_an_intruder(shared_cloud, kind, step):
    intruder, connection = intruders(shared_cloud)[kind], Connection(shared_cloud)
    by_token = "token" in kind
    known = [(verb, path) for verb, path in routes(shared_cloud) if not (by_token and is_open(path))]
    assert len(known) > 2500
    own = [route for route in known if route[1].startswith(("/admin/", "/registry/"))]
    walked = {*known[::step], *own, *MEDIA, *modelled(shared_cloud)}
    answered = []
    for verb, path in walked:
        query = f"{'&' if '?' in path else '?'}{intruder.query}" if intruder.query else ""
        status, _ = connection.send(verb, path + query, intruder.headers)
        if status not in intruder.refusals:
            answered.append((verb, path, status))
    assert answered == []


def test_the_same_routes_answer_the_operator(own_cloud):
    """The walk above proves nothing if the routes reject every caller."""
    connection = Connection(own_cloud)
    headers = {"Authorization": f"Bearer {own_cloud.token}"}
    own = [route for route in routes(own_cloud) if route[1].startswith(("/admin/", "/registry/"))]
    assert len(own) >= 18
    refused = [route for route in [*modelled(own_cloud), *MEDIA, *own] if connection.send(*route, headers)[0] == 401]
    assert refused == []


def test_dns_rebinding_reads_no_secret(own_client, own_cloud):
    """A page's own host name leads to 127.0.0.1: for the browser, the answers are then the page's own."""
    own_client.ok("POST", SECRETS, {"replication": {"automatic": {}}}, secretId="hub")
    own_client.ok("POST", f"{SECRETS}/hub:addVersion", {"payload": {"data": "Y2FuYXJ5"}})
    connection, path = Connection(own_cloud), f"{SECRETS}/hub/versions/1:access"
    for query, token in [("?access_token=x", None), (f"?access_token={own_cloud.token}", None), ("", own_cloud.token)]:
        identity = {"Authorization": f"Bearer {token}"} if token else {}
        headers = {**identity, "Host": f"rebound.evil.example:{port(own_cloud)}"}
        status, answer = connection.send("GET", path + query, headers)
        assert (status, b"Y2FuYXJ5" in answer) == (403, False)
    for host in ("127.0.0.1", "localhost", "[::1]", "LOCALHOST"):
        headers = {"Authorization": f"Bearer {own_cloud.token}", "Host": f"{host}:{port(own_cloud)}"}
        assert b"Y2FuYXJ5" in connection.send("GET", path, headers)[1]
    for host in ("127.0.0.1", "localhost:1", "127.0.0.1.evil.example:" + port(own_cloud), ""):
        headers = {"Authorization": f"Bearer {own_cloud.token}", "Host": host}
        assert connection.send("GET", path, headers)[0] == 403


class TestTokens:
    def ask(self, cloud, token):
        return Connection(cloud).send("GET", SECRETS, {"Authorization": f"Bearer {token}"})

    def test_a_token_of_nobody_is_refused_in_the_words_of_google(self, shared_cloud):
        for token in ("x", MADE_UP, "ya29.local.", "ya29.local.x.\xe9", shared_cloud.token + "A"):
            status, answer = self.ask(shared_cloud, token)
            assert status == 401
            error = json.loads(answer)["error"]
            assert error["message"].startswith("Request had invalid authentication credentials. Expected OAuth 2")
            assert error["status"] == "UNAUTHENTICATED"

    def test_a_token_that_has_expired_is_refused(self, shared_cloud):
        tokens, operator = shared_cloud.cloud.tokens, shared_cloud.cloud.operator
        assert self.ask(shared_cloud, tokens.issue_access_token(operator, lifetime_s=60))[0] == 200
        assert self.ask(shared_cloud, tokens.issue_access_token(operator, lifetime_s=-1))[0] == 401

    def test_cloud_storage_has_words_of_its_own(self, shared_cloud):
        headers = {"Authorization": "Bearer x"}
        status, answer = Connection(shared_cloud).send("GET", "/storage/storage/v1/b?project=local-project", headers)
        assert (status, json.loads(answer)["error"]["message"]) == (401, "Invalid Credentials")
        assert json.loads(answer)["error"]["errors"][0]["reason"] == "authError"

    def test_a_token_in_the_query_is_refused_beside_a_valid_one(self, shared_cloud):
        headers = {"Authorization": f"Bearer {shared_cloud.token}"}
        assert Connection(shared_cloud).send("GET", f"{SECRETS}?access_token=x", headers)[0] == 401
        assert Connection(shared_cloud).send("GET", f"{SECRETS}?oauth_token=x", headers)[0] == 401

    def test_the_token_of_another_account_opens_no_admin_route(self, shared_cloud):
        token = shared_cloud.cloud.tokens.issue_access_token("vm@local-project.iam.gserviceaccount.com")
        status, answer = Connection(shared_cloud).send("POST", "/admin/tokens", {"Authorization": f"Bearer {token}"})
        assert status == 403
        assert "only accepts the operator's token" in json.loads(answer)["error"]["message"]

    def test_an_assertion_of_nobody_gets_no_token(self, shared_cloud):
        form = "grant_type=urn:ietf:params:oauth:grant-type:jwt-bearer&assertion=e30.e30.x"
        kind = "application/x-www-form-urlencoded"
        connection = Connection(shared_cloud)
        assert connection.send("POST", "/oauth2/token", {}, form, kind)[0] == 400
        for header in ({"Origin": "null"}, {"Host": "evil.example"}, {"Sec-Fetch-Site": "same-site"}):
            assert connection.send("POST", "/oauth2/token", header, form, kind)[0] == 403


def test_an_admin_body_that_is_no_json_is_refused(own_cloud):
    headers = {"Authorization": f"Bearer {own_cloud.token}"}
    status, answer = Connection(own_cloud).send("POST", "/admin/advance", headers, '{"seconds": 5}', kind="text/plain")
    assert (status, "expected application/json" in json.loads(answer)["error"]["message"]) == (415, True)
    assert Connection(own_cloud).send("POST", "/admin/advance", headers, '{"seconds": 5}')[0] == 200
