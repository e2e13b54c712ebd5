"""Google's own clients, unmodified but for the endpoint, work against the local cloud."""

import io
import os

import google.auth
import google.auth.transport.requests
import pytest
from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import BadRequest, Conflict, GoogleAPICallError, NotFound, PreconditionFailed
from google.cloud import run_v2, secretmanager, storage
from google.iam.v1 import policy_pb2
from google.oauth2 import credentials as oauth2_credentials
from google.oauth2 import id_token
from googleapiclient import discovery

from localcloud.tests.idle_cloud import IdleRevisions

PROJECT = "local-project"
PARENT = f"projects/{PROJECT}"
REGION = f"{PARENT}/locations/us-east4"


def credentials(cloud):
    return oauth2_credentials.Credentials(token=cloud.token)


@pytest.fixture
def secrets(shared_cloud):
    return secretmanager.SecretManagerServiceClient(
        transport="rest",
        credentials=credentials(shared_cloud),
        client_options=ClientOptions(api_endpoint=f"{shared_cloud.base_url}/secretmanager"),
    )


@pytest.fixture
def services(shared_cloud):
    return run_v2.ServicesClient(
        transport="rest",
        credentials=credentials(shared_cloud),
        client_options=ClientOptions(api_endpoint=f"{shared_cloud.base_url}/run"),
    )


@pytest.fixture
def bucket(shared_cloud, request):
    client = storage.Client(
        project=PROJECT,
        credentials=credentials(shared_cloud),
        client_options=ClientOptions(api_endpoint=f"{shared_cloud.base_url}/storage"),
    )
    name = request.node.name.replace("_", "-").replace("[", "-").replace("]", "").lower()[:50].strip("-")
    return client.create_bucket(name, location="us-east4")


def tpu(cloud):
    os.environ.setdefault("GOOGLE_API_USE_CLIENT_CERTIFICATE", "false")
    return discovery.build(
        "tpu",
        "v2alpha1",
        credentials=credentials(cloud),
        client_options={"api_endpoint": f"{cloud.base_url}/tpu/"},
        static_discovery=True,
    )


class TestSecretManager:
    def test_a_secret_lives_its_whole_life(self, secrets):
        secret = secrets.create_secret(
            parent=PARENT, secret_id="client-life", secret={"replication": {"automatic": {}}, "labels": {"a": "b"}}
        )
        assert secret.labels == {"a": "b"}
        version = secrets.add_secret_version(
            parent=f"{PARENT}/secrets/client-life", payload={"data": b"\xff\x00canary"}
        )
        assert version.name.endswith("/secrets/client-life/versions/1")
        assert (
            secrets.access_secret_version(name=f"{PARENT}/secrets/client-life/versions/latest").payload.data
            == b"\xff\x00canary"
        )
        assert secrets.access_secret_version(name=version.name).payload.data_crc32c != 0
        secrets.disable_secret_version(name=version.name)
        with pytest.raises(BadRequest, match="DISABLED"):
            secrets.access_secret_version(name=version.name)
        secrets.destroy_secret_version(name=version.name)
        secrets.destroy_secret_version(name=version.name)
        with pytest.raises(BadRequest, match="DESTROYED"):
            secrets.enable_secret_version(name=version.name)
        updated = secrets.update_secret(
            secret={"name": secret.name, "labels": {"c": "d"}}, update_mask={"paths": ["labels"]}
        )
        assert updated.labels == {"c": "d"}
        secrets.delete_secret(name=secret.name)
        with pytest.raises(NotFound):
            secrets.get_secret(name=secret.name)

    def test_a_taken_name_is_refused(self, secrets):
        secrets.create_secret(parent=PARENT, secret_id="client-twice", secret={"replication": {"automatic": {}}})
        with pytest.raises(Conflict):
            secrets.create_secret(parent=PARENT, secret_id="client-twice", secret={"replication": {"automatic": {}}})

    def test_policies_are_written_with_their_etag(self, secrets):
        name = secrets.create_secret(
            parent=PARENT, secret_id="client-iam", secret={"replication": {"automatic": {}}}
        ).name
        for index in range(4):
            policy = secrets.get_iam_policy(request={"resource": name})
            policy.bindings.append(
                policy_pb2.Binding(role="roles/secretmanager.secretAccessor", members=[f"user:{index}@example.com"])
            )
            secrets.set_iam_policy(request={"resource": name, "policy": policy})
        stale = secrets.get_iam_policy(request={"resource": name})
        secrets.set_iam_policy(request={"resource": name, "policy": stale})
        with pytest.raises(Conflict, match="concurrent policy changes"):
            secrets.set_iam_policy(request={"resource": name, "policy": stale})


