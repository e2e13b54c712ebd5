"""Cloud Logging, and where Cloud Run reports why a revision failed."""

import pytest

from localcloud.tests import idle_cloud
from localcloud.tests.conftest import PROJECT_POLICY, Client, grant
from localcloud.tests.services import test_run_rules
from localcloud.tests.services.test_run_rules import SERVICES, P
from localcloud.world.scenario import Logging, Scenario, Services

LIST = "/logging/v2/entries:list"
OF_SERVICE = 'resource.type="cloud_run_revision" AND resource.labels.service_name="{}"'
SENTENCE = (
    "The user-provided container failed to start and listen on the port defined provided by the PORT=8080 environment variable "
    "within the allocated timeout."
)


def deploy(client, name, template):
    return test_run_rules.deploy(client, name, {"template": template})


def entries(client, name, more="", **body):
    asked = {"resourceNames": [P], "filter": f"{OF_SERVICE.format(name)} {more}", **body}
    return client.ok("POST", LIST, asked).get("entries", [])


def texts(found):
    return [entry["textPayload"] for entry in found if "textPayload" in entry]


def test_a_failed_revision_says_googles_sentence_everywhere_and_links_its_log(client):
    error = deploy(client, "log-fails", {"containers": [{"image": "docker.io/x:fails"}]})["error"]
    service = client.ok("GET", f"{SERVICES}/log-fails")
    revision = client.ok("GET", f"/run/v2/{service['latestCreatedRevision']}")
    short = revision["name"].rpartition("/")[2]
    assert error["code"] == 9
    assert error["message"].startswith(SENTENCE)
    assert (
        f"%0Aresource.labels.revision_name%3D%22{short}%22 \nFor more troubleshooting guidance, see https://"
        in error["message"]
    )
    failed = {
        each["type"]: each for each in [service["terminalCondition"], *service["conditions"], *revision["conditions"]]
    }
    assert {kind: each["state"].removeprefix("CONDITION_") for kind, each in failed.items()} == {
        "Ready": "FAILED",
        "RoutesReady": "FAILED",
        "ConfigurationsReady": "FAILED",
        "ContainerReady": "SUCCEEDED",
        "ContainerHealthy": "FAILED",
        "ResourcesAvailable": "SUCCEEDED",
    }
    wrong = [each for each in failed.values() if each["state"] == "CONDITION_FAILED"]
    assert all(
        (each["message"], each["revisionReason"]) == (error["message"], "HEALTH_CHECK_CONTAINER_ERROR")
        for each in wrong
    )


def test_the_condition_stands_in_the_audit_log_too(client):
    deploy(client, "log-audit", {"containers": [{"image": "docker.io/x:fails"}]})
    (event,) = entries(client, "log-audit", 'logName:"cloudaudit.googleapis.com"')
    assert event["protoPayload"]["status"]["message"].startswith(
        "Ready condition status changed to False for Revision log-audit-"
    )
    assert SENTENCE in event["protoPayload"]["status"]["message"]


@pytest.mark.parametrize(
    ("bucket", "says"),
    [("nobodys-bucket", "code = NotFound"), ("someones-bucket", "does not have storage.objects.list access")],
)
def test_a_volume_that_cannot_be_mounted_is_told_by_the_log_alone(client, bucket, says):
    if bucket == "someones-bucket":
        client.ok(
            "POST", f"/storage/storage/v1/b?project={P.partition('/')[2]}", {"name": bucket, "location": "US-EAST4"}
        )
        account = client.ok("POST", f"/iam/v1/{P}/serviceAccounts", {"accountId": "server-of-logs"})["email"]
    name = f"log-{bucket.partition('-')[0]}"
    template = {
        "containers": [{"image": "docker.io/x", "volumeMounts": [{"name": "models", "mountPath": "/mnt/models"}]}],
        "volumes": [{"name": "models", "gcs": {"bucket": bucket}}],
        "executionEnvironment": "EXECUTION_ENVIRONMENT_GEN2",
        **({"serviceAccount": account} if bucket == "someones-bucket" else {}),
    }
    message = deploy(client, name, template)["error"]["message"]
    assert message.startswith(SENTENCE)
    assert bucket not in message
    said = texts(entries(client, name, 'logName:"varlog"'))
    assert says in said[0]
    assert said[2] == "terminated: Application failed to run: volume (type: gcs, name: models): mount operation failed"


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("no-such-option=1", "Error: unknown flag: --no-such-option"),
        (
            "uid=root",
            'Error: invalid argument "root" for "--uid" flag: strconv.ParseInt: parsing "root": invalid syntax',
        ),
        ("file-cache-enable-parallel-downloads=true", "file cache should be enabled for parallel download support"),
    ],
)
def test_options_that_gcsfuse_rejects_stop_the_instance_before_the_container(client, option, says):
    client.call("POST", f"/storage/storage/v1/b?project={P.partition('/')[2]}", {"name": "optional", "location": "US"})
    template = {
        "containers": [{"image": "docker.io/x", "volumeMounts": [{"name": "models", "mountPath": "/mnt/models"}]}],
        "volumes": [{"name": "models", "gcs": {"bucket": "optional", "mountOptions": ["implicit-dirs", option]}}],
        "executionEnvironment": "EXECUTION_ENVIRONMENT_GEN2",
    }
    name = f"log-{option[:2]}"
    assert deploy(client, name, template)["error"]["message"].startswith(SENTENCE)
    said = texts(entries(client, name, 'logName:"varlog"'))
    assert says in said[0]
    assert said[2] == "terminated: Application failed to run: volume (type: gcs, name: models): mount operation failed"


