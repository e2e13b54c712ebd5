"""Part `docker`: the simulated docker against a real one, and the life of a TPU stack whose machine has a real one, by the shipped commands.

The life has every failure that Docker can give the agent. Its tests follow one another.
"""

import json
import re
import shutil
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from types import SimpleNamespace

import pytest

from dev.judges.planted import refuse_planted
from dev.judges.real.docker_machine import (
    COLLECTOR_CONTAINER,
    CONTAINER,
    KILLED,
    SYS_RESOURCE_BIT,
    RealMachines,
    client_folder,
    lacks_sys_resource,
    needed_mounts,
    real_daemon,
    real_machines,
    server_variables,
)
from dev.judges.real.docker_twins import NAME, Docker, Said, cases, simulated_docker, values_of
from dev.judges.real.home import WAIT_LIMIT_S, run, wait_until
from dev.judges.real_vllm.server import DIRECT, free_port
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.guest_attributes import FAILED, READY, WAITING_FOR_DOCKER

STACK = "tpu-v6e1-e4b"
SPEED = 50.0
"""Simulated seconds per real second: a start of ten minutes takes 12 s, and Docker's own times stay real."""
SMALL_DISK_MIB = 64
HF_CANARY = "hf_realCanary0123456789"
KEY_CANARY = "realkeycanary0123456789"
CAPABILITIES = {"IPC_LOCK", "SYS_RESOURCE"}
IPC_LOCK_BIT = 14
AWAY_S = 20.0
ANSWER_LIMIT_S = 10.0
COLLECTOR_LIMIT_S = 100.0
BREAKS_AFTER_BYTES = 200_000
BROKEN_PULLS = 2


def planted_lie():
    answers = [Said(code=code, output="", errors="") for code in (0, 1)]
    both = [SimpleNamespace(said=lambda _, answer=answer: answer) for answer in answers]
    lie = "a docker with another exit code answers the same"
    refuse_planted(lie, lambda: TestSimulatedDocker().test_both_answer_the_same(both, cases()[0]))


@pytest.fixture(scope="module")
def machines(home, judge):
    with real_machines(home, name="docker", stack=STACK, speed=SPEED) as found:
        daemon = found.daemon
        judge(f"Docker {daemon.version} ({daemon.driver}), client {daemon.client_version}")
        yield found


@pytest.fixture(scope="class")
def twins(home, machines):
    """A real docker and the simulated one."""
    folder, project = home.folder / "twin", machines.project.folder
    options = [f"--volume={path}:{path}:ro" for path in needed_mounts(project)]
    options += [f"--env={name}={value}" for name, value in server_variables(project).items()]
    values, others = (values_of(machines.image, folder, free_port()) for _ in range(2))
    real = Docker(program="docker", environment=machines.daemon.environment, values=values, of_run=options)
    with simulated_docker(folder, others) as simulated:
        yield real, simulated
    real.said(("rm", "-f", NAME))


