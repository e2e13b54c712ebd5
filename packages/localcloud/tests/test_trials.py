"""`localcloud try` against a local cloud in place of Google: verdicts, written answers, deletions, rejections."""

import argparse
import io
import json
import re
import shutil
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
import requests

from localcloud import cli
from localcloud.environment import API_OVERRIDES
from localcloud.ledger.entries import AssumedAnswer, Assumption, Ledger, join, load
from localcloud.server.app import DEFAULT_SPEED
from localcloud.tests import idle_cloud
from localcloud.tests.conftest import SCENARIO, Client
from localcloud.trials import answers, command
from localcloud.trials.command import TryRefusedError, plan_trials, try_entries
from localcloud.trials.requests_of_entries import FIXTURES, trial
from localcloud.trials.resources import KINDS, PREFIX, created_by
from localcloud.trials.running import Runner, judge
from localcloud.trials.sending import ApiReply
from localcloud.world.scenario import BUILT_IN, OperationDurations, Scenario

PROJECT = "local-project"
SECRETS = f"/secretmanager/v1/projects/{PROJECT}/secrets"
API = "https://secretmanager.googleapis.com/v1/projects/PROJECT/secrets"
SECRET_OF_A_RUN = {"replication": {"automatic": {}}, "labels": {"localcloud-try": "0a0a0a"}}
REFUSED = AssumedAnswer(status=400, words="label")
MACHINE = {"acceleratorType": "v6e-1", "runtimeVersion": "v2-alpha-tpuv6e"}
RUN = "https://run.googleapis.com/v2/projects/PROJECT/locations/us-east4/services"
MONITORING = "https://monitoring.googleapis.com"
QUEUE = "https://tpu.googleapis.com/v2alpha1/projects/PROJECT/locations/us-east5-a/queuedResources"


def entry(
    name="planted",
    *,
    command=f"api -X POST '{API}?secretId=TRY' -d '{{\"replication\": {{\"automatic\": {{}}}}}}'",
    **more,
):
    given = {
        "id": name,
        "statement": "Google refuses it.",
        "source": "assumed",
        "kind": "refusal",
        "danger": "high",
        "if_false": "A command fails.",
        "test": "packages/localcloud/tests/test_trials.py::test_one",
        "try": command,
        "answer": REFUSED,
        "cost_usd": 0.0,
        "tried": "",
    }
    return Assumption.model_validate({**given, **more})


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
        "record": None,
        "clean_up": False,
        "yes": True,
        "out": tmp_path / "tried.json",
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
            monkeypatch.setattr(command, "load", lambda: Ledger(assumption=tuple(entries)))
        environment = {**endpoints(own_cloud.base_url), "LOCALCLOUD_SPEED": f"{DEFAULT_SPEED}"}
        code = try_entries(options(tmp_path, **changes), environment, session=session)
        text = capsys.readouterr().out
        return code, json.loads(text) if text.startswith("{") else text

    return go


