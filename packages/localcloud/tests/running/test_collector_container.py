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


FORMS = (
    '-v "$HOME/etc:/etc/otelcol" %s --config=/etc/otelcol/config.yaml',
    '-v "$HOME/etc/config.yaml:/c.yaml:ro" %s --config file:/c.yaml',
    "-e CONFIG='a: '$(printf can; printf ary) %s --config=env:CONFIG",
    "%s --config=yaml:a::b",
)
PROBLEMS = {
    "%s --config=/missing.yaml": "cannot read /missing.yaml: No such file or directory",
    "%s --config=env:MISSING": "names the variable MISSING, which is not set",
    "%s": "has no --config",
}


def test_a_collector_runs_with_its_configuration_in_every_form_until_it_is_stopped(tmp_path):
    started = "\n".join(f"docker run -d --name m{at} --net=host {form % IMAGE}" for at, form in enumerate(FORMS))
    command = f"""{started}
    for name in m0 m1 m2 m3; do
        while ! docker logs $name | grep -q "Everything is ready"; do sleep 0.05; done
        docker stop $name; docker wait $name >> "{tmp_path}/codes"
    done; touch "{tmp_path}/done\""""

    async def work(_):
        await until((tmp_path / "done").exists, "the exit codes")
        logs = (tmp_path / "state" / "machines").glob("*/containers/m*.log")
        files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
        return [log.read_text() for log in logs], [path.name for path in files if b"canary" in path.read_bytes()]

    logs, secret_in = run(tmp_path / "state", command, work)
    assert logs == ["Everything is ready. Begin running and processing data.\n"] * 4
    assert (tmp_path / "codes").read_text() == "0\n" * 4
    assert secret_in == []


def test_a_collector_without_its_configuration_exits_and_says_why(tmp_path):
    async def work(_):
        await until((tmp_path / "done").exists, "the exit codes")
        return "".join(log.read_text() for log in (tmp_path / "state" / "machines").glob("*/containers/m*.log"))

    ran = (
        f"docker run -d --name m{at} --net=host {form % IMAGE}; docker wait m{at}" for at, form in enumerate(PROBLEMS)
    )
    said = run(tmp_path / "state", "; ".join([*ran, f'touch "{tmp_path}/done"']), work)
    assert [problem for problem in PROBLEMS.values() if problem not in said] == []


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (f"us-docker.pkg.dev/p/r/otelcol-google:0.135.0@sha256:{'0' * 64}", True),
        (f"docker.io/o/otelcol-google@sha256:{'0' * 64}", True),
        ("localhost:5000/otelcol-google", True),
        ("docker.io/otel/opentelemetry-collector:0.135.0", False),
        ("docker.io/otel/otelcol-contrib:0.135.0", False),
        ("docker.io/o/otelcol-google-2:0.135.0", False),
        ("docker.io/otelcol-google/other", False),
        ("docker.io/o/not-otelcol-google", False),
    ],
)
def test_a_collector_is_recognized_by_the_last_part_of_its_image(image, expected):
    assert is_collector(image) is expected
