"""Machines: start-up scripts that really run, with docker, systemd and a metadata server of their own."""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from gemma_serving.components.startup_script import startup_script
from gemma_serving.contracts.path_guard import GUARD_ARGUMENT
from gemma_serving.contracts.serving_document import DOCUMENT_METADATA_KEY
from gemma_serving.vm_agent.running_server import SET_PRIVILEGED
from localcloud.running.machines import SimulatedMachines
from localcloud.running.shims import docker_run
from localcloud.running.shims.docker_devices import device_files, problem_of
from localcloud.running.shims.machine import Machine
from localcloud.tests.running.machine_world import CANARY, IMAGE, NODE, document, machines, spec, until
from localcloud.tests.running.running_server import ask, environment


def attributes(running: SimulatedMachines, name: str = NODE) -> dict[str, str]:
    return dict(running.guest_attributes(name).get("gemma-serving", {}))


async def phase(running: SimulatedMachines, wanted: str, text: str) -> None:
    wanted_hash = hashlib.sha256(text.encode()).hexdigest()

    def reached() -> bool:
        now = attributes(running)
        return (now.get("phase"), now.get("document-hash")) == (wanted, wanted_hash)

    await until(reached, f"phase {wanted} (now {attributes(running)})")


TOKEN = "service-accounts/default/token"


def metadata_host_of_the_container(state: Path) -> str:
    """Where a program in the server's container finds the metadata server."""
    (box,) = (state / "machines").glob("*/containers/gemma-serving.json")
    environ = Path(f"/proc/{json.loads(box.read_text())['pid']}/environ").read_text()
    return dict(item.split("=", 1) for item in environ.split("\0") if "=" in item)["GCE_METADATA_HOST"]


async def statuses(host: str, *paths: str) -> list[int]:
    """What the metadata server answers."""
    found: list[int] = []
    async with aiohttp.ClientSession(headers={"Metadata-Flavor": "Google"}) as session:
        for path in paths:
            async with session.get(f"http://{host}/computeMetadata/v1/instance/{path}") as answer:
                found.append(answer.status)
    return found


def run_script(state: Path, script: str, *, name: str = NODE) -> str:
    """Boot a machine with a shell script that ends by writing `done`; returns what it wrote to its console."""

    async def run() -> str:
        async with machines(state) as running:
            await running.boot(spec("#!/bin/sh\n" + textwrap.dedent(script) + "\necho done\n", name=name))
            console = running._machines[name].folder / "serial.log"
            await until(lambda: console.exists() and console.read_text().endswith("done\n"), "the script's end")
            return console.read_text()

    return asyncio.run(run())


def downloads(state: Path) -> int:
    """How often a server on the machine downloaded weights from the hub, by the logs of all its containers."""
    logs = [*state.rglob("containers/*.log"), *state.rglob("old-logs/*.log")]
    return sum(log.read_text().count("Time spent downloading weights") for log in logs)