LISTED = {
    "secrets": "secrets",
    "repositories": "repositories",
    "services": "services",
    "queuedResources": "queuedResources",
    "b": "items",
    "serviceAccounts": "accounts",
    "networks": "items",
    "subnetworks": "items",
    "firewalls": "items",
    "routers": "items",
    "notificationChannels": "notificationChannels",
    "dashboards": "dashboards",
    "alertPolicies": "alertPolicies",
}
"""Collection -> the field of its list that has the items (discovery documents)."""
APIS = (
    "artifactregistry",
    "cloudresourcemanager",
    "compute",
    "iam",
    "monitoring",
    "run",
    "secretmanager",
    "serviceusage",
    "storage",
    "tpu",
)
CHOOSES_IDS = {"notificationChannels", "dashboards", "alertPolicies"}
READING_VERBS = ("getEffectiveOrgPolicy", "getGuestAttributes", "testIamPermissions")


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
            body = {"services": [{"name": f"x/{api}.googleapis.com", "state": "ENABLED"} for api in APIS]}
            answer._content = json.dumps(body).encode()
            return answer
        if method == "POST" and last in LISTED:
            body = self._create(path, query, json.loads(data or "{}") if (data or b"{")[-1:] == b"}" else {})
            if self.loses:
                raise requests.ConnectionError
        elif method == "DELETE":
            if self.keeps:
                answer.status_code = 403
            elif self.items.pop(path, None) is None:
                answer.status_code = 404
        elif method == "GET" and last in LISTED:
            body = {LISTED[last]: [item for name, item in self.items.items() if name.rpartition("/")[0] == path]}
        elif collection.rpartition("/")[2] in LISTED and path not in self.items:
            answer.status_code = 404
        else:
            body = self.items.get(path, {"projectNumber": "12345"})
        answer._content = json.dumps(body).encode()
        return answer

    def _create(self, path, query, given):
        last = path.rpartition("/")[2]
        ids = dict(pair.split("=") for pair in query.split("&") if re.match("(?!request).*Id=", pair))
        chosen = "" if last in CHOOSES_IDS else next(iter(ids.values()), given.get("name") or given.get("accountId"))
        name = chosen or f"chosen-{len(self.created)}"
        item = {**given, **given.get("serviceAccount", {}), "name": f"x/{name}"}
        if last == "serviceAccounts":
            name = item["email"] = f"{name}@{PROJECT}.iam.gserviceaccount.com"
        self.created.append(f"{path}/{name}")
        self.items[f"{path}/{name}"] = item
        return item


def accepts_everything(server, monkeypatch, tmp_path, capsys, **changes):
    monkeypatch.setattr(command, "load", lambda: of_requests(load()))
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


NEED_A_MACHINE = {"queued-run-ends", "tpu-guest-attributes-namespace", "tpu-boot-disk-left"}
"""Trials of a machine whose run ends, and of those that boot. The two tests below run them."""
ELSEWHERE = {"service-disabled-without-errors", "disabled-api-keeps-resources", "run-l4-driver"}
"""tests/engine/test_evening.py runs them, and the entries with a stack."""


def of_requests(ledger):
    """Return the entries that need no product and no disabled API."""
    return Ledger(assumption=tuple(each for each in ledger.assumptions if not each.stack and each.id not in ELSEWHERE))


@pytest.mark.timeout(600)
def test_every_trial_of_the_ledger_is_as_the_local_cloud_has_it(run, tmp_path):
    known = [each.id for each in of_requests(load()).assumptions if each.answer is not None]
    code, report = run(only=[each for each in known if each not in NEED_A_MACHINE])
    assert [each for each in report["trials"] if each["verdict"] != "as assumed"] == []
    assert (code, report["left"], report["not_searched"]) == (0, [], [])
    assert len(report["trials"]) > 150
    written = (tmp_path / "tried.json").read_text()
    assert set(json.loads(written)) == set(verdicts(report))
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
    asked = ["--project", PROJECT, "--budget-usd", "1", "--yes", "--json", "--out", f"{tmp_path}/tried.json"]
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