def service_of(image="us-docker.pkg.dev/cloudrun/container/hello", **template):
    return run_v2.Service(
        template=run_v2.RevisionTemplate(containers=[run_v2.Container(image=image)], **template), labels={"a": "b"}
    )


class TestCloudRun:
    def test_a_failed_revision_leaves_the_traffic_where_it_was(self, services, shared_cloud):
        created = services.create_service(parent=REGION, service=service_of(), service_id="client-fails").result(
            timeout=60
        )
        changed = services.get_service(name=created.name)
        changed.template.containers[0].image = "docker.io/x:fails"
        with pytest.raises(
            Exception, match="The user-provided container failed to start and listen on the port"
        ) as failed:
            services.update_service(service=changed).result(timeout=60)
        after = services.get_service(name=created.name)
        assert after.latest_ready_revision == created.latest_ready_revision
        assert after.latest_created_revision != created.latest_created_revision
        assert after.traffic_statuses == created.traffic_statuses
        assert after.terminal_condition.state == run_v2.Condition.State.CONDITION_FAILED
        assert after.terminal_condition.message in str(failed.value)
        assert {each.type_: each.state.name for each in after.conditions} == {
            "ConfigurationsReady": "CONDITION_FAILED",
            "RoutesReady": "CONDITION_SUCCEEDED",
        }
        revisions = shared_cloud.cloud.runtimes.revisions
        assert isinstance(revisions, IdleRevisions)
        assert created.latest_ready_revision in revisions.running


