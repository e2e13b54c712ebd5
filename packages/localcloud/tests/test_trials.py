"""`localcloud try` against a local cloud in place of Google: verdicts, written answers, deletions, rejections."""

import argparse
import io
import json
import re
import subprocess
import sys

import pytest
import requests

from localcloud import cli
from localcloud.environment import API_OVERRIDES
from localcloud.ledger.entries import CriticalAssumption, Ledger, load
from localcloud.server.app import DEFAULT_SPEED
from localcloud.tests import idle_cloud
from localcloud.tests.conftest import SCENARIO, Client
from localcloud.trials import command
from localcloud.trials.attempt import Trial
from localcloud.trials.command import TryRefusedError, try_entries
from localcloud.trials.evening import APIS, TRIALS
from localcloud.trials.judging import Expected, judge
from localcloud.trials.resources import KINDS
from localcloud.trials.running import Runner
from localcloud.trials.sending import ApiReply
from localcloud.world.scenario import BUILT_IN, OperationDurations

PROJECT = "local-project"
SECRETS = f"/secretmanager/v1/projects/{PROJECT}/secrets"
API = f"https://secretmanager.googleapis.com/v1/projects/{PROJECT}/secrets"
SECRET = {"replication": {"automatic": {}}}
SECRET_OF_A_RUN = {**SECRET, "labels": {"localcloud-try": "0a0a0a"}}
REFUSED = Expected("label", 400)
HELLO = {"containers": [{"image": "us-docker.pkg.dev/cloudrun/container/hello"}]}
MACHINE = {
    "tpu": {
        "nodeSpec": [
            {
                "parent": f"projects/{PROJECT}/locations/us-east5-a",
                "nodeId": "planted",
                "node": {"acceleratorType": "v6e-1", "runtimeVersion": "v2-alpha-tpuv6e"},
            }
        ]
    },
    "provisioningModel": "FLEX_START",
    "runDuration": {"maxRunDuration": "3600s"},
}
BODIES = {
    "secrets": SECRET,
    "services": {"template": HELLO},
    "jobs": {"template": {"template": HELLO}},
    "queuedResources": MACHINE,
    "serviceAccounts": {},
}
"""A body that creates a resource of each kind."""


def creating(kind):
    """A trial whose deciding request creates a resource."""
    return lambda attempt: attempt.create_again(attempt.resource(kind), BODIES[kind])


CREATES_A_SECRET = creating("secrets")


def entry(name="planted", run=CREATES_A_SECRET, expected=REFUSED, **more):
    """An entry of the ledger, and its trial."""
    given = {
        "id": name,
        "statement": "Google refuses it.",
        "source": "assumed",
        "test": "packages/localcloud/tests/test_trials.py::test_one",
        "if_false": "A command fails.",
        "cost_usd": 0.0,
        "tried": "",
    }
    return CriticalAssumption.model_validate({**given, **more}), Trial(run, 2, expected)


def endpoints(url):
    named = {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"{url}/{path}" for api, path in API_OVERRIDES.items()}
    return {**named, "HF_ENDPOINT": f"{url}/hub"}


def options(tmp_path, **changes):
    given = {
        "project": PROJECT,
        "budget_usd": 10.0,
        "only": [],
        "only_list": False,
        "second_run": False,
        "clean_up": False,
        "yes": True,
        "out": tmp_path / "tried.txt",
        "json": True,
    }
    return argparse.Namespace(**{**given, **changes})


@pytest.fixture
def session(own_cloud):
    opened = requests.Session()
    opened.headers["Authorization"] = f"Bearer {own_cloud.token}"
    return opened