def test_the_real_startup_script_brings_a_server_up_changes_it_in_place_and_goes_with_the_machine(tmp_path: Path):
    """The weights are downloaded once, whatever happens to the server. The second document has an API key, and with it the path guard."""
    key = {"VLLM_API_KEY": "projects/p/secrets/s/versions/3"}
    first = document("--max-model-len=16384")
    second = document("--max-model-len=8192", GUARD_ARGUMENT, secretEnv=key)
    bearer = {"Authorization": f"Bearer {CANARY}"}
    prompt = {"prompt": "x", "max_tokens": 1}

    async def run() -> list[int]:
        async with machines(tmp_path, faults=json.dumps([{"path": "/version", "status": 418}])) as running:
            given = spec(startup_script(), **{"gemma-serving-document": first})
            await running.boot(given)
            await phase(running, "ready", first)
            assert attributes(running)["container"] == "confined"
            if sys.platform == "linux":
                host = metadata_host_of_the_container(tmp_path)
                assert await statuses(host, f"attributes/{DOCUMENT_METADATA_KEY}", TOKEN) == [200, 403]
            address = running.address(NODE, 8000)
            assert address is not None
            server = f"http://{address[0]}:{address[1]}"
            url = f"{server}/v1/models"
            assert (await asyncio.to_thread(ask, url)).json["data"][0]["max_model_len"] == 16384
            assert (await asyncio.to_thread(ask, f"{server}/invocations", prompt)).status == 200
            answers = [(await asyncio.to_thread(ask, f"{server}/version")).status for _ in range(2)]
            assert answers == [418, 200], "the scenario's fault hits the first request"
            counts = [downloads(tmp_path)]
            running.set_metadata(NODE, {**given.metadata, "gemma-serving-document": second})
            await phase(running, "ready", second)
            served = await asyncio.to_thread(ask, url, headers=bearer)
            assert served.json["data"][0]["max_model_len"] == 8192
            for path, body in (("/invocations", prompt), ("/metrics", None)):
                assert (await asyncio.to_thread(ask, server + path, body)).status == 401
                assert (await asyncio.to_thread(ask, server + path, body, headers=bearer)).status == 200
            counts.append(downloads(tmp_path))
            container = running._machines[NODE].folder / "containers" / "gemma-serving.json"
            crashed = json.loads(container.read_text())
            os.kill(crashed["pid"], signal.SIGKILL)
            await until(lambda: attributes(running)["phase"] == "retrying", "the crash is reported")
            await phase(running, "ready", second)
            assert json.loads(container.read_text())["id"] != crashed["id"]
            counts.append(downloads(tmp_path))
            await running.stop(NODE)
            assert running.address(NODE, 8000) is None
            with pytest.raises(OSError):  # noqa: PT011 - refused, or no route
                await asyncio.to_thread(ask, url)
            return counts

    assert asyncio.run(run()) == [0, 0, 0], "the agent downloaded the model while the image was pulled"
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or CANARY not in path.read_text(), path


def has_own_view(state: Path) -> bool:
    """Whether the system lets a machine have its own /mnt; without, the agent would write to the real one."""
    given = {"machine": {}, "startupScript": ""}
    subprocess.run(
        [sys.executable, "-m", "localcloud.running.shims.init_process", str(state)],
        input=json.dumps(given) + "\n",
        text=True,
        check=True,
        capture_output=True,
    )
    return json.loads((state / "machine.json").read_text())["paths"] == {}


def test_weights_from_a_bucket_are_copied_to_the_machine_and_served(tmp_path: Path):
    if not has_own_view(tmp_path / "probe"):
        pytest.skip("the system allows no mount namespaces")
    path = "/mnt/models/gemma-4-E2B-it"
    text = document(
        weights={"mode": "bucket", "uri": "gs://models/gemma", "path": path}, args=[path, "--enforce-eager", "-tp=4"]
    )

    async def run() -> None:
        async with machines(tmp_path) as running:
            await running.boot(spec(startup_script(), **{"gemma-serving-document": text}))
            await phase(running, "ready", text)
            assert (
                tmp_path / "machines" / "p-us-east5-a-n1" / "mnt" / "models" / "gemma-4-E2B-it" / "model.safetensors"
            ).exists()

    asyncio.run(run())
    assert not Path(path).exists()


def described(folder: Path, **paths: str) -> Machine:
    """A machine that does not run, with these folders in place of its own."""
    return Machine(folder=folder, accelerator="v6e-4", paths=paths)


@pytest.mark.parametrize(
    ("volume", "real"),
    [
        ("/dev/shm:/dev/shm", "{folder}/dev-shm"),
        ("/mnt/models/none:/models:ro", "{folder}/mnt/models/none"),
        ("/usr:/usr", "/usr"),
    ],
)
def test_where_a_machine_has_no_view_of_its_own_docker_keeps_its_folders_apart(tmp_path: Path, volume: str, real: str):
    machine = described(tmp_path, **{"/dev/shm": f"{tmp_path}/dev-shm", "/mnt": f"{tmp_path}/mnt"})
    wanted = docker_run.parse(["-v", volume, "img", "vllm", "serve", "m"], {})
    assert docker_run._paths(machine, wanted)[volume.split(":")[1]] == real.format(folder=tmp_path)