class TestStorage:
    @pytest.mark.parametrize("size", [0, 5, 300_000])
    def test_what_is_uploaded_comes_back(self, bucket, size):
        data = bytes(index % 251 for index in range(size))
        blob = bucket.blob("folder/a b?#.bin")
        blob.metadata = {"key": "value"}
        blob.upload_from_string(data, content_type="application/x-test", checksum="crc32c")
        again = bucket.get_blob("folder/a b?#.bin")
        assert again.size == size
        assert again.content_type == "application/x-test"
        assert again.metadata == {"key": "value"}
        assert again.download_as_bytes(checksum="md5") == data

    def test_a_resumable_upload_is_refused_by_name(self, bucket):
        with pytest.raises(GoogleAPICallError, match="no resumable uploads"):
            bucket.blob("big", chunk_size=256 * 1024).upload_from_file(io.BytesIO(b"x" * 300_000))

    def test_preconditions_hold(self, bucket):
        blob = bucket.blob("once")
        blob.upload_from_string("1", if_generation_match=0)
        with pytest.raises(PreconditionFailed):
            bucket.blob("once").upload_from_string("2", if_generation_match=0)
        blob.upload_from_string("3", if_generation_match=blob.generation)
        with pytest.raises(NotFound):
            bucket.blob("never").delete()

    def test_listing_knows_prefixes_delimiters_and_pages(self, bucket):
        for name in ("a/1", "a/2", "b/1", "c"):
            bucket.blob(name).upload_from_string(name)
        found = bucket.list_blobs(delimiter="/")
        assert [blob.name for blob in found] == ["c"]
        assert sorted(found.prefixes) == ["a/", "b/"]
        assert [blob.name for blob in bucket.list_blobs(prefix="a/", page_size=1)] == ["a/1", "a/2"]

    def test_a_bucket_with_objects_is_not_deleted(self, bucket):
        bucket.blob("x").upload_from_string("x")
        with pytest.raises(Conflict, match="not empty"):
            bucket.delete()
        bucket.delete(force=True)
        assert not bucket.exists()

    def test_labels_are_patched_one_by_one(self, bucket):
        bucket.labels = {"a": "1", "b": "2"}
        bucket.patch()
        labels = bucket.labels
        del labels["a"]
        bucket.labels = labels
        bucket.patch()
        bucket.reload()
        assert bucket.labels == {"b": "2"}

    def test_copies_and_compositions_hold_the_same_bytes(self, bucket):
        one = bucket.blob("one")
        one.upload_from_string("one")
        two = bucket.copy_blob(one, bucket, "two")
        joined = bucket.blob("joined")
        joined.compose([one, two])
        assert joined.download_as_bytes() == b"oneone"
        renamed = bucket.rename_blob(joined, "renamed")
        assert renamed.download_as_bytes() == b"oneone"
        assert bucket.get_blob("joined") is None

    def test_a_composite_object_counts_its_components_and_has_no_md5(self, bucket):
        for name in ("a", "b", "c"):
            bucket.blob(name).upload_from_string(name)
        pair = bucket.blob("pair")
        pair.compose([bucket.blob("a"), bucket.blob("b")])
        whole = bucket.blob("whole")
        whole.metadata = {"sha256": "abc"}
        whole.compose([pair, bucket.blob("c")], if_generation_match=0)
        assert (whole.component_count, whole.md5_hash, whole.metadata) == (3, None, {"sha256": "abc"})
        plain = bucket.blob("plain")
        plain.upload_from_string("abc")
        assert whole.crc32c == plain.crc32c
        assert plain.component_count is None
        assert bucket.blob("whole").download_as_bytes() == b"abc"

    def test_a_refused_compose_leaves_no_files(self, bucket, shared_cloud):
        one = bucket.blob("one")
        one.upload_from_string("1")
        before = sorted((shared_cloud.state / "objects").iterdir())
        with pytest.raises(PreconditionFailed):
            bucket.blob("one").compose([one, one], if_generation_match=0)
        assert sorted((shared_cloud.state / "objects").iterdir()) == before

    def test_a_compose_keeps_to_its_limit_and_its_conditions(self, bucket):
        one = bucket.blob("one")
        one.upload_from_string("1")
        with pytest.raises(BadRequest, match=r"\(33\) must be from 1 to 32"):
            bucket.blob("many").compose([one] * 33)
        bucket.blob("many").compose([one] * 32)
        with pytest.raises(PreconditionFailed):
            bucket.blob("many").compose([one], if_generation_match=0)
        with pytest.raises(PreconditionFailed):
            bucket.blob("other").compose([one], if_source_generation_match=[one.generation + 1])
        assert not bucket.blob("other").exists()
        bucket.blob("alone").compose([one], delete_source_objects=True)
        assert not one.exists()

    def test_a_rewrite_to_another_location_takes_several_calls(self, bucket):
        far = bucket.client.create_bucket(f"{bucket.name}-far", location="us-west1")
        source = bucket.blob("source")
        source.upload_from_string(os.urandom(5 << 19))
        bucket.blob("joined").compose([source, source])
        step = {"timeout": 60, "if_generation_match": 0}
        assert bucket.blob("near").rewrite(source, **step)[0] is None
        copy = far.blob("copy")
        copy._properties["metadata"] = {"sha256": "abc"}
        token, done, size = copy.rewrite(bucket.blob("joined"), **step)
        assert token is None
        assert (done, size, copy.component_count, copy.md5_hash) == (5 << 20, 5 << 20, 1, None)
        session, url = bucket.client._http, f"{bucket.client._connection.API_BASE_URL}/storage/v1/b/{bucket.name}"
        url += f"/o/source/rewriteTo/b/{far.name}/o/steps"
        first = session.post(url, params={"maxBytesRewrittenPerCall": 1 << 20}, json={}).json()
        assert (first["done"], first["totalBytesRewritten"], "resource" in first) == (False, str(1 << 20), False)
        token = {"rewriteToken": first["rewriteToken"]}
        changed = session.post(url, params={**token, "maxBytesRewrittenPerCall": 2 << 20}, json={})
        assert (changed.status_code, "rewriteToken is invalid" in changed.text) == (400, True)
        second = session.post(url, params={**token, "maxBytesRewrittenPerCall": 1 << 20}, json={}).json()
        third = session.post(url, params={"rewriteToken": second["rewriteToken"]}, json={}).json()
        assert (third["done"], third["resource"]["crc32c"]) == (True, source.crc32c)
        assert "multiple of 1048576" in session.post(url, params={"maxBytesRewrittenPerCall": 5}, json={}).text

    def test_a_rewrite_notices_a_source_that_changed(self, bucket):
        source = bucket.blob("source")
        source.upload_from_string("1")
        before = source.generation
        bucket.blob("source").upload_from_string("2")
        with pytest.raises(PreconditionFailed):
            bucket.blob("copy").rewrite(bucket.blob("source"), if_source_generation_match=before)
        with pytest.raises(NotFound):
            bucket.blob("copy").rewrite(bucket.blob("source", generation=before))

    def test_a_checksum_of_other_bytes_refuses_an_upload(self, bucket, monkeypatch):
        monkeypatch.setattr("google.cloud.storage._media._helpers.prepare_checksum_digest", lambda _digest: "AAAAAA==")
        with pytest.raises(BadRequest, match="doesn't match calculated crc32c"):
            bucket.blob("damaged").upload_from_string(b"xxx", checksum="crc32c")
        assert not bucket.blob("damaged").exists()