@pytest.fixture
def run(own_cloud, session, tmp_path, monkeypatch, capsys):
    """Run `try` with a ledger of these entries, or with the real one. Returns the exit code and the report."""

    def go(*entries, **changes):
        if entries:
            monkeypatch.setattr(command, "load", lambda: Ledger(critical=tuple(known for known, _ in entries)))
        for known, trial in entries:
            monkeypatch.setitem(TRIALS, known.id, trial)
        environment = {**endpoints(own_cloud.base_url), "LOCALCLOUD_SPEED": f"{DEFAULT_SPEED}"}
        code = try_entries(options(tmp_path, **changes), environment, session=session)
        text = capsys.readouterr().out
        return code, json.loads(text) if text.startswith("{") else text

    return go


class Accepting:
    """A server that accepts every request. What a POST to a collection creates stays until it is deleted."""

    def __init__(self, *, keeps=False, loses=False):
        self.items, self.created, self.keeps, self.loses = {}, [], keeps, loses

    def request(self, method, url, *, data=None, **_):
        path, _, query = url.removeprefix("http://accepts.invalid").partition("?")
        collection, _, last = path.rpartition("/")
        answer = requests.Response()
        answer.status_code, body = 200, {}
        if path.startswith("/serviceusage/v1/projects/") and last == "services":
            body = {"services": [{"name": f"x/{api}", "state": "ENABLED"} for api in APIS]}
            answer._content = json.dumps(body).encode()
            return answer
        if method == "POST" and last in KINDS:
            body = self._create(path, query, json.loads(data or "{}") if (data or b"{")[-1:] == b"}" else {})
            if self.loses:
                raise requests.ConnectionError
        elif method == "DELETE":
            if self.keeps:
                answer.status_code = 403
            elif self.items.pop(path, None) is None:
                answer.status_code = 404
        elif method == "GET" and last in KINDS:
            body = {KINDS[last].items: [item for name, item in self.items.items() if name.rpartition("/")[0] == path]}
        elif collection.rpartition("/")[2] in KINDS and path not in self.items:
            answer.status_code = 404
        else:
            body = self.items.get(path, {"projectNumber": "12345"})
        answer._content = json.dumps(body).encode()
        return answer

    def _create(self, path, query, given):
        name = given.get("accountId") or re.search(r"\w+Id=([\w-]+)", query)[1]
        item = {**given, **given.get("serviceAccount", {}), "name": f"x/{name}"}
        if "accountId" in given:
            name = item["email"] = f"{name}@{PROJECT}.iam.gserviceaccount.com"
        self.created.append(f"{path}/{name}")
        self.items[f"{path}/{name}"] = item
        return item


def accepts_everything(server, monkeypatch, tmp_path, capsys, **changes):
    known, trial = entry("service", creating("services"))
    monkeypatch.setitem(TRIALS, known.id, trial)
    monkeypatch.setattr(command, "load", lambda: Ledger(critical=(*alone(load()).critical, known)))
    monkeypatch.setattr("localcloud.trials.sending.requests.Session", lambda: server)
    code = try_entries(
        options(tmp_path, **changes),
        {**endpoints("http://accepts.invalid"), "LOCALCLOUD_SPEED": "1e9"},
        session=server,
    )
    return code, json.loads(capsys.readouterr().out)


def kind_of(url):
    return url.rpartition("/")[0].rpartition("/")[2]


def names(client):
    return {item["name"].rpartition("/")[2] for item in client.ok("GET", SECRETS).get("secrets", [])}


def verdicts(report):
    return {each["id"]: each["verdict"] for each in report["trials"]}


def alone(ledger):
    """Return the entries that need no stack and no disabled API."""
    return Ledger(critical=tuple(each for each in ledger.critical if not each.stack and each.id not in DISABLED))


DISABLED = ("service-disabled-without-errors", "disabled-api-keeps-resources")
"""tests/engine/test_evening.py runs them, and the entries with a stack."""