def machine_of_a_trial():
    spec = {"parent": "projects/PROJECT/locations/us-east5-a", "nodeId": "TRY", "node": MACHINE}
    limits = {"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "3600s"}}
    return json.dumps({"tpu": {"nodeSpec": [spec]}, **limits})


PROMQL = {"displayName": "c", "conditionPrometheusQueryLanguage": {"query": "vector(1)"}}
PLANTED = {
    "service": (f"{RUN}?serviceId=TRY", '{"template": {"containers": [{"image": "docker.io/x"}]}}'),
    "queued-resource": (f"{QUEUE}?queuedResourceId=TRY", machine_of_a_trial()),
    "bucket": ("https://storage.googleapis.com/storage/v1/b?project=PROJECT", '{"name": "TRY"}'),
    "account": ("https://iam.googleapis.com/v1/projects/PROJECT/serviceAccounts", '{"accountId": "TRY"}'),
    "policy": (
        f"{MONITORING}/v3/projects/PROJECT/alertPolicies",
        json.dumps({"displayName": "TRY", "combiner": "OR", "conditions": [PROMQL]}),
    ),
    "dashboard": (
        f"{MONITORING}/v1/projects/PROJECT/dashboards",
        '{"displayName": "TRY", "mosaicLayout": {"columns": 48}}',
    ),
    "channel": (
        f"{MONITORING}/v3/projects/PROJECT/notificationChannels",
        '{"displayName": "TRY", "type": "email", "labels": {"email_address": "a@example.com"}}',
    ),
}
"""What a request of each kind creates."""


def test_a_false_assumption_differs_and_what_google_accepted_is_deleted(run, own_client, tmp_path):
    planted = [
        entry("secret"),
        *(entry(name, command=f"api -X POST '{u}' -d '{b}'") for name, (u, b) in PLANTED.items()),
    ]
    code, report = run(*planted)
    for path in ("v3/{}/alertPolicies", "v1/{}/dashboards", "v3/{}/notificationChannels"):
        assert own_client.ok("GET", "/monitoring/" + path.format(f"projects/{PROJECT}")) == {}
    differs = dict.fromkeys(["secret", *PLANTED], "differs")
    assert (code, verdicts(report), report["left"]) == (1, differs, [])
    assert {found["assumed"] for found in report["trials"]} == {"Google refuses it."}
    assert {found["answered"][:3] for found in report["trials"]} == {"200"}
    written = json.loads((tmp_path / "tried.json").read_text())
    assert {name for name, said in written.items() if ": differs: 200" in said} == set(differs)
    code, text = run(*planted, clean_up=True)
    assert (code, text.splitlines()[-1].startswith("No leaked resources")) == (0, True)


def ownerless(each):
    """Return the requests of a trial that write something that no kind and no fixture owns."""
    filled = dict.fromkeys((*FIXTURES, "PROJECT", "PROJECT_NUMBER"), "x") | {"TRY": PREFIX}
    found = []
    for step in each.requests:
        if step.method in {"GET", "DELETE"} or step.url.endswith(READING_VERBS):
            continue
        request = step.filled(filled)
        path = urlsplit(step.url).path
        # A node belongs to the queued resource of the same name, whose deletion with force deletes it.
        within = any(re.search(rf"/({'|'.join(KINDS)}|nodes)/{word}\b", path) for word in (*FIXTURES, "TRY"))
        if not within and created_by(request.method, request.url, request.body) is None:
            found.append(f"{step.method} {step.url}")
    return found


def test_every_write_of_every_trial_has_an_owner():
    planned = plan_trials(of_requests(load()).assumptions, None).trials
    assert {each.entry.id: ownerless(each) for each in planned if ownerless(each)} == {}


@pytest.mark.timeout(300)
def test_nothing_is_left_when_everything_is_accepted(monkeypatch, tmp_path, capsys):
    server = Accepting()
    _, report = accepts_everything(server, monkeypatch, tmp_path, capsys)
    assert (server.items, report["left"], report["not_searched"]) == ({}, [], [])
    assert {kind_of(url) for url in server.created} == set(LISTED)
    assert len(server.created) > 100


@pytest.mark.timeout(300)
def test_the_last_listing_sees_a_leak_of_each_kind(monkeypatch, tmp_path, capsys):
    server = Accepting(keeps=True)
    monkeypatch.setattr(Runner, "delete", lambda *_: None)
    code, report = accepts_everything(server, monkeypatch, tmp_path, capsys)
    assert code == 1
    assert {kind_of(url) for url in report["left"]} == set(LISTED)
    assert len(report["left"]) > 100


@pytest.mark.parametrize("only", ["monitoring-alert-rule", "monitoring-dashboard-tiles", "monitoring-channel-labels"])
def test_a_lost_answer_with_the_id_leaves_nothing(monkeypatch, tmp_path, capsys, only):
    server = Accepting(loses=True)
    code, report = accepts_everything(server, monkeypatch, tmp_path, capsys, only=[only])
    assert (code, verdicts(report), len(server.created)) == (0, {only: "unknown"}, 1)
    assert (server.items, report["left"]) == ({}, [])


def test_text_names_what_differs_with_both_sides(run):
    _, text = run(entry(), json=False)
    assert "differs: planted (high)" in text
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
        monkeypatch.setattr(command, "load", lambda: of_requests(load()))
        with pytest.raises(TryRefusedError) as refused:
            try_entries(options(tmp_path, budget_usd=0.0), environment, session=session)
        with pytest.raises(TryRefusedError, match="gcloud services enable"):
            try_entries(options(tmp_path, clean_up=True), environment, session=session)
        project, apis = enabling(refused)
        assert (project, set(apis) <= {f"{api}.googleapis.com" for api in APIS}) == (PROJECT, True)
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
            assert enabling(refused)[1] == [f"{api}.googleapis.com" for api in APIS if api != "run" or not is_run_on]


def test_an_operation_of_compute_engine_is_awaited(tmp_path, capsys, monkeypatch):
    """Google refuses to use a network before its operation is done: 'The resource ... is not ready', resourceNotReady."""
    pending = set()

    def strict(method, url, **rest):
        if method == "POST" and pending:
            answer = requests.Response()
            answer.status_code, answer._content = 400, b'{"error": {"message": "The resource is not ready"}}'
            return answer
        answer = send(method, url, **rest)
        shown = answer.json() if answer.content else {}
        if shown.get("kind") == "compute#operation" and shown.get("operationType") != "delete":
            (pending.discard if shown["status"] == "DONE" else pending.add)(shown["name"])
        return answer

    with idle_cloud.start(scenario=Scenario(operations=OperationDurations()), speed=100) as cloud:
        session = requests.Session()
        session.headers["Authorization"] = f"Bearer {cloud.token}"
        send = session.request
        monkeypatch.setattr(session, "request", strict)
        environment = {**endpoints(cloud.base_url), "LOCALCLOUD_SPEED": "100"}
        code = try_entries(options(tmp_path, only=["subnetwork-overlap"]), environment, session=session)
    report = json.loads(capsys.readouterr().out)
    assert (code, verdicts(report), report["left"]) == (0, {"subnetwork-overlap": "as assumed"}, [])


def test_an_interruption_deletes_what_was_created(run, own_client, monkeypatch):
    before = names(own_client)
    made = []

    def interrupted(*_):
        made.append(names(own_client) - before)
        raise KeyboardInterrupt

    monkeypatch.setattr("localcloud.trials.running.judge", interrupted)
    code, _ = run(entry())
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
        own_client.ok("POST", SECRETS, {"replication": {"automatic": {}}}, secretId=name)
    own_client.ok("POST", SECRETS, SECRET_OF_A_RUN, secretId="marked-only")
    code, text = run(entry(), clean_up=True)
    assert code == 0
    assert "could not check" in text
    assert "localcloud-try-of-a-person" in text
    assert names(own_client) >= {"localcloud-try-of-a-person", "weights", "marked-only", *of_others}
    assert all(
        f'gcloud auth print-access-token)" {API.replace("PROJECT", PROJECT)}/{name}`' in text for name in of_others
    )
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
    code, report = run(entry(answer=AssumedAnswer(status=200, words=".")))
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


def test_an_answer_is_written_into_the_entry_and_nothing_else_changes(tmp_path):
    folder = tmp_path / "ledger"
    shutil.copytree(answers.LEDGER, folder)
    wanted = next(each for each in load().assumptions if each.id == "tpu-delete-needs-force")
    text = 'a real "project", 2026-12-01: as assumed: 400\\n'
    assert answers.write_to_ledger(folder, wanted, text)
    again = join({path.name: path.read_text() for path in sorted(folder.glob("*.toml"))})
    changed = [
        (one.id, two.tried) for one, two in zip(load().assumptions, again.assumptions, strict=True) if one != two
    ]
    assert changed == [("tpu-delete-needs-force", text)]
    assert not answers.write_to_ledger(folder, entry("none"), text)


def test_answers_of_another_cloud_than_googles_never_reach_the_ledger(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(answers, "write_to_ledger", lambda *_: pytest.fail("wrote into the ledger"))
    run(entry(), out=None)
    assert ", a local cloud: " in json.loads((tmp_path / "localcloud-tried.json").read_text())["planted"]


@pytest.fixture
def ledger_copy(tmp_path, monkeypatch):
    folder = tmp_path / "clone" / "packages" / "ledger"
    shutil.copytree(answers.LEDGER, folder)
    monkeypatch.setattr(answers, "LEDGER", folder)
    return folder


def test_a_reported_file_becomes_the_ledgers_state_by_one_command_and_the_pages_follow(
    run, tmp_path, monkeypatch, ledger_copy
):
    monkeypatch.setattr("localcloud.trials.sending.Sender.is_google", True)
    started = []
    done = argparse.Namespace(returncode=0)
    monkeypatch.setattr(command.subprocess, "run", lambda words, **_: started.append(words) or done)
    chosen = next(each for each in load().assumptions if each.id == "rest-not-json")
    code, _ = run(chosen, entry("page-token"))
    text = (tmp_path / "tried.txt").read_text()
    assert "- `page-token`: " in text
    assert "  - effect: A command fails." in text
    monkeypatch.setattr(command, "load", load)
    assert (code, run(record=tmp_path / "tried.json")[0]) == (1, 0)
    again = join({path.name: path.read_text() for path in ledger_copy.glob("*.toml")})
    texts = {each.id: each.tried.partition(", ")[2] for each in again.assumptions if each.tried}
    assert set(texts) == {"rest-not-json", "page-token"}
    assert texts["rest-not-json"].startswith("a real project: as assumed: 400 ")
    assert texts["page-token"].startswith("a real project: differs: 200 ")
    assert [words[1:] for words in started] == [["-m", "authors.docs"]]


@pytest.mark.parametrize(
    "reported",
    [
        {"rest-not-json": "2026-11-27, a local cloud: as assumed: 400"},
        {"rest-not-json": "2026-11-27, a real project: unknown: 400"},
        {"rest-not-json": "2026-11-27, a real project: as assumed: 400\nid = 'x'"},
        {"rest-not-json": "2026-11-27, a real project: as assumed: a@example.com"},
        {"rest-not-json": "2026-11-27, a real project: as assumed: 400 \x7f"},
        {"rest-not-json": "2026-11-27, a real project: as assumed: ` <script>"},
        {"no-entry": "2026-11-27, a real project: as assumed: 400"},
        {"rest-not-json": 1},
        {},
    ],
)
def test_a_file_that_no_run_on_google_wrote_is_not_recorded(run, tmp_path, ledger_copy, reported):
    (tmp_path / "reported.json").write_text(json.dumps(reported))
    with pytest.raises(TryRefusedError, match="was not recorded"):
        run(record=tmp_path / "reported.json")
    assert not any(each.tried for each in join({f.name: f.read_text() for f in ledger_copy.glob("*.toml")}).assumptions)


def test_an_evening_goes_on_within_its_budget_and_asks_nothing_twice(run):
    costly = f"api -X POST '{QUEUE}?queuedResourceId=TRY' -d '{{}}'"
    code, report = run(entry(), entry("costly", command=costly, cost_usd=0.4), budget_usd=0.5)
    assert (set(verdicts(report)), report["usd"]) == ({"planted", "costly"}, 0.4)
    more = entry("more", command=costly, cost_usd=0.4)
    code, report = run(entry(), entry("second"), more, budget_usd=0.5)
    assert (code, set(verdicts(report)), report["over_budget"], report["usd"]) == (1, {"second"}, ["more"], 0.4)


USAGE = "https://serviceusage.googleapis.com/v1/projects/PROJECT/services"


@pytest.mark.parametrize(
    ("api", "others", "why"),
    [
        ("secretmanager", 0, "only run.googleapis.com may be disabled, not secretmanager.googleapis.com"),
        ("run", 1, "the project must be empty: the project has services in europe-west4"),
        ("run", 0, ""),
    ],
)
def test_an_api_is_disabled_only_in_an_empty_project_and_is_enabled_again(run, own_client, api, others, why):
    services = f"/run/v2/projects/{PROJECT}/locations/europe-west4/services"
    for _ in range(others):
        container = {"image": "us-docker.pkg.dev/cloudrun/container/hello"}
        own_client.ok("POST", services, {"template": {"containers": [container]}}, serviceId="of-a-person")
    disable = f"api -X POST '{USAGE}/{api}.googleapis.com:disable' -d '{{}}'; sleep 60; api '{RUN}'"
    code, report = run(entry(command=disable, answer=AssumedAnswer(status=403, words="SERVICE_DISABLED")))
    (found,) = report["trials"]
    assert (found["verdict"], why in found["why"]) == ("unknown" if why else "as assumed", True)
    assert (code, own_client.call("GET", services)[0]) == (0, 200)
    if others:
        own_client.ok("DELETE", f"{services}/of-a-person")


def test_a_poll_repeats_until_the_words_come_and_then_ends(run, session):
    """A secret that does not exist answers 404 until the poll gives up, and the next step is not sent."""
    secret = f"{API}/TRY"
    created = f"api -X POST '{API}?secretId=TRY' -d '{{\"replication\": {{\"automatic\": {{}}}}}}'"
    answered = AssumedAnswer(status=200, words="secrets/")
    found = entry("found", command=f"{created}; poll 60 replication api '{secret}'; api '{secret}'", answer=answered)
    absent = entry("absent", command=f"poll 20 replication api '{secret}'; {created}", answer=answered)
    send, sent = session.request, []
    session.request = lambda verb, url, **rest: (sent.append(verb), send(verb, url, **rest))[1]
    _, report = run(found)
    assert verdicts(report) == {"found": "as assumed"}
    sent.clear()
    _, report = run(absent)
    assert verdicts(report) == {"absent": "unknown"}
    assert report["trials"][0]["why"] == "no answer matched 'replication' within 20 s"
    assert "POST" not in sent


def test_the_minutes_include_the_deletion_of_what_is_created():
    made = entry(
        "made", answer=AssumedAnswer(status=200, words="."), command=f"api -X POST '{RUN}?serviceId=TRY' -d '{{}}'"
    )
    refused = entry(command=f"api -X POST '{RUN}?serviceId=TRY' -d '{{}}'")
    network = entry(command="api 'https://compute.googleapis.com/compute/v1/projects/PROJECT/global/networks/NETWORK'")
    minutes = [plan_trials([each], 0.0).minutes for each in (refused, made, network)]
    assert minutes[1] - minutes[0] == pytest.approx(KINDS["services"].seconds / 60)
    assert minutes[2] - minutes[0] == pytest.approx(KINDS["networks"].seconds / 60)


@pytest.mark.parametrize(
    "bad",
    [
        "gcloud run deploy",
        "api",
        "poll 60",
        "poll 60 x",
        "api -x 'https://x.googleapis.com'",
        "api 'https://a' 'https://b'",
    ],
)
def test_a_command_that_is_not_a_request_is_refused(bad):
    with pytest.raises(ValueError, match="planted"):
        trial(entry(command=bad))


def test_a_command_line_is_refused_in_one_sentence(run, monkeypatch, subtests, tmp_path):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    for changes, says in (
        ({"project": None}, "--project"),
        ({"budget_usd": None}, "--budget-usd"),
        ({"only": ["none"]}, "Entry 'none' not found"),
        ({"only": ["documented-worst"]}, "needs a deployed stack"),
        ({"project": "someone-elses", "out": tmp_path / "other.json"}, "Cannot read project someone-elses"),
        ({"yes": False}, "Pass --yes"),
    ):
        with subtests.test(says), pytest.raises(TryRefusedError, match=says):
            run(**changes)


def test_the_plan_is_printed_without_a_project_and_counts_what_needs_a_person(capsys):
    assert cli.main(["try", "--list"]) == 0
    text = capsys.readouterr().out
    assert "Trials: " in text
    assert "need a deployed stack, service or machine." in text
    assert cli.main(["try", "--list", "--json", "--budget-usd", "0"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["usd"] == 0
    assert {"tpu-boot-disk-size", "tpu-boot-disk-left"} < {each["id"] for each in plan["over_budget"]}
    assert "documented-worst" in [each["id"] for each in plan["by_hand"]]


def test_without_a_login_the_command_is_refused(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "absent.json"))
    assert cli.main(["try", "--project", PROJECT, "--budget-usd", "0", "--yes"]) == 2
    assert "gcloud auth application-default login" in capsys.readouterr().err
