"""The collector as a container of a machine: `docker run` starts it, and the local cloud finds its configuration while it runs."""

import asyncio

import pytest

from localcloud.tests.running.machine_world import NODE, machines, spec, until

IMAGE = "docker.io/o/otelcol-google:0.135.0"
SCRIPT = """#!/bin/sh
mkdir -p "$HOME/etc"
echo 'service: ${env:NAME}' > "$HOME/etc/config.yaml"
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
    ("options", "text"),
    [
        ('-v "$HOME/etc:/etc/otelcol" -e NAME=n %s --config=/etc/otelcol/config.yaml', "service: n\n"),
        ('-v "$HOME/etc/config.yaml:/c.yaml:ro" -e NAME=n %s --config file:/c.yaml', "service: n\n"),
        ("-e CONFIG='a: ${env:NAME}' -e NAME=n %s --config=env:CONFIG", "a: n"),
        ("%s --config=yaml:a::b", "a::b"),
    ],
)
def test_a_running_collector_shows_its_configuration_and_a_stopped_one_does_not(tmp_path, options, text):
    async def work(running):
        await until(lambda: running.collectors(NODE), "the collector's start")
        found = running.collectors(NODE)
        (tmp_path / "stop").touch()
        await until(lambda: not running.collectors(NODE), "the collector's stop")
        return found

    stop = f'; while [ ! -e "{tmp_path}/stop" ]; do sleep 0.05; done; docker stop metrics'
    command = f"docker run -d --name metrics --net=host {options % IMAGE}{stop}"
    assert run(tmp_path / "state", command, work) == [text]


def test_a_secret_of_the_configuration_is_in_no_file(tmp_path):
    async def work(running):
        await until(lambda: running.collectors(NODE), "the collector's start")
        files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
        return running.collectors(NODE), [path.name for path in files if b"canary" in path.read_bytes()]

    secret = "$(printf can; printf ary)"
    command = f"docker run -d --name metrics --net=host -e KEY={secret} -e CONFIG='a: ${{env:KEY}}' {IMAGE} --config=env:CONFIG"
    assert run(tmp_path / "state", command, work) == (["a: canary"], [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (f"{IMAGE} --config=/missing.yaml", "cannot read /missing.yaml: No such file or directory"),
        (f"{IMAGE} --config=env:MISSING", "names the variable MISSING, which is not set"),
        (IMAGE, "has no --config"),
    ],
)
def test_a_collector_without_its_configuration_exits_and_says_why(tmp_path, options, said):
    async def work(running):
        log = tmp_path / "state" / "machines"
        await until(lambda: any(said in path.read_text() for path in log.glob("*/containers/metrics.log")), said)
        await until((tmp_path / "code").exists, "the exit code")
        return running.collectors(NODE)

    command = f'docker run -d --name metrics --net=host {options}; docker wait metrics > "{tmp_path}/code"'
    assert run(tmp_path / "state", command, work) == []


def test_a_machine_that_does_not_run_has_no_collector(tmp_path):
    async def work(running):
        return running.collectors("projects/p/locations/us-east5-a/nodes/other")

    assert run(tmp_path / "state", "true", work) == []