@pytest.mark.parametrize(
    ("devices", "detail"),
    [
        ("denied", f"The confined server could not use the accelerator: {SET_PRIVILEGED}."),
        ("absent", f"No accelerator device was found below /dev: {SET_PRIVILEGED}."),
    ],
)
def test_a_server_without_its_chips_fails_with_the_setting_to_change(tmp_path: Path, devices: str, detail: str):
    async def run() -> None:
        async with machines(tmp_path) as running:
            given = spec(startup_script(), **{"gemma-serving-document": document()})
            await running.boot(replace(given, devices=devices))
            await phase(running, "failed", document())
            assert attributes(running)["detail"].endswith(detail)

    asyncio.run(run())


def test_a_container_needs_every_chip_its_control_device_and_memory_that_it_may_lock(
    tmp_path: Path, subtests: pytest.Subtests
):
    machine = described(tmp_path)
    devices = [f"--device={tmp_path}/dev/{name}:/dev/{name}" for name in device_files("v6e-4")]
    for name, options, words in (
        ("all of them", [*devices, "--ulimit=memlock=-1"], ""),
        ("as much as Google's guide", [*devices, "--ulimit", "memlock=68719476736:68719476736"], ""),
        ("privileged", ["--privileged"], ""),
        ("no devices", ["--ulimit=memlock=-1"], "open(/dev/vfio/0): No such file or directory"),
        ("one chip is left out", [*devices[:3], devices[4], "--ulimit=memlock=-1"], "open(/dev/vfio/3)"),
        ("no control device", [*devices[:4], "--ulimit=memlock=-1"], "open(/dev/vfio/vfio)"),
        ("the limit of docker", devices, "Cannot allocate memory"),
        ("too little", [*devices, "--ulimit=memlock=8388608"], "Cannot allocate memory"),
    ):
        with subtests.test(name):
            problem = problem_of(machine, docker_run.parse([*options, "img"], {}).rights)
            assert words in problem
            assert bool(problem) is bool(words)
            denied = problem_of(replace(machine, denies_devices=True), docker_run.parse([*options, "img"], {}).rights)
            assert bool(denied) is (name != "privileged")


def test_a_script_has_its_own_view_and_none_of_the_callers_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", CANARY)
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    said = run_script(
        tmp_path, "env; which docker systemctl; python3 -c 'import sys; print(sys.version_info[:2] >= (3, 10))'"
    )
    assert CANARY not in said
    assert "PYTHONPATH" not in said
    assert "GCE_METADATA_HOST=127." in said
    assert f"{tmp_path}/machines/p-us-east5-a-n1/bin/docker" in said
    assert "True" in said