@pytest.mark.timeout(120)
def test_the_trials_of_requests_alone_are_as_the_local_cloud_has_them(run, tmp_path):
    only = ["first-revision-before-its-grant", "hub-ids", "tpu-delete-needs-force", "node-patch"]
    code, report = run(only=only)
    assert verdicts(report) == dict.fromkeys(only, "as assumed"), report
    assert (code, report["left"], report["not_searched"]) == (0, [], [])
    written = (tmp_path / "tried.txt").read_text()
    assert re.findall(r"- `(.+)`: .+, a local cloud: as assumed\n", written) == [*verdicts(report)]
    assert [word for word in (PROJECT, "localcloud-try-") if word in written] == []


def test_without_quota_a_trial_of_a_machine_is_unknown(tmp_path, capsys):
    new = BUILT_IN["new-project"].model_copy(update={"services": SCENARIO.services, "operations": SCENARIO.operations})
    with idle_cloud.start(scenario=new) as cloud:
        session = requests.Session()
        session.headers["Authorization"] = f"Bearer {cloud.token}"
        environment = {**endpoints(cloud.base_url), "LOCALCLOUD_SPEED": f"{DEFAULT_SPEED}"}
        only = ["node-patch", "queued-run-ends", "tpu-boot-disk-left"]
        code = try_entries(options(tmp_path, only=only), environment, session=session)
    found = json.loads(capsys.readouterr().out)["trials"]
    assert (code, [each["verdict"] for each in found]) == (0, ["unknown"] * 3)
    assert {each["why"] for each in found} == {"the queued resource failed: no quota or no capacity"}


