"""The project that a call counts for: a person's login has to name one, and everybody needs the right to use the one that is named."""

import json

import google.oauth2.credentials
import pytest
from google.auth.exceptions import RefreshError
from google.auth.transport.requests import Request

from gemma_serving.cloud.google_session import open_session
from localcloud.tests.conftest import PROJECT, PROJECT_POLICY, Client, grant
from localcloud.world.oauth import login_file

ANN = "ann@example.com"
ROBOT = "robot@other.iam.gserviceaccount.com"
SECRETS = f"/secretmanager/v1/projects/{PROJECT}/secrets"


def caller(cloud, email, project=None):
    headers = {} if project is None else {"x-goog-user-project": project}
    return Client(cloud.base_url, cloud.cloud.tokens.issue_access_token(email), headers=headers)


def test_a_persons_call_without_a_project_is_refused_in_the_words_of_google(own_cloud, own_client):
    grant(own_client, PROJECT_POLICY, "roles/owner", member=f"user:{ANN}")
    status, answer = caller(own_cloud, ANN).call("GET", SECRETS)
    assert status == 403
    assert answer["error"]["message"] == (
        "Your application is authenticating by using local Application Default Credentials. The secretmanager.googleapis.com API requires a quota "
        "project, which is not set by default. To learn how to set your quota project, see "
        "https://cloud.google.com/docs/authentication/adc-troubleshooting/user-creds ."
    )
    (detail,) = answer["error"]["details"]
    assert (detail["reason"], detail["metadata"]["consumer"]) == ("SERVICE_DISABLED", "projects/764086051850")
    caller(own_cloud, ANN, PROJECT).ok("GET", SECRETS)


@pytest.mark.parametrize(
    "path", [f"/storage/storage/v1/b?project={PROJECT}", f"/compute/compute/v1/projects/{PROJECT}"]
)
def test_storage_and_compute_engine_count_for_the_project_of_the_resource(own_cloud, own_client, path):
    grant(own_client, PROJECT_POLICY, "roles/owner", member=f"user:{ANN}")
    caller(own_cloud, ANN).ok("GET", path)


@pytest.mark.parametrize("email", [ANN, ROBOT])
def test_a_project_that_the_caller_may_not_use_is_refused(own_cloud, own_client, email):
    member = f"{'user' if email == ANN else 'serviceAccount'}:{email}"
    grant(own_client, PROJECT_POLICY, "roles/viewer", member=member)
    for project in (PROJECT, "no-such-project"):
        status, answer = caller(own_cloud, email, project).call("GET", SECRETS)
        assert status == 403
        assert answer["error"]["message"].startswith(
            f"Caller does not have required permission to use project {project}. Grant the caller the roles/serviceusage.serviceUsageConsumer role"
        )
        assert answer["error"]["details"][0]["reason"] == "USER_PROJECT_DENIED"
    grant(own_client, PROJECT_POLICY, "roles/serviceusage.serviceUsageConsumer", member=member)
    caller(own_cloud, email, PROJECT).ok("GET", SECRETS)


def test_a_login_refreshes_its_token_and_its_calls_count_for_the_project_of_the_session(
    own_cloud, own_client, tmp_path, monkeypatch
):
    grant(own_client, PROJECT_POLICY, "roles/owner", member=f"user:{ANN}")
    path = login_file(tmp_path / "login.json", own_cloud.cloud.tokens.issue_refresh_token(ANN))
    monkeypatch.delenv("GOOGLE_OAUTH_ACCESS_TOKEN", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    # google-auth knows no other endpoint for a person's login, whatever the file says.
    monkeypatch.setattr(
        google.oauth2.credentials, "_GOOGLE_OAUTH2_TOKEN_ENDPOINT", f"{own_cloud.base_url}/oauth2/token"
    )
    assert open_session(PROJECT).get(own_cloud.base_url + SECRETS, timeout=30).status_code == 200
    # Also where the login has another project for quota.
    path.write_text(json.dumps({**json.loads(path.read_text()), "quota_project_id": "another"}))
    assert open_session(PROJECT).get(own_cloud.base_url + SECRETS, timeout=30).status_code == 200
    assert open_session(None).get(own_cloud.base_url + SECRETS, timeout=30).status_code == 403
    forged = google.oauth2.credentials.Credentials(
        None,
        refresh_token="1//local.x.y",
        token_uri=f"{own_cloud.base_url}/oauth2/token",
        client_id="c",
        client_secret="s",
    )
    with pytest.raises(RefreshError, match="invalid_grant"):
        forged.refresh(Request())