def test_docker_speaks_like_docker(tmp_path: Path):
    said = run_script(
        tmp_path,
        f"""
        docker inspect --type=image --format='{{{{.Id}}}}' img || echo "no image: $?"
        docker pull {IMAGE} || echo "denied: $?"
        TOKEN=token-of-vm@p.iam.gserviceaccount.com
        echo "$TOKEN" | docker login -u oauth2accesstoken --password-stdin https://us-docker.pkg.dev
        docker pull {IMAGE} | tail -1
        docker pull us-docker.pkg.dev/p/other/vllm:1 || echo "not found: $?"
        docker pull us-docker.pkg.dev/p/repo/broken:1 || echo "broken: $?"
        docker pull vllm/vllm-tpu@sha256:{"0" * 64} || echo "unknown: $?"
        docker pull 'Bad Name' || echo "bad: $?"
        docker run -d --name=one --net=host --privileged --log-opt=max-size=9m --log-opt=max-file=2 --label=a=b vllm/vllm-tpu:1 vllm serve simulated/tiny
        docker run -d --name=one vllm/vllm-tpu:1 vllm serve simulated/tiny || echo "conflict: $?"
        docker run -d --nmae=x img || echo "flag: $?"
        docker run -d --name=dev --device=/dev/vfio/77:/dev/vfio/77 img || echo "device: $?"
        docker inspect --format='{{{{.State.Status}}}} {{{{.State.Running}}}} {{{{.State.ExitCode}}}}' dev
        docker run --name=none --entrypoint=absent img || echo "program: $?"
        docker rm dev none
        docker logs -f one > follow.txt &
        docker inspect --format='{{{{.State.Running}}}} {{{{.State.ExitCode}}}} {{{{index .Config.Labels "a"}}}}' one
        docker ps
        docker rm one || echo "running: $?"
        docker rmi vllm/vllm-tpu:1 || echo "in use: $?"
        until docker logs one | grep -q "startup complete"; do sleep 0.05; done
        docker stop -t 5 one
        wait
        tail -1 follow.txt
        docker inspect --format='{{{{.State.Status}}}} {{{{.State.ExitCode}}}}' one
        docker rm one
        docker rmi vllm/vllm-tpu:1
        docker rmi vllm/vllm-tpu:1 || echo "no such image: $?"
        docker inspect one || echo "gone: $?"
        docker run --rm --name=two img vllm serve simulated/tiny --nonsense 2>&1 | tail -1
        docker run --rm --name=three img vllm serve simulated/tiny --nonsense > /dev/null 2>&1; echo "exit: $?"
        docker ps -a -q | wc -l
        docker compose up || echo "unknown command: $?"
        """,
    )
    for words in (
        "no image: 1",
        "Unauthenticated request",
        "denied: 1",
        "Login Succeeded",
        f"Status: Downloaded newer image for {IMAGE}",
        'Repository "other" not found',
        "received unexpected HTTP status: 502 Bad Gateway",
        "broken: 1",
        "manifest unknown",
        "unknown: 1",
        "invalid reference format",
        'The container name "/one" is already in use',
        "conflict: 125",
        "flag: 125",
        'error gathering device information while adding custom device "/dev/vfio/77": no such file or directory',
        "Run 'docker run --help' for more information\ndevice: 127\n",
        "created false 128\n",
        'exec: "absent": executable file not found in $PATH',
        "program: 127",
        "true 0 b\n",
        "\tUp\tone\n",
        "running: 1",
        'unable to remove repository reference "vllm/vllm-tpu:1"',
        "in use: 1",
        "Untagged: vllm/vllm-tpu:1\n",
        "no such image: 1",
        "INFO:     Application shutdown complete.",
        "exited 0\n",
        "Error: No such object: one",
        "gone: 1",
        "unrecognized arguments: --nonsense",
        "exit: 2",
        "unknown command: 1",
    ):
        assert words in said, words
    assert "external repository" not in said, "docker shows only the status of a registry that is broken"
    assert "\n0\n" in said


def test_a_docker_daemon_that_stops_or_is_killed_refuses_as_a_real_one_does(tmp_path: Path):
    """Words and exit codes: Docker 28.2.2's client with a daemon of 20.10.24."""
    said = run_script(
        tmp_path,
        """
        state() { docker inspect --format='{{.State.Status}} {{.State.Running}} {{.State.ExitCode}}' $1; }
        docker run -d --name=server --net=host --privileged vllm/vllm-tpu:1 vllm serve simulated/tiny
        docker run -d --name=col --restart=unless-stopped o/otelcol-google:0.135.0 --config=yaml:a
        docker run -d --name=loop --restart=unless-stopped o/otelcol-google:0.135.0 --config=env:ABSENT
        until docker logs server | grep -q "startup complete"; do sleep 0.05; done
        until [ "$(state loop)" = "restarting true 1" ]; do sleep 0.05; done
        until docker ps | grep "Restarting (1).*loop"; do sleep 0.05; done  # it runs for a moment between two restarts
        docker rm -f loop
        systemctl stop docker
        docker ps || echo "ps: $?"
        docker inspect --format=x server || echo "inspect: $?"
        docker run -d --name=x img || echo "run: $?"
        docker --version && echo "version: $?"
        systemctl start docker
        echo "server $(state server)"
        until [ "$(state col)" = "running true 0" ]; do sleep 0.05; done
        docker rm server
        docker run -d --name=server --net=host --privileged vllm/vllm-tpu:1 vllm serve simulated/tiny
        (docker logs -f server > follow.txt 2>&1; echo "logs: $? $(tail -1 follow.txt)") &
        sleep 0.5
        systemctl kill docker
        wait
        systemctl start docker
        sleep 0.5
        for each in server col; do docker inspect --format="$each {{.State.Status}} for good" $each; done
        mkdir -p broken; echo '{broken' > broken/config.json
        DOCKER_CONFIG=broken docker inspect --format='{{.Name}}' server 2> warning.txt; cat warning.txt
        touch ../disk-full
        docker pull img || echo "disk: $?"
        """,
    )
    absent = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?\n"
    for words in (
        "\tRestarting (1)\tloop\n",
        f"{absent}ps: 1\n",
        f"\n{absent}inspect: 1\n",
        f"docker: {absent}\nRun 'docker run --help' for more information\nrun: 125\n",
        "version: 0\n",
        "server exited false 0\n",
        "logs: 1 unexpected EOF\n",
        "server exited for good\n",
        "col exited for good\n",
        "/server\nWARNING: Error parsing config file (broken/config.json)",
        "no space left on device\ndisk: 1\n",
    ):
        assert words in said, (words, said)