@pytest.mark.timeout(300)
def test_the_trial_of_a_machine_that_boots_is_as_a_simulated_one_has_it(tmp_path):
    only = "tpu-guest-attributes-namespace"
    program, state = [sys.executable, "-m", "localcloud"], str(tmp_path / "state")
    asked = ["--project", PROJECT, "--budget-usd", "1", "--yes", "--json", "--out", f"{tmp_path}/tried.txt"]
    world = ["--speed", "40", "--scenario", "prepared", "--state", state]
    done = subprocess.run(
        [*program, "run", *world, "--", *program, "try", *asked, "--only", only],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    report = json.loads(done.stdout[done.stdout.index("{") :])
    assert (verdicts(report), report["left"]) == ({only: "as assumed"}, [])


def test_a_false_assumption_differs_and_what_google_accepted_is_deleted(run, tmp_path):
    planted = [entry(kind.lower(), creating(kind)) for kind in KINDS]
    code, report = run(*planted)
    differs = {kind.lower(): "differs" for kind in KINDS}
    assert (code, verdicts(report), report["left"]) == (1, differs, [])
    assert {found["assumed"] for found in report["trials"]} == {"Google refuses it."}
    assert {found["answered"][:3] for found in report["trials"]} == {"200"}
    head, _, rows = (tmp_path / "tried.txt").read_text().partition("\n\n")
    row = r"- `(\w+)`: \S+, a local cloud: differs\n  - assumed: Google refuses it\.\n  - effect: A command fails\.\n"
    assert head == "5 of 5 critical assumptions tried, at most 0.00 USD."
    assert (set(re.findall(row, rows)), re.sub(row, "", rows)) == (set(differs), ""), "and no word of Google"
    code, text = run(*planted, clean_up=True)
    assert (code, text.splitlines()[-1]) == (0, "No leaked resources in 5 listings.")


@pytest.mark.timeout(300)
def test_nothing_is_left_when_everything_is_accepted(monkeypatch, tmp_path, capsys):
    server = Accepting()
    _, report = accepts_everything(server, monkeypatch, tmp_path, capsys)
    assert (server.items, report["left"], report["not_searched"]) == ({}, [], [])
    assert {kind_of(url) for url in server.created} == set(KINDS)


@pytest.mark.timeout(300)
def test_the_last_listing_sees_a_leak_of_each_kind(monkeypatch, tmp_path, capsys):
    server = Accepting(keeps=True)
    monkeypatch.setattr(Runner, "delete", lambda *_: None)
    code, report = accepts_everything(server, monkeypatch, tmp_path, capsys)
    assert code == 1
    assert {kind_of(url) for url in report["left"]} == set(KINDS)


@pytest.mark.parametrize("only", ["first-revision-before-its-grant", "node-patch", "run-l4-driver"])
def test_a_lost_answer_to_a_creation_leaves_nothing(monkeypatch, tmp_path, capsys, only):
    server = Accepting(loses=True)
    code, report = accepts_everything(server, monkeypatch, tmp_path, capsys, only=[only])
    assert (code, verdicts(report), len(server.created)) == (0, {only: "unknown"}, 1)
    assert (server.items, report["left"]) == ({}, [])


def test_text_names_what_differs_with_both_sides(run):
    _, text = run(entry(), json=False)
    assert "differs: planted (critical)" in text
    assert "assumed:  Google refuses it." in text
    assert "effect: A command fails." in text


def enabling(refused):
    """Return the project and the APIs of the one command that a refusal prints."""
    (found,) = re.findall(r"Run: gcloud services enable ([\w. -]+) --project=(\S+)$", str(refused.value))
    return found[1], found[0].split()


@pytest.mark.timeout(300)
def test_a_new_project_gets_one_line_and_then_no_trial_is_unknown_for_an_api(tmp_path, capsys, monkeypatch):
    scenario = BUILT_IN["new-project-without-quota"].model_copy(update={"operations": OperationDurations(instant=True)})
    with idle_cloud.start(scenario=scenario, speed=1000) as cloud:
        session = requests.Session()
        session.headers["Authorization"] = f"Bearer {cloud.token}"
        environment = {**endpoints(cloud.base_url), "LOCALCLOUD_SPEED": "1000"}
        monkeypatch.setattr(command, "load", lambda: alone(load()))
        with pytest.raises(TryRefusedError) as refused:
            try_entries(options(tmp_path, budget_usd=0.0), environment, session=session)
        with pytest.raises(TryRefusedError, match="gcloud services enable"):
            try_entries(options(tmp_path, clean_up=True), environment, session=session)
        project, apis = enabling(refused)
        assert (project, set(apis) <= set(APIS)) == (PROJECT, True)
        client = Client(cloud.base_url, cloud.token)
        client.ok("POST", f"/serviceusage/v1/projects/{PROJECT}/services:batchEnable", {"serviceIds": apis})
        code = try_entries(options(tmp_path, budget_usd=0.0), environment, session=session)
    report = json.loads(capsys.readouterr().out)
    (waits,) = [each for each in report["trials"] if each["verdict"] != "as assumed"]
    assert (waits["id"], waits["why"]) == (
        "tpu-delete-needs-force",
        "the queued resource failed: no quota or no capacity",
    )
    assert (code, report["left"], report["not_searched"]) == (0, [], [])


def test_an_api_is_on_only_if_it_is_listed_as_enabled(run, session, subtests):
    send = session.request
    for status, body, is_run_on in (
        (403, {"error": {"message": "x", "details": [{"reason": "SERVICE_DISABLED"}]}}, False),
        (403, {"error": {"message": "Service Usage API has not been used in project 1 before or it is"}}, False),
        (200, {"services": [{"name": "x/run.googleapis.com", "state": "DISABLED"}]}, False),
        (200, {"services": [{"name": "x/run.googleapis.com", "state": "ENABLED"}]}, True),
    ):
        answer = requests.Response()
        answer.status_code, answer._content = status, json.dumps(body).encode()
        session.request = lambda method, url, answer=answer, **rest: (
            answer if url.endswith("pageSize=200") else send(method, url, **rest)
        )
        with subtests.test(str(body)):
            with pytest.raises(TryRefusedError) as refused:
                run(budget_usd=0.0)
            assert enabling(refused)[1] == sorted(each for each in APIS if not (is_run_on and each.startswith("run.")))


def test_an_interruption_deletes_what_was_created(run, own_client):
    before = names(own_client)
    made = []

    def interrupted(attempt):
        attempt.must_create(attempt.resource("secrets"), SECRET)
        made.append(names(own_client) - before)
        raise KeyboardInterrupt

    code, _ = run(entry(run=interrupted))
    assert code == 130
    assert len(made[0]) == 1
    assert names(own_client) == before


def test_a_clean_up_deletes_what_has_name_and_mark_of_its_own_runs_and_nothing_else(
    run, own_client, tmp_path, monkeypatch
):
    """At the same time, a colleague's evening may use the project and the folder."""
    (tmp_path / "tried.journal").write_text(json.dumps({"project": PROJECT, "runs": ["0a0a0a"]}))
    (tmp_path / "Pulumi.try-l4.yaml").write_text("config: {}\n")
    monkeypatch.chdir(tmp_path)
    commands = []
    monkeypatch.setattr(
        "localcloud.trials.product.Product.tear_down", lambda _self, stack: commands.append(stack) or ""
    )
    own_client.ok("POST", SECRETS, SECRET_OF_A_RUN, secretId="localcloud-try-0a0a0a1")
    of_others = {
        "localcloud-try-0b0b0b1": {"localcloud-try": "0b0b0b"},
        "localcloud-try-0a0a0a2": {"localcloud-try": "0b0b0b"},
        "localcloud-try-0b0b0b2": {"localcloud-try": "0a0a0a"},
    }
    for name, labels in of_others.items():
        own_client.ok("POST", SECRETS, {**SECRET_OF_A_RUN, "labels": labels}, secretId=name)
    for name in ("localcloud-try-of-a-person", "weights"):
        own_client.ok("POST", SECRETS, SECRET, secretId=name)
    own_client.ok("POST", SECRETS, SECRET_OF_A_RUN, secretId="marked-only")
    code, text = run(entry(), clean_up=True)
    assert code == 0
    assert "could not check" in text
    assert "localcloud-try-of-a-person" in text
    assert names(own_client) >= {"localcloud-try-of-a-person", "weights", "marked-only", *of_others}
    assert all(f'gcloud auth print-access-token)" {API}/{name}`' in text for name in of_others)
    assert commands == []
    assert "localcloud-try-0a0a0a1" not in names(own_client)


def test_what_cannot_be_deleted_is_named(run, session, monkeypatch):
    send = session.request

    def kept(method, url, **rest):
        if method == "DELETE":
            answer = requests.Response()
            answer.status_code = 403
            answer._content = b"{}"
            return answer
        return send(method, url, **rest)

    monkeypatch.setattr(session, "request", kept)
    code, report = run(entry(expected=Expected(".")))
    assert code == 1
    assert len(report["left"]) == 1
    assert "/secrets/localcloud-try-" in report["left"][0]


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (ApiReply(status=400, message="Invalid label key"), "as assumed"),
        (ApiReply(status=400, message="Another reason"), "unknown"),
        (ApiReply(status=403, reason="SERVICE_DISABLED", message="label"), "unknown"),
        (ApiReply(status=403, message="Permission denied"), "unknown"),
        (ApiReply(status=401), "unknown"),
        (ApiReply(status=429, message="Quota exceeded"), "unknown"),
        (ApiReply(status=503), "unknown"),
        (ApiReply(status=0, message="no answer"), "unknown"),
        (ApiReply(status=200, body={"name": "label"}), "differs"),
        (ApiReply(status=404, message="label"), "differs"),
    ],
)
def test_what_has_another_cause_is_unknown(reply, verdict):
    assert judge(REFUSED, reply).verdict == verdict


