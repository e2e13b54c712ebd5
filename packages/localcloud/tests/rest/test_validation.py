"""Requests are checked against Google's documents, and refused in Google's words."""

import pytest

P = "/projects/local-project"
SECRETS = f"/secretmanager/v1{P}/secrets"
SERVICES = f"/run/v2{P}/locations/us-east4/services"
AUTOMATIC = {"replication": {"automatic": {}}}


class TestUnknownNames:
    @pytest.mark.parametrize(
        ("path", "body", "message"),
        [
            (
                SERVICES,
                {"template": {"containers": [{}, {"imag": "x"}]}},
                "Unknown name \"imag\" at 'service.template.containers[1]': Cannot find field.",
            ),
            (
                f"/tpu/v2alpha1{P}/locations/us-east5-a/queuedResources",
                {"tpu": {"nodeSpec": [{"node": {"zone": "x"}}]}},
                "Unknown name \"zone\" at 'queued_resource.tpu.node_spec[0].node'",
            ),
            (
                f"/compute/compute/beta{P}/global/networks",
                {"name": "x", "mode": "auto"},
                "Unknown name \"mode\" at 'resource': Cannot find field.",
            ),
            (
                "/storage/storage/v1/b?project=local-project",
                {"name": "abc", "labelz": {}},
                'Unknown name "labelz": Cannot find field.',
            ),
        ],
    )
    def test_a_body_field_is_named_with_its_path(self, client, path, body, message):
        status, found = client.error("POST", path, body)
        assert status == 400
        assert message in found

    def test_all_unknown_fields_are_named_at_once(self, client):
        status, answer = client.call("POST", SERVICES, {"a": 1, "b": 2, "template": {"c": 3}})
        assert status == 400
        assert len(answer["error"]["details"][0]["fieldViolations"]) == 3

    def test_a_query_parameter_is_named(self, client):
        status, message = client.error("GET", SECRETS, pageSise=3)
        assert status == 400
        assert message.startswith(
            'Invalid JSON payload received. Unknown name "pageSise": Cannot bind query parameter.'
        )

    def test_snake_case_is_taken_for_camel_case(self, client):
        answer = client.ok(
            "POST",
            SECRETS,
            {"replication": {"user_managed": {"replicas": [{"location": "us-east4"}]}}},
            secret_id="snake",
        )
        assert answer["replication"] == {"userManaged": {"replicas": [{"location": "us-east4"}]}}


class TestValues:
    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ({"ingress": "INGRESS_SOME"}, "Invalid value at 'service.ingress' (TYPE_ENUM), \"INGRESS_SOME\""),
            (
                {"template": {"maxInstanceRequestConcurrency": "many"}},
                "Invalid value at 'service.template.max_instance_request_concurrency' (TYPE_INT32), \"many\"",
            ),
            ({"template": {"maxInstanceRequestConcurrency": 2**31}}, "(TYPE_INT32), 2147483648"),
            ({"template": {"timeout": "5m"}}, "Duration"),
            ({"template": {"containers": {}}}, "a JSON list is expected"),
            ({"template": {"containers": ["x"]}}, "a JSON object is expected"),
            ({"template": []}, "'service.template': a JSON object is expected"),
            ({"invokerIamDisabled": "maybe"}, '(TYPE_BOOL), "maybe"'),
            ({"description": 3}, "(TYPE_STRING), 3"),
            ({"labels": {"a": ["x"]}}, "cannot be a JSON list"),
        ],
    )
    def test_a_wrong_value_is_refused_with_its_path(self, client, body, message):
        status, found = client.error("POST", SERVICES, body, serviceId="values")
        assert status == 400
        assert message in found

    def test_a_payload_that_is_not_base64_is_refused(self, client):
        client.ok("POST", SECRETS, AUTOMATIC, secretId="not-base64")
        status, message = client.error("POST", f"{SECRETS}/not-base64:addVersion", {"payload": {"data": "%%%"}})
        assert (status, "TYPE_BYTES" in message) == (400, True)

    def test_null_and_output_only_fields_are_ignored(self, client):
        answer = client.ok(
            "POST", SECRETS, {**AUTOMATIC, "labels": None, "createTime": "1999-01-01T00:00:00Z"}, secretId="nulls"
        )
        assert "labels" not in answer
        assert answer["createTime"] > "2020"

    def test_what_is_not_json_is_refused(self, client):
        answer = client.session.post(
            client.base_url + SECRETS, data=b"{", headers={"Authorization": f"Bearer {client.token}"}, timeout=60
        )
        assert answer.status_code == 400
        assert "Invalid JSON payload received" in answer.json()["error"]["message"]

    def test_compute_names_its_pattern(self, client):
        status, message = client.error("POST", f"/compute/compute/beta{P}/global/networks", {"name": "Bad_Name"})
        assert status == 400
        assert message.startswith("Invalid value for field 'resource.name': 'Bad_Name'. Must be a match of regex")