class TestTpu:
    def test_catalogs_list_what_a_zone_has(self, shared_cloud):
        client = tpu(shared_cloud).projects().locations()
        kinds = client.acceleratorTypes().list(parent=f"{PARENT}/locations/us-east5-a").execute()["acceleratorTypes"]
        assert "v6e-4" in [kind["type"] for kind in kinds]
        versions = client.runtimeVersions().list(parent=f"{PARENT}/locations/us-east5-a").execute()["runtimeVersions"]
        assert "v2-alpha-tpuv6e" in [version["version"] for version in versions]


class TestCompute:
    def test_networks_and_their_operations(self, shared_cloud):
        client = discovery.build(
            "compute",
            "v1",
            credentials=credentials(shared_cloud),
            client_options={"api_endpoint": f"{shared_cloud.base_url}/compute/compute/v1/"},
            static_discovery=True,
        )
        operation = (
            client.networks()
            .insert(project=PROJECT, body={"name": "client-net", "autoCreateSubnetworks": False})
            .execute()
        )
        done = client.globalOperations().wait(project=PROJECT, operation=operation["name"]).execute()
        assert done["status"] == "DONE"
        network = client.networks().get(project=PROJECT, network="client-net").execute()
        subnet = {"name": "client-sub", "network": network["selfLink"], "ipCidrRange": "10.77.0.0/24"}
        client.subnetworks().insert(project=PROJECT, region="us-east4", body=subnet).execute()
        assert (
            client.subnetworks()
            .get(project=PROJECT, region="us-east4", subnetwork="client-sub")
            .execute()["gatewayAddress"]
            == "10.77.0.1"
        )
        client.subnetworks().delete(project=PROJECT, region="us-east4", subnetwork="client-sub").execute()
        client.networks().delete(project=PROJECT, network="client-net").execute()


class TestCredentials:
    def test_application_default_credentials_get_tokens(self, shared_cloud, monkeypatch):
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(shared_cloud.credentials))
        credentials, project = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
        credentials.refresh(google.auth.transport.requests.Request())
        assert project == PROJECT
        assert (
            shared_cloud.cloud.tokens.access_token_email(credentials.token)
            == f"local-operator@{PROJECT}.iam.gserviceaccount.com"
        )

    def test_id_tokens_name_their_audience(self, shared_cloud, monkeypatch):
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(shared_cloud.credentials))
        token = id_token.fetch_id_token(google.auth.transport.requests.Request(), "http://127.0.0.1:1")
        claims = shared_cloud.cloud.tokens.id_token(token)
        assert claims is not None
        assert claims.audience == "http://127.0.0.1:1"
