"""The hub's API: the pinned huggingface_hub client is the contract."""

import hashlib
import json
from pathlib import Path

import pytest
import requests
from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_download, hf_hub_url, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from localcloud.hub.content import NOTE
from localcloud.hub.repositories import repositories
from localcloud.world.scenario import Fault, Hub, Scenario

PUBLIC, SHARDED, GATED = "google/gemma-4-E2B-it", "google/gemma-4-31B-it", "google/gemma-3-4b-it"
ABSENT = "google/gemma-4-26B-A4B-it-qat-w4a16-ct"
PRIVATE = "org/private"
TOKEN = "hf_test"


@pytest.fixture
def hub(shared_cloud):
    """A function that returns a client of a hub in a scenario."""
    before = shared_cloud.cloud.scenario

    def client(token=TOKEN, faults=(), **changes):
        changes = {"repositories": {PRIVATE: "private"}, **changes}
        shared_cloud.cloud.scenario = before.model_copy(update={"hub": Hub(**changes), "faults": tuple(faults)})
        return HfApi(endpoint=shared_cloud.base_url + "/hub", token=token)

    yield client
    shared_cloud.cloud.scenario = before


def download(api, model, name, folder, **options):
    return hf_hub_download(model, name, endpoint=api.endpoint, token=api.token, cache_dir=folder, **options)


def test_a_model_and_its_files(hub, tmp_path):
    api = hub()
    info = api.model_info(SHARDED, files_metadata=True)
    assert info.sha == api.model_info(SHARDED, revision="main").sha
    files = {file.rfilename: file for file in info.siblings}
    tree = {entry.path: entry for entry in api.list_repo_tree(SHARDED, recursive=True)}
    assert files.keys() == tree.keys() == set(api.list_repo_files(SHARDED))
    for name, file in files.items():
        content = Path(download(api, SHARDED, name, tmp_path)).read_bytes()
        assert len(content) == file.size == tree[name].size
        assert tree[name].blob_id == file.blob_id
        if file.lfs:
            assert hashlib.sha256(content).hexdigest() == file.lfs.sha256 == tree[name].lfs.sha256
        else:
            blob = b"blob %d\0" % len(content) + content
            assert hashlib.sha1(blob, usedforsecurity=False).hexdigest() == file.blob_id


def test_a_tree_comes_in_pages(hub, monkeypatch):
    api = hub()
    whole = [entry.path for entry in api.list_repo_tree(PUBLIC)]
    monkeypatch.setattr("localcloud.hub.api._PAGE", 2)
    assert [entry.path for entry in api.list_repo_tree(PUBLIC)] == whole
    assert len(whole) > 4


def test_tensors_agree_with_their_header_and_the_index(hub, tmp_path):
    api = hub()
    folder = Path(snapshot_download(SHARDED, endpoint=api.endpoint, token=api.token, cache_dir=tmp_path))
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    found = {}
    for shard in set(index["weight_map"].values()):
        data = (folder / shard).read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        assert header.pop("__metadata__")["simulated"] == NOTE
        end = 0
        for name, tensor in header.items():
            start, stop = tensor["data_offsets"]
            assert (start, stop - start) == (end, tensor["shape"][0] * tensor["shape"][1] * 2)
            end, found[name] = stop, shard
        assert len(data) == 8 + length + end
    assert found == index["weight_map"]
    assert index["metadata"]["total_size"] == 49_784_788_364 + 12_761_549_884


def test_each_answer_says_that_it_is_simulated_and_what_the_real_size_is(hub):
    api = hub()
    about = api.model_info(PUBLIC).simulated
    assert about["note"] == NOTE
    assert about["realBytes"]["model.safetensors"] == 10_246_621_918
    for path in (
        f"api/models/{PUBLIC}",
        "api/whoami-v2",
        f"api/models/{ABSENT}",
        "none",
        f"{PUBLIC}/resolve/main/config.json",
    ):
        assert requests.get(f"{api.endpoint}/{path}", timeout=30).headers["X-Simulated"] == NOTE
    there = requests.head(hf_hub_url(PUBLIC, "model.safetensors", endpoint=api.endpoint), timeout=30)
    assert (there.headers["X-Simulated-Real-Size"], there.headers["X-Simulated-Real-Size-Source"]) == (
        "10246621918",
        "stated",
    )