class TestRouting:
    def test_a_method_that_is_not_modelled_says_so(self, client):
        status, message = client.error("GET", f"/run/v2{P}/locations/us-east4/workerPools")
        assert status == 501
        assert "run.projects.locations.workerPools.list" in message

    def test_a_path_that_no_document_has_is_not_found(self, client):
        assert client.error("GET", f"/run/v2{P}/locations/us-east4/servicez")[0] == 404
        assert client.error("GET", "/nothing/v1/x")[0] == 404

    def test_a_caller_without_a_token_is_unauthenticated(self, client):
        client.token = ""
        status, answer = client.call("GET", SECRETS)
        assert (status, answer["error"]["status"]) == (401, "UNAUTHENTICATED")

    @pytest.mark.parametrize(
        "path",
        [
            "/secretmanager/v1/projects/other/secrets",
            "/compute/compute/v1/projects/other/global/networks",
            "/cloudresourcemanager/v1/projects/other",
            "/storage/storage/v1/b?project=other",
        ],
    )
    def test_a_foreign_project_is_denied(self, client, path):
        assert client.error("GET", path)[0] == 403

    def test_a_zone_that_does_not_exist_is_denied_by_its_name(self, client):
        status, message = client.error("GET", f"/tpu/v2alpha1{P}/locations/us-east9-z/nodes")
        assert (status, message) == (403, "Permission denied on 'locations/us-east9-z' (or it may not exist).")

    def test_a_project_number_is_as_good_as_its_id(self, client):
        number = client.ok("GET", f"/cloudresourcemanager/v1{P}")["projectNumber"]
        client.ok("POST", SECRETS, AUTOMATIC, secretId="by-number")
        assert (
            client.ok("GET", f"/secretmanager/v1/projects/{number}/secrets/by-number")["name"]
            == f"projects/{number}/secrets/by-number"
        )

    @pytest.mark.parametrize("style", ["compute", "storage"])
    def test_error_bodies_have_the_shape_of_their_family(self, client, style):
        path = f"/compute/compute/v1{P}/global/networks/none" if style == "compute" else "/storage/storage/v1/b/none"
        _, answer = client.call("GET", path)
        assert answer["error"]["errors"][0]["reason"] == "notFound"
        assert ("status" in answer["error"]) == (style == "compute")


class TestPages:
    @pytest.mark.parametrize(
        ("path", "size"),
        [
            (SECRETS, "pageSize"),
            (f"/compute/compute/beta{P}/regions/us-east4/subnetworks", "maxResults"),
            (f"/tpu/v2alpha1{P}/locations/us-east5-a/queuedResources", "pageSize"),
            (f"/artifactregistry/v1{P}/locations/us-east4/repositories", "pageSize"),
            (f"/serviceusage/v1{P}/services", "pageSize"),
            (f"/iam/v1{P}/serviceAccounts", "pageSize"),
        ],
    )
    def test_a_token_that_was_not_issued_is_refused(self, client, path, size):
        assert client.error("GET", path, **{size: 1, "pageToken": "made-up"})[0] == 400

    def test_a_filter_that_cannot_be_read_is_refused(self, client):
        assert client.error("GET", SECRETS, filter="labels.a>3 OR")[0] == 400