def test_an_evening_goes_on_within_its_budget_and_asks_nothing_twice(run):
    machine = creating("queuedResources")
    code, report = run(entry(), entry("costly", machine, cost_usd=0.4), budget_usd=0.5)
    assert (set(verdicts(report)), report["usd"]) == ({"planted", "costly"}, 0.4)
    more = entry("more", machine, cost_usd=0.4)
    code, report = run(entry(), entry("second"), more, budget_usd=0.5)
    assert (code, set(verdicts(report)), report["over_budget"], report["usd"]) == (1, {"second"}, ["more"], 0.4)


@pytest.mark.parametrize("others", [0, 1])
def test_run_is_disabled_only_in_an_empty_project_and_is_enabled_again(run, own_client, others):
    services = f"/run/v2/projects/{PROJECT}/locations/europe-west4/services"
    for _ in range(others):
        own_client.ok("POST", services, {"template": HELLO}, serviceId="of-a-person")

    def disable(attempt):
        attempt.must_disable_run()
        attempt.pause(60)
        return attempt.send("GET", KINDS["services"].url(PROJECT), waits=False)

    code, report = run(entry(run=disable, expected=Expected("SERVICE_DISABLED", 403)))
    (found,) = report["trials"]
    assert found["verdict"] == ("unknown" if others else "as assumed")
    assert ("the project must be empty: the project has services in europe-west4" in found["why"]) == bool(others)
    assert (code, own_client.call("GET", services)[0]) == (0, 200)
    if others:
        own_client.ok("DELETE", f"{services}/of-a-person")