class TestSimulatedDocker:
    @pytest.mark.parametrize("case", cases(), ids=lambda case: case.claim)
    def test_both_answer_the_same(self, twins, case):
        """Simulated docker."""
        real, simulated = twins
        for words in case.before:
            real.said(words)
            simulated.said(words)
        ours, theirs = simulated.said(case.argv), real.said(case.argv)
        for field in case.compared:
            found, wanted = getattr(ours, field), getattr(theirs, field)
            assert found == wanted, f"{field}: docker gives {wanted!r}, the simulated one {found!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerLife:
    """One stack's life."""

    machines: RealMachines

    @property
    def project(self):
        return self.machines.project

    @property
    def daemon(self):
        return self.machines.daemon

    def status(self):
        """Return the facts of `gemma status --json`."""
        return self.machines.cloud_facts(STACK)

    def until_phase(self, phase, limit_s=WAIT_LIMIT_S):
        """Wait until the machine publishes a phase, and return the seconds."""
        return wait_until(lambda: self.status().get("phase") == phase, f"phase {phase}", limit_s)

    def inspected(self):
        """Return docker's description of the server's container."""
        found = self.daemon.docker("inspect", CONTAINER)
        assert found.returncode == 0, f"no container {CONTAINER}: {found.stderr.strip()}"
        return json.loads(found.stdout)[0]

    def inside(self, *words):
        """Run a program in the server's container and return its output."""
        done = self.daemon.docker("exec", CONTAINER, *words)
        assert done.returncode == 0, f"`docker exec {' '.join(words)}`: {(done.stderr or done.stdout).strip()}"
        return done.stdout

    def address(self):
        """Return the server's address, read from the container's variables."""
        variables = dict(one.split("=", 1) for one in self.inspected()["Config"]["Env"])
        return f"http://{variables['VLLM_SIM_BIND_HOST']}:8000"

    def restarts(self):
        """Return how many restarts the agent's journal counts."""
        (journal,) = self.project.state.glob(f"machines/*/units/{CONTAINER}-agent.log")
        return len(re.findall(r"^Restart \d+ of", journal.read_text(encoding="utf-8"), re.MULTILINE))

    def rolled_back(self, said):
        """Deploy a document that cannot start, and require the former one and the reason. Return the reason's line."""
        before = self.status()["running"]
        text = self.project.gemma("up", STACK, "--yes", allowed=(ExitCode.FAILED,))
        lines = [line.strip() for line in text.splitlines() if said in line]
        assert lines, f"`gemma up` does not say {said!r}: {text[-300:]}"
        facts = self.status()
        assert (facts["phase"], facts["running"]) == (FAILED, before), f"after the roll-back: {facts}"
        return lines[-1][:160]

    @contextmanager
    def long_request(self):
        """Stream a long response while the body runs, and then wait for its end."""
        lines = []
        body = {"model": "google/gemma-4-E4B-it", "prompt": "x", "max_tokens": 2000, "stream": True, "ignore_eos": True}
        headers = {"Authorization": f"Bearer {KEY_CANARY}", "Content-Type": "application/json"}
        address = f"{self.address()}/v1/completions"
        asked = urllib.request.Request(address, data=json.dumps(body).encode(), headers=headers)  # noqa: S310 - the machine

        def read():
            with suppress(OSError, urllib.error.URLError), DIRECT.open(asked, timeout=WAIT_LIMIT_S) as answer:
                lines.extend(line.strip() for line in answer if line.strip())

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        yield lines
        thread.join(WAIT_LIMIT_S)


@pytest.fixture(scope="module")
def life(machines):
    """A stack with its secrets and staged weights that was never deployed."""
    project = machines.project
    project.gemma("save_token", STACK, "hfToken", given=f"{HF_CANARY}\n")
    project.gemma("save_token", STACK, "apiKey", given=f"{KEY_CANARY}\n")
    project.configure(STACK, weights="bucket", tpu__compileCache="bucket")
    project.gemma("stage_model", STACK, "--yes")
    return DockerLife(machines=machines)


@pytest.fixture
def small(home):
    """A daemon whose data is on a file system that the image does not fit on."""
    with real_daemon(home, "small") as daemon:
        daemon.stop()
        data = daemon.folder / "data"
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MIB}m", "small", str(data)]
        done = run([*daemon.entering(), *mount])
        if done.returncode:
            pytest.skip(f"mount of a small disk: {done.stderr.strip()}")
        daemon.start()
        yield daemon


def test_full_disk(life, small, notes):
    """A full disk at the first pull: `gemma up` fails with the setting to change."""
    life.machines.use(small)
    text = life.project.gemma("up", STACK, "--yes", allowed=(ExitCode.FAILED,))
    assert "no space left on device" in text, f"`gemma up` says {text[-300:]}"
    assert "tpu.bootDiskSizeGb" in text, f"`gemma up` says {text[-300:]}"
    notes.append([line.strip() for line in text.splitlines() if "no space left" in line][-1][:200])


@pytest.fixture(scope="module")
def stack(life):
    """The same stack after the full disk: torn down, on the large disk, its weights staged again."""
    life.machines.use(life.daemon)
    life.project.gemma("teardown", STACK, "--yes")
    life.project.gemma("stage_model", STACK, "--yes")
    return life


def test_broken_pulls(stack, notes):
    """`gemma up` through pulls that break off, and a second one changes nothing."""
    relay = stack.machines.relay
    relay.breaks_after = BREAKS_AFTER_BYTES
    with stack.project.in_background("up", STACK, "--yes") as up:
        wait_until(lambda: relay.broken >= BROKEN_PULLS, f"{BROKEN_PULLS} pulls that break off")
        notes.append(f"{relay.broken} connections broken off, phase {stack.status().get('phase')}")
        relay.breaks_after = None
        up.result()
    stack.project.pulumi("preview", "--expect-no-changes", "--stack", STACK)
    notes.append(f"document {str(stack.status()['running'])[:12]}")


def test_pulled_by_digest(stack):
    """The image is pulled by digest."""
    found = stack.daemon.docker("images", "--digests", "--format={{.Repository}}@{{.Digest}}").stdout.split()
    assert stack.machines.image in found, f"{stack.machines.image} is not among the daemon's images"


