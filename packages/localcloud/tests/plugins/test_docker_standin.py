"""The `docker` stand-in: digests that change when the image does, the SDK's outputs, and no password anywhere."""

import grpc.aio
import pytest

from localcloud.plugins.docker import Build, context_digest, manifest_digest
from localcloud.plugins.rest import PluginError
from localcloud.tests.plugins.harness import UNKNOWN, CheckFailedError, Recorder, engine, is_secret, run, secret

IMAGE = "docker:index/image:Image"
OUTPUTS = ("baseImageName", "context", "dockerfile", "imageName", "platform", "registryServer", "repoDigest")
NAME = "us-east4-docker.pkg.dev/p1/images/vllm:v1"


@pytest.fixture
def context(tmp_path):
    (tmp_path / "Dockerfile").write_text("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nCOPY serve.py /\n")
    (tmp_path / "serve.py").write_text("print('hi')\n")
    return tmp_path


def inputs(context, **options):
    return {"imageName": NAME, "build": {"context": str(context), "args": {"BASE_IMAGE": "vllm@sha256:1"}}, **options}


def with_docker(scenario):
    async def whole():
        async with engine(
            Recorder(lambda sent: (201 if sent.path.startswith("/registry/") else 500, {})), "docker"
        ) as attached:
            return await scenario(attached)

    return run(whole())


def built(context, **options):
    return with_docker(lambda attached: attached.up(IMAGE, "image", inputs(context, **options)))


def test_an_image_has_the_real_providers_outputs_and_its_inputs_as_one_secret(context):
    made = built(
        context, registry={"server": "us-east4-docker.pkg.dev", "username": "u", "password": secret("hunter2hunter2")}
    )
    state = made.state
    assert (state["imageName"], state["baseImageName"], state["registryServer"]) == (
        NAME,
        NAME,
        "us-east4-docker.pkg.dev",
    )
    repository, _, digest = state["repoDigest"].partition("@sha256:")
    assert (repository, len(digest)) == ("us-east4-docker.pkg.dev/p1/images/vllm", 64)
    assert (state["dockerfile"], state["platform"], state["context"]) == ("Dockerfile", "linux/amd64", str(context))
    assert is_secret(state["__inputs"])
    assert is_secret(made.inputs["registry"]["password"])
    assert set(state) == {*OUTPUTS, "__inputs"}
    assert made.id == NAME


def test_the_digest_is_the_same_for_the_same_context_and_another_for_any_change(context):
    def digest(**options):
        return built(context, **options).state["repoDigest"]

    first = digest()
    assert digest() == first
    assert digest(build={"context": str(context), "args": {"BASE_IMAGE": "vllm@sha256:2"}}) != first
    (context / "serve.py").write_text("print('ho')\n")
    assert digest() != first


def test_a_changed_file_is_a_difference_and_a_changed_password_is_not(context):
    async def scenario(attached):
        made = await attached.up(IMAGE, "image", inputs(context, registry={"password": secret("one-password")}))
        same = await attached.check(
            IMAGE, "image", inputs(context, registry={"password": secret("two-password")}), made.inputs
        )
        quiet = await attached.diff(made, same)
        (context / "serve.py").write_text("print('ho')\n")
        news = await attached.check(IMAGE, "image", inputs(context), made.inputs)
        return (
            dict(quiet.detailedDiff),
            await attached.diff(made, news),
            (await attached.update(made, news)).state,
            made.state,
        )

    quiet, loud, after, before = with_docker(scenario)
    assert quiet == {}
    assert set(loud.detailedDiff) == {"build", "registry"}  # the second program has no registry
    assert list(loud.replaces) == []
    assert after["repoDigest"] != before["repoDigest"]


def test_ignored_files_do_not_count(context):
    build = Build(context=str(context), dockerfile=str(context / "Dockerfile"), args={}, target="", platform="")
    (context / ".dockerignore").write_text("# comment\n.venv\n**/*.log\n!keep.log\n")
    first = context_digest(build)
    (context / ".venv").mkdir()
    (context / ".venv" / "x").write_text("x")
    (context / "deep").mkdir()
    (context / "deep" / "a.log").write_text("x")
    assert context_digest(build) == first
    (context / "keep.log").write_text("x")
    assert context_digest(build) != first


@pytest.mark.parametrize("missing", ["Dockerfile", "."])
def test_a_dockerfile_or_context_that_is_missing_is_refused_with_the_real_providers_words(context, missing):
    (context / "Dockerfile").unlink()
    if missing == ".":
        (context / "serve.py").unlink()
        context.rmdir()
    with pytest.raises(
        grpc.aio.AioRpcError, match=r'expected a relative Dockerfile path; got "/.*no such file'
    ) as caught:
        built(context)
    assert f"stat {context}/Dockerfile: no such file or directory" in caught.value.details()


def test_a_dockerfile_that_is_none_is_refused(context):
    (context / "Dockerfile").write_text("# nothing\nRUN true\n")
    build = Build(context=str(context), dockerfile=str(context / "Dockerfile"), args={}, target="", platform="")
    with pytest.raises(PluginError, match="no build stage in current context"):
        manifest_digest(build)


def test_unknown_properties_and_types_are_refused_by_name(context):
    with pytest.raises(CheckFailedError) as caught:
        built(context, tags=["x"])
    assert caught.value.failures[0][0] == "tags"
    with pytest.raises(
        grpc.aio.AioRpcError, match="does not support the resource type docker:index/container:Container"
    ):
        with_docker(lambda attached: attached.up("docker:index/container:Container", "c", {}))


def test_a_preview_builds_nothing_and_returns_the_inputs(context):
    async def scenario(attached):
        return await attached.create(
            IMAGE, "image", await attached.check(IMAGE, "image", inputs(context)), preview=True
        )

    state = with_docker(scenario).state
    assert ("repoDigest" in state, state["imageName"]) == (False, NAME)


def test_an_image_whose_name_is_not_known_yet_is_checked_and_previewed(context):
    async def scenario(attached):
        wanted = {**inputs(context), "imageName": UNKNOWN}
        return await attached.create(IMAGE, "image", await attached.check(IMAGE, "image", wanted), preview=True)

    assert with_docker(scenario).state["imageName"] == UNKNOWN


def test_without_a_push_the_digest_is_the_images_own(context):
    assert built(context, skipPush=True).state["repoDigest"].startswith("sha256:")