def test_a_large_file_is_at_another_host_and_its_pointer_is_in_git(hub):
    api = hub()
    url = hf_hub_url(PUBLIC, "model.safetensors", endpoint=api.endpoint)
    meta = get_hf_file_metadata(url, token=TOKEN)
    info = api.model_info(PUBLIC, files_metadata=True)
    file = next(file for file in info.siblings if file.rfilename == "model.safetensors")
    assert (meta.commit_hash, meta.etag, meta.size) == (info.sha, file.lfs.sha256, file.size)
    assert "//localhost:" in meta.location
    part = requests.get(url, headers={"Range": "bytes=8-15"}, timeout=30)
    assert (part.status_code, part.headers["Content-Range"]) == (206, f"bytes 8-15/{file.size}")
    past = requests.get(url, headers={"Range": f"bytes={file.size}-{file.size + 5}"}, timeout=30)
    assert past.status_code == 416
    assert requests.get(meta.location.partition("?")[0], timeout=30).status_code == 403


@pytest.mark.parametrize(
    ("token", "model", "status", "code", "error"),
    [
        (None, ABSENT, 401, None, HfHubHTTPError),
        (TOKEN, ABSENT, 404, "RepoNotFound", RepositoryNotFoundError),
        (TOKEN, "google/gemma-4-E2b-it", 404, "RepoNotFound", RepositoryNotFoundError),
        (None, PRIVATE, 401, None, HfHubHTTPError),
        (TOKEN, PRIVATE, 404, "RepoNotFound", RepositoryNotFoundError),
        (None, GATED, 401, "GatedRepo", GatedRepoError),
        (TOKEN, GATED, 403, "GatedRepo", GatedRepoError),
        ("hf_expired", PUBLIC, 401, None, HfHubHTTPError),
        ("other", PUBLIC, 401, None, HfHubHTTPError),
    ],
)
def test_what_the_hub_refuses(hub, token, model, status, code, error):  # noqa: PLR0917 - one row of the table
    api = hub(token or False, expired_tokens=("hf_expired",))
    with pytest.raises(error) as caught:
        api.auth_check(model)
    assert (caught.value.response.status_code, caught.value.response.headers.get("X-Error-Code")) == (status, code)
    with pytest.raises(error):
        get_hf_file_metadata(hf_hub_url(model, "config.json", endpoint=api.endpoint), token=token or False)


def test_the_list_of_a_gated_repository_is_public_and_an_account_that_accepted_its_terms_reads_it(hub):
    assert hub(False).model_info(GATED).gated == "manual"
    api = hub(readable=(GATED, PRIVATE))
    api.auth_check(GATED)
    assert api.model_info(PRIVATE).private is True


def test_what_a_repository_does_not_have(hub):
    api = hub()
    for revision in ("none", "f" * 40):
        with pytest.raises(RevisionNotFoundError):
            api.model_info(PUBLIC, revision=revision)
        with pytest.raises(RevisionNotFoundError):
            list(api.list_repo_tree(PUBLIC, revision=revision))
    with pytest.raises(EntryNotFoundError):
        get_hf_file_metadata(hf_hub_url(PUBLIC, "none.json", endpoint=api.endpoint), token=TOKEN)


def test_the_account_of_a_token(hub):
    assert hub().whoami()["name"] == "local"
    with pytest.raises(HfHubHTTPError):
        hub(expired_tokens=(TOKEN,)).whoami()


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_hub(hub, status):
    api = hub(faults=[Fault(method="hub.models.*", status=status)])
    with pytest.raises(HfHubHTTPError) as caught:
        api.model_info(PUBLIC)
    assert caught.value.response.status_code == status
    assert ("rate limit" in str(caught.value)) is (status == 429)
    assert api.model_info(PUBLIC).id == PUBLIC


def test_each_repository_has_a_source_and_each_stated_size_too():
    for one in repositories().values():
        assert one.source
        assert bool(one.sizes_source) == bool(one.bytes or one.total_bytes), one.id
        assert set(one.bytes) <= set(one.names)
    assert Scenario.model_validate({"hub": {"repositories": {"a/b": "gated"}}}).hub.repositories == {"a/b": "gated"}
