"""The collector as a container of a machine: `docker run` starts it, and it waits until it is stopped."""

import asyncio

import pytest

from localcloud.running.shims.collector import is_collector
from localcloud.tests.running.machine_world import machines, spec, until

IMAGE = "docker.io/o/otelcol-google:0.135.0"
SCRIPT = """#!/bin/sh
mkdir -p "$HOME/etc"
echo 'service:' > "$HOME/etc/config.yaml"
%s
"""


def run(state, command, work):
    """Boot a machine whose script runs a command, and work with it."""

    async def main():
        async with machines(state) as running:
            await running.boot(spec(SCRIPT % command))
            return await work(running)

    return asyncio.run(main())


@pytest.mark.parametrize(
    "options",
    [
        '-v "$HOME/etc:/etc/otelcol" %s --config=/etc/otelcol/config.yaml',
        '-v "$HOME/etc/config.yaml:/c.yaml:ro" %s --config file:/c.yaml',
        "-e CONFIG=a %s --config=env:CONFIG",
        "%s --config=yaml:a::b",
    ],
)
def test_a_collector_with_a_configuration_runs_until_it_is_stopped(tmp_path, options):
    async def work(_):
        await until((tmp_path / "done").exists, "the exit code")
        (log,) = (tmp_path / "state" / "machines").glob("*/containers/metrics.log")
        return log.read_text().splitlines()

    ready = 'while ! docker logs metrics | grep -q "Everything is ready"; do sleep 0.05; done'
    end = f'docker stop metrics; docker wait metrics > "{tmp_path}/code"; touch "{tmp_path}/done"'
    command = f"docker run -d --name metrics --net=host {options % IMAGE}; {ready}; {end}"
    assert run(tmp_path / "state", command, work) == ["Everything is ready. Begin running and processing data."]
    assert (tmp_path / "code").read_text() == "0\n"


def test_a_secret_of_the_configuration_is_in_no_file(tmp_path):
    async def work(_):
        await until((tmp_path / "started").exists, "the collector's start")
        files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
        return [path.name for path in files if b"canary" in path.read_bytes()]

    secret = "$(printf can; printf ary)"
    command = f"docker run -d --name metrics --net=host -e CONFIG='a: '{secret} {IMAGE} --config=env:CONFIG; touch {tmp_path}/started"
    assert run(tmp_path / "state", command, work) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (f"{IMAGE} --config=/missing.yaml", "cannot read /missing.yaml: No such file or directory"),
        (f"{IMAGE} --config=env:MISSING", "names the variable MISSING, which is not set"),
        (IMAGE, "has no --config"),
    ],
)
def test_a_collector_without_its_configuration_exits_and_says_why(tmp_path, options, said):
    async def work(_):
        log = tmp_path / "state" / "machines"
        await until(lambda: any(said in path.read_text() for path in log.glob("*/containers/metrics.log")), said)
        await until((tmp_path / "code").exists, "the exit code")

    command = f'docker run -d --name metrics --net=host {options}; docker wait metrics > "{tmp_path}/code"'
    run(tmp_path / "state", command, work)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (f"us-docker.pkg.dev/p/r/otelcol-google:0.135.0@sha256:{'0' * 64}", True),
        (f"docker.io/o/otelcol-google@sha256:{'0' * 64}", True),
        ("localhost:5000/otelcol-google", True),
        ("docker.io/otel/opentelemetry-collector:0.135.0", False),
        ("docker.io/otelcol-google/other", False),
        ("docker.io/o/not-otelcol-google", False),
    ],
)
def test_a_collector_is_recognized_by_the_last_part_of_its_image(image, expected):
    assert is_collector(image) is expected