def test_entries_come_in_order_by_page_and_from_one_project(client):
    log = f"{P}/logs/in-order"
    written = [
        {"logName": log, "textPayload": str(number), "timestamp": f"2026-11-0{9 - number}T00:00:00Z"}
        for number in range(5)
    ]
    client.ok("POST", "/logging/v2/entries:write", {"resource": {"type": "global"}, "entries": written})
    asked = {"resourceNames": [P], "filter": f'logName="{log}"', "pageSize": 3}
    first = client.ok("POST", LIST, asked)
    assert texts(first["entries"]) == ["4", "3", "2"]
    assert texts(client.ok("POST", LIST, {**asked, "pageToken": first["nextPageToken"]})["entries"]) == ["1", "0"]
    newest = client.ok("POST", LIST, {**asked, "orderBy": "timestamp desc"})
    assert texts(newest["entries"]) == ["0", "1", "2"]
    assert texts(
        client.ok("POST", LIST, {**asked, "orderBy": "timestamp desc", "pageToken": newest["nextPageToken"]})["entries"]
    ) == ["3", "4"]
    assert client.error("POST", LIST, {**asked, "orderBy": "severity"})[0] == 400
    assert client.error("POST", LIST, {**asked, "resourceNames": ["projects/foreign"]})[0] == 403


def test_an_entry_that_is_written_again_after_a_lost_answer_is_listed_once(client):
    log = f"{P}/logs/again"
    entry = {"logName": log, "textPayload": "x", "timestamp": "2026-11-01T00:00:00Z", "insertId": "a1"}
    other = {**entry, "insertId": "a2"}
    for _ in range(2):
        client.ok("POST", "/logging/v2/entries:write", {"resource": {"type": "global"}, "entries": [entry, other]})
    found = client.ok("POST", LIST, {"resourceNames": [P], "filter": f'logName="{log}"'})["entries"]
    assert [item["insertId"] for item in found] == ["a1", "a2"]


def test_an_entry_can_be_listed_some_seconds_after_it_was_written():
    with idle_cloud.start(scenario=Scenario(logging=Logging(lag_s=1_000_000))) as cloud:
        client = Client(cloud.base_url, cloud.token)
        client.ok("POST", "/logging/v2/entries:write", {"logName": f"{P}/logs/late", "entries": [{"textPayload": "x"}]})
        assert client.ok("POST", LIST, {"resourceNames": [P]}) == {}
        client.ok("POST", "/admin/advance", {"seconds": 1_000_000})
        assert texts(client.ok("POST", LIST, {"resourceNames": [P]})["entries"]) == ["x"]


def test_who_may_not_read_and_an_api_that_is_off_are_told_in_googles_words():
    on = ("logging.googleapis.com", "iam.googleapis.com", "cloudresourcemanager.googleapis.com")
    with idle_cloud.start(scenario=Scenario(services=Services(enabled=on))) as cloud:
        operator = Client(cloud.base_url, cloud.token)
        email = operator.ok("POST", f"/iam/v1/{P}/serviceAccounts", {"accountId": "reader-of-logs"})["email"]
        reader = Client(cloud.base_url, token=cloud.cloud.tokens.issue_access_token(email))
        assert reader.error("POST", LIST, {"resourceNames": [P]}) == (403, "Permission denied for all log views")
        grant(operator, PROJECT_POLICY, "roles/logging.viewer", member=f"serviceAccount:{email}")
        assert reader.call("POST", LIST, {"resourceNames": [P]})[0] == 200
    with idle_cloud.start(scenario=Scenario(services=Services(enabled=()))) as cloud:
        status, message = Client(cloud.base_url, cloud.token).error("POST", LIST, {"resourceNames": [P]})
        assert (status, message.partition(" has not")[0]) == (403, "Cloud Logging API")