def test_a_poll_repeats_until_the_words_come_and_then_ends(run, session):
    """A secret that does not exist answers 404 until the poll gives up, and the next request is not sent."""

    def found(attempt):
        secret = attempt.resource("secrets")
        attempt.must_create(secret, SECRET)
        return attempt.must_poll(60, "replication", lambda: attempt.send("GET", secret.url))

    def absent(attempt):
        secret = attempt.resource("secrets")
        attempt.must_poll(20, "replication", lambda: attempt.send("GET", secret.url))
        return attempt.create_again(secret, SECRET)

    answered = Expected("secrets/")
    send, sent = session.request, []
    session.request = lambda verb, url, **rest: (sent.append(verb), send(verb, url, **rest))[1]
    _, report = run(entry("found", found, answered))
    assert verdicts(report) == {"found": "as assumed"}
    sent.clear()
    _, report = run(entry("absent", absent, answered))
    assert verdicts(report) == {"absent": "unknown"}
    assert report["trials"][0]["why"] == "no answer matched 'replication' within 20 s"
    assert "POST" not in sent


def test_a_rejected_step_is_unknown(run):
    def rejected(attempt):
        return attempt.must_send("POST", API, {"labels": 7})

    _, report = run(entry(run=rejected))
    assert verdicts(report) == {"planted": "unknown"}
    assert report["trials"][0]["why"] == f"POST {API} was rejected"


def test_a_command_line_is_refused_in_one_sentence(run, monkeypatch, subtests, tmp_path):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    for changes, says in (
        ({"project": None}, "--project"),
        ({"budget_usd": None}, "--budget-usd"),
        ({"only": ["none"]}, "No trial has the id 'none'"),
        ({"project": "someone-elses", "out": tmp_path / "other.json"}, "Cannot read project someone-elses"),
        ({"yes": False}, "Pass --yes"),
    ):
        with subtests.test(says), pytest.raises(TryRefusedError, match=says):
            run(**changes)


def test_the_plan_is_printed_without_a_project(capsys):
    assert cli.main(["try", "--list"]) == 0
    assert capsys.readouterr().out.startswith("Trials: 14, about ")
    assert cli.main(["try", "--list", "--json", "--budget-usd", "0"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["usd"], len(plan["trials"]), len(plan["over_budget"])) == (0, 4, 10)
    assert {"tpu-boot-disk-left", "run-l4-driver"} < {each["id"] for each in plan["over_budget"]}


def test_without_a_login_the_command_is_refused(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "absent.json"))
    assert cli.main(["try", "--project", PROJECT, "--budget-usd", "0", "--yes"]) == 2
    assert "gcloud auth application-default login" in capsys.readouterr().err