def test_systemd_restarts_what_ends_and_stops_what_it_is_told_to(tmp_path: Path):
    said = run_script(
        tmp_path,
        """
        systemctl stop thing.service || echo "not loaded: $?"
        systemd-run --unit=thing --collect --property=Restart=always --property=RestartSec=50ms --setenv=WORD=hello \
            /bin/sh -c 'echo "$WORD from $$, home ${HOME:-none}"; exit 3'
        while [ "$(journalctl -u thing | wc -l)" -lt 3 ]; do sleep 0.05; done
        echo "state $(systemctl is-active thing)"
        systemd-run --unit=thing true || echo "again: $?"
        systemctl stop thing.service && systemctl is-active thing || echo "inactive: $?"
        journalctl -u thing -n 1
        systemd-run --unit=once --quiet true
        while systemctl reset-failed once; do sleep 0.05; done
        systemctl reset-failed once || echo "unloaded: $?"
        """,
    )
    assert "not loaded: 5" in said
    assert "Running as unit: thing.service" in said
    assert "state activ" in said  # active, or activating between two runs
    assert "already loaded" in said
    assert "inactive: 3" in said
    assert "hello from" in said
    assert "home none" in said
    assert "unloaded: 1" in said


def test_what_detaches_itself_ends_with_the_machine(tmp_path: Path):
    marker = f"sleep 61{os.getpid()}"
    script = f"""
    setsid sh -c '({marker} &) ; exec {marker}' &
    systemd-run --unit=deep --property=Restart=always sh -c 'trap "" TERM; {marker} & wait'
    sleep 0.2
    """
    said = run_script(tmp_path, script)
    assert "done" in said
    if sys.platform.startswith("linux"):
        assert processes_with(marker) == []


def processes_with(words: str) -> list[str]:
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        if words in text:
            found.append(text)
    return found


PARENT = """
import asyncio, sys
from pathlib import Path
from gemma_serving.components.startup_script import startup_script
from localcloud.tests.running.machine_world import NODE, document, machines, spec
from localcloud.tests.running.test_revisions import NAME, SERVICE, revisions, template
from localcloud.world.runtime import RevisionSpec

async def main() -> None:
    state = Path(sys.argv[1])
    async with machines(state) as running, revisions(state) as others:
        await running.boot(spec(startup_script(), **{"gemma-serving-document": document()}))
        given = template(container={"args": ["simulated/tiny", "--port=8000"]})
        await others.start(RevisionSpec(name=NAME, service=SERVICE, template=given))
        while running.guest_attributes(NODE).get("gemma-serving", {}).get("phase") != "ready":
            await asyncio.sleep(0.05)
        print("ready", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_nothing_is_left_when_the_cloud_is_killed(tmp_path: Path):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        # The parent, the init process, the supervisors of the agent and of the container.
        assert len(processes_with(str(tmp_path))) >= 4
        parent.kill()
        parent.wait(20)
    finally:
        parent.kill()
        parent.wait()

    async def gone() -> None:
        await until(lambda: not processes_with(str(tmp_path)), "the end of all processes of the cloud")

    asyncio.run(gone())


def test_accelerators_have_the_device_files_of_their_generation():
    assert device_files("v4-8") == ("accel0", "accel1", "accel2", "accel3")
    assert device_files("v5p-8") == ("vfio/0", "vfio/1", "vfio/2", "vfio/3", "vfio/vfio")
    assert device_files("v5litepod-1") == device_files("v6e-1") == ("vfio/0", "vfio/vfio")
    assert device_files("") == ()
