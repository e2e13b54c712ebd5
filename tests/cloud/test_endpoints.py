import pytest

from cloud.google_api import endpoint


@pytest.mark.parametrize(
    ("api", "given", "root"),
    [
        ("storage", None, "https://storage.googleapis.com/"),
        ("storage", "http://127.0.0.1:1/storage/storage/v1/", "http://127.0.0.1:1/storage/"),
        ("compute", "https://compute-x.p.googleapis.com/compute/v1/", "https://compute-x.p.googleapis.com/"),
        ("storage", "http://127.0.0.1:1/storage", "http://127.0.0.1:1/storage/"),
        ("run", "http://127.0.0.1:1/run/", "http://127.0.0.1:1/run/"),
    ],
)
def test_the_root_of_an_api_is_without_the_version_that_gcloud_expects(api, given, root, monkeypatch):
    name = f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api.upper()}"
    monkeypatch.delenv(name, raising=False)
    if given is not None:
        monkeypatch.setenv(name, given)
    assert endpoint(api) == root