def test_confinement(stack):
    """Confinement: capabilities, no-new-privileges, devices, memory, log limits."""
    host = stack.inspected()["HostConfig"]
    assert host["CapDrop"] == ["ALL"], f"CapDrop is {host['CapDrop']}"
    added = {name.removeprefix("CAP_") for name in host["CapAdd"]}
    assert added == CAPABILITIES, f"CapAdd is {added}"
    assert host["SecurityOpt"] == ["no-new-privileges"], f"SecurityOpt is {host['SecurityOpt']}"
    assert not host["Privileged"], "the container is privileged"
    devices = [one["PathInContainer"] for one in host["Devices"]]
    assert devices == ["/dev/vfio/0", "/dev/vfio/vfio"], f"the devices are {devices}"
    assert host["LogConfig"]["Config"] == {"max-file": "3", "max-size": "100m"}, f"{host['LogConfig']}"
    limits = [(one["Name"], one["Hard"]) for one in host["Ulimits"]]
    assert limits == [("memlock", -1)], f"limits are {limits}"


def test_own_view(stack, notes):
    """The server's own view: its capabilities and devices."""
    status = stack.inside("cat", "/proc/1/status")
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    wanted = 1 << IPC_LOCK_BIT if lacks_sys_resource() else 1 << IPC_LOCK_BIT | 1 << SYS_RESOURCE_BIT
    assert int(facts["CapBnd"], 16) == wanted, f"bounding capabilities are {facts['CapBnd']}"
    assert facts["NoNewPrivs"].strip() == "1", f"NoNewPrivs is {facts['NoNewPrivs']}"
    kinds = stack.inside("stat", "-c", "%F", "/dev/vfio/0", "/dev/vfio/vfio").splitlines()
    assert kinds == ["character special file"] * 2, f"the devices are {kinds}"
    shm = stack.inside("df", "--output=size", "-m", "/dev/shm").split()[-1]
    notes.append(f"shared memory: {shm} MiB")


def test_sys_resource(stack):
    """The limit of locked memory, and CAP_SYS_RESOURCE."""
    if lacks_sys_resource():
        pytest.skip("root lacks CAP_SYS_RESOURCE here; a runtime in front of runc drops both")
    limits = stack.inside("cat", "/proc/1/limits")
    assert re.search(r"^Max locked memory +unlimited", limits, re.MULTILINE), limits


def test_weights(stack):
    """Weights are copied to the disk, and the container reads them only."""
    mounts = {one["Destination"]: one for one in stack.inspected()["Mounts"]}
    copies = [one for path, one in mounts.items() if path.startswith("/mnt/models")]
    assert [one["RW"] for one in copies] == [False], f"mounts of the weights: {sorted(mounts)}"


def test_programs(stack):
    """Programs are archived in the bucket."""
    listed = f"storage/storage/v1/b/local-project-gemma-{STACK}-models/o?prefix=compile-cache/"
    wait_until(lambda: stack.project.get(listed).get("items"), "an archive of programs")


def test_secrets(stack, notes):
    """Secrets: not in docker's command lines, logs or labels."""
    found = stack.inspected()
    shown = json.dumps({key: value for key, value in found.items() if key != "Config"})
    shown += json.dumps(found["Config"]["Labels"]) + json.dumps(found["Config"]["Cmd"])
    logs = stack.daemon.docker("logs", CONTAINER)
    for canary in (HF_CANARY, KEY_CANARY):
        assert canary not in shown, "a secret is in the container's command or labels"
        assert canary not in logs.stdout + logs.stderr, "a secret is in the server's log"
    kept = (stack.daemon.folder / "data/containers" / found["Id"] / "config.v2.json").read_text(encoding="utf-8")
    assert HF_CANARY not in kept, "the hub's token reached a server that does not need it"
    if KEY_CANARY in kept:
        notes.append("docker keeps the API key in config.v2.json of its data folder, which only root can read")


def test_killed_server(stack, notes):
    """A killed server: exit code 137, and it is ready again."""
    before, began_s = stack.machines.container(), time.time()
    stack.daemon.docker("kill", CONTAINER)
    stack.machines.until_new_container(before)
    codes = stack.machines.exit_codes(before, began_s)
    assert codes == [KILLED], f"the container ended with {codes}"
    notes.append(f"ready after {stack.until_phase(READY):.0f} s")


def test_warning(stack, notes):
    """A warning of the client is ignored: the server continues."""
    before, folder = stack.machines.container(), client_folder(stack.machines.program)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{broken", encoding="utf-8")
    try:
        client = {"DOCKER_HOST": stack.daemon.host, "DOCKER_CONFIG": str(folder)}
        warned = run(["docker", "ps"], environment=client).stderr
        assert warned, "the client does not warn of broken settings"
        time.sleep(AWAY_S)  # several looks of the agent
    finally:
        shutil.rmtree(folder)
    assert (stack.machines.container(), stack.status()["phase"]) == (before, READY), f"{stack.status()}"
    notes.append(warned.splitlines()[0][:120])


def test_change_in_place(stack, notes):
    """A change in place: a running request finishes, the machine stays."""
    before, machine = stack.status()["running"], stack.status()["machine"]
    with stack.long_request() as lines:
        stack.project.configure(STACK, vllm__maxModelLen="8192")
        stack.project.gemma("up", STACK, "--yes")
    after = stack.status()
    assert after["running"] != before, f"{after}"
    assert after["machine"] == machine, f"{after}"
    assert lines[-1:] == [b"data: [DONE]"], f"the running request ended with {lines[-1:]}"
    notes.append(f"the stream had {len(lines)} lines to its end")


def test_wrong_flag(stack, notes):
    """A wrong flag: exit code 2, rolled back, and `gemma up` says why."""
    extra = ("--path", "gemma-serving:vllm.extraArgs[0]", "--stack", STACK)
    stack.project.pulumi("config", "set", *extra, "--", "--nothing")
    stack.project.configure(STACK, **{"acceptFindings[0]": "ARG02"})
    notes.append(stack.rolled_back("unrecognized arguments: --nothing"))
    stack.project.pulumi("config", "rm", "--path", "gemma-serving:vllm.extraArgs", "--stack", STACK)


def test_image_without_a_server(stack, notes):
    """An image without a server (127): rolled back, and `gemma up` says why."""
    image = {"repository": "vllm/vllm-tpu", "digest": stack.machines.empty, "version": "0.30.0"}
    stack.project.configure(STACK, **{f"image__{name}": value for name, value in image.items()})
    notes.append(stack.rolled_back("executable file not found in $PATH"))


def test_former_settings(stack):
    """The former settings again."""
    stack.project.pulumi("config", "rm", "--path", "gemma-serving:image", "--stack", STACK)
    stack.project.gemma("up", STACK, "--yes")
    stack.project.pulumi("preview", "--expect-no-changes", "--stack", STACK)


def test_restarting_daemon(stack, notes):
    """A daemon that restarts: the agent waits for it and uses up no restart."""
    restarts = stack.restarts()
    stack.daemon.stop()
    stack.until_phase(WAITING_FOR_DOCKER, 60)
    facts = stack.status()
    assert not facts.get("running"), f"status says that {facts.get('running')} is served while docker is off"
    time.sleep(AWAY_S)  # as long as the agent polls several times
    stack.daemon.start()
    notes.append(f"ready {stack.until_phase(READY):.0f} s after the daemon's start")
    assert stack.restarts() == restarts, f"{stack.restarts() - restarts} restarts were used up"


def test_killed_daemon(stack, notes):
    """A daemon that is killed: the server continues, and the next daemon ends it."""
    before, health = stack.machines.container(), f"{stack.address()}/health"
    stack.daemon.kill()
    time.sleep(AWAY_S)  # as long as the agent polls several times
    with DIRECT.open(health, timeout=ANSWER_LIMIT_S) as answer:
        assert answer.status == HTTPStatus.OK, f"/health answers {answer.status}"
    assert stack.status()["phase"] == READY, f"the phase of a server that answers is {stack.status()['phase']}"
    stack.daemon.start()
    stack.machines.until_new_container(before)
    notes.append(f"ready {stack.until_phase(READY):.0f} s after it")


def test_collector(stack, notes):
    """The collector runs, and one that stops after each start is reported."""
    status = ("inspect", "--format={{.State.Status}} {{.State.ExitCode}}", COLLECTOR_CONTAINER)
    running = "running 0\n"
    wait_until(lambda: stack.daemon.docker(*status).stdout == running, "a collector that runs", COLLECTOR_LIMIT_S)
    stack.machines.use(stack.daemon, COLLECTOR_PROBLEM="broken")
    stack.daemon.docker("stop", COLLECTOR_CONTAINER)
    said = "The collector stops after each start"
    wait_until(lambda: said in stack.project.gemma("logs", STACK), said)
    stack.machines.use(stack.daemon)
    notes.append(said)


def test_teardown(stack):
    """`gemma teardown` leaves nothing, no container either."""
    stack.project.gemma("teardown", STACK, "--yes")
    left = stack.daemon.docker("ps", "--all", "--quiet").stdout.split()
    assert not left, f"containers are left: {left}"


@pytest.mark.skip(reason="no TPU")
def test_chips():
    """Chips: devices are null devices."""


@pytest.mark.skip(reason="no systemd and no version 2 groups in use")
def test_metadata_guard():
    """The metadata guard's firewall rule and control group."""
