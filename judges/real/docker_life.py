"""The life of a TPU stack whose machine uses a real Docker, by the shipped commands: every failure that Docker can give the agent."""

import json
import re
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, cast

from contracts.exit_codes import ExitCode
from contracts.guest_attributes import FAILED, READY, WAITING_FOR_DOCKER
from judges.real.daemon import DockerDaemon
from judges.real.docker_machine import (
    COLLECTOR_CONTAINER,
    CONTAINER,
    KILLED,
    SYS_RESOURCE_BIT,
    RealMachines,
    client_folder,
    lacks_sys_resource,
)
from judges.real.home import run
from judges.real.rows import WAIT_LIMIT_S, JudgeReport, require, wait_until
from judges.real_vllm.server import DIRECT

STACK: Final = "tpu-v6e1-e4b"
HF_CANARY: Final = "hf_realCanary0123456789"
KEY_CANARY: Final = "realkeycanary0123456789"
_CAPABILITIES: Final = {"IPC_LOCK", "SYS_RESOURCE"}
_IPC_LOCK_BIT: Final = 14
_AWAY_S: Final = 20.0
_ANSWER_LIMIT_S: Final = 10.0
_COLLECTOR_LIMIT_S: Final = 100.0
_BREAKS_AFTER_BYTES: Final = 200_000
_BROKEN_PULLS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerLife:
    """One stack's life. The steps follow one another."""

    machines: RealMachines
    report: JudgeReport

    def status(self) -> Mapping[str, Any]:
        """Return the facts of `gemma status --json`."""
        return self.machines.cloud_facts(STACK)

    def until_phase(self, phase: str, limit_s: float = WAIT_LIMIT_S) -> float:
        """Wait until the machine publishes a phase, and return the seconds."""
        return wait_until(lambda: self.status().get("phase") == phase, f"phase {phase}", limit_s)

    def inspected(self, name: str = CONTAINER) -> Mapping[str, Any]:
        """Return docker's description of a container."""
        found = self.machines.daemon.docker("inspect", name)
        require(found.returncode == 0, f"no container {name}: {found.stderr.strip()}")
        return cast("Mapping[str, Any]", json.loads(found.stdout)[0])

    def address(self) -> str:
        """Return the server's address, read from the container's variables."""
        variables = dict(one.split("=", 1) for one in self.inspected()["Config"]["Env"])
        return f"http://{variables['VLLM_SIM_BIND_HOST']}:8000"


def judge_life(life: DockerLife, small: DockerDaemon) -> None:
    """Run all steps. `small` is a daemon whose disk is full before the image is on it."""
    report, machines = life.report, life.machines
    project = machines.project
    project.gemma("save_token", STACK, "hfToken", given=f"{HF_CANARY}\n")
    project.gemma("save_token", STACK, "apiKey", given=f"{KEY_CANARY}\n")
    project.configure(STACK, weights="bucket", tpu__compileCache="bucket")
    project.gemma("stage_model", STACK, "--yes")
    with report.judging("a full disk at the first pull: `gemma up` fails with the setting to change") as notes:
        machines.use(small)
        text = project.gemma("up", STACK, "--yes", allowed=(ExitCode.FAILED,))
        require("no space left on device" in text and "tpu.bootDiskSizeGb" in text, f"`gemma up` says {text[-300:]}")
        notes.append(_reason(text))
    machines.use(machines.daemon)
    project.gemma("teardown", STACK, "--yes")
    project.gemma("stage_model", STACK, "--yes")
    _judge_first_start(life)
    _judge_first_server(life)
    _judge_changes(life)
    _judge_absent_docker(life)
    _judge_collector(life)
    _judge_end(life)


def _judge_first_start(life: DockerLife) -> None:
    report = life.report
    project = life.machines.project
    relay = life.machines.relay
    with report.judging("`gemma up` through pulls that break off, and a second one changes nothing") as notes:
        relay.breaks_after = _BREAKS_AFTER_BYTES
        with project.in_background("up", STACK, "--yes") as up:
            wait_until(lambda: relay.broken >= _BROKEN_PULLS, f"{_BROKEN_PULLS} pulls that break off")
            notes.append(f"{relay.broken} connections broken off, phase {life.status().get('phase')}")
            relay.breaks_after = None
            up.result()
        project.pulumi("preview", "--expect-no-changes", "--stack", STACK)
        notes.append(f"document {str(life.status()['running'])[:12]}")


def _reason(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if "no space left" in line]
    return lines[-1][:200] if lines else ""


def _judge_first_server(life: DockerLife) -> None:
    report, machines = life.report, life.machines
    with report.judging("the image is pulled by digest"):
        require(machines.image in _images(machines.daemon), f"{machines.image} is not among the daemon's images")
    with report.judging("confinement: capabilities, no-new-privileges, devices, memory, log limits"):
        _check_confinement(life)
    with report.judging("the server's own view: its capabilities and devices") as notes:
        notes.append(_check_own_view(life))
    with report.judging("weights are copied to the disk, and the container reads them only"):
        mounts = {one["Destination"]: one for one in life.inspected()["Mounts"]}
        copies = [one for path, one in mounts.items() if path.startswith("/mnt/models")]
        require(len(copies) == 1 and copies[0]["RW"] is False, f"mounts of the weights: {sorted(mounts)}")
    with report.judging("programs are archived in the bucket"):
        listed = f"storage/storage/v1/b/local-project-gemma-{STACK}-models/o?prefix=compile-cache/"
        wait_until(lambda: machines.project.get(listed).get("items"), "an archive of programs")
    with report.judging("secrets: not in docker's command lines, logs or labels") as notes:
        notes.append(_check_secrets(life))


def _images(daemon: DockerDaemon) -> list[str]:
    return daemon.docker("images", "--digests", "--format={{.Repository}}@{{.Digest}}").stdout.split()


def _check_confinement(life: DockerLife) -> None:
    host = life.inspected()["HostConfig"]
    require(host["CapDrop"] == ["ALL"], f"CapDrop is {host['CapDrop']}")
    added = {name.removeprefix("CAP_") for name in host["CapAdd"]}
    require(added == _CAPABILITIES, f"CapAdd is {added}")
    require(host["SecurityOpt"] == ["no-new-privileges"], f"SecurityOpt is {host['SecurityOpt']}")
    require(not host["Privileged"], "the container is privileged")
    require(
        [one["PathInContainer"] for one in host["Devices"]] == ["/dev/vfio/0", "/dev/vfio/vfio"], f"{host['Devices']}"
    )
    require(host["LogConfig"]["Config"] == {"max-file": "3", "max-size": "100m"}, f"{host['LogConfig']}")
    limits = [(one["Name"], one["Hard"]) for one in host["Ulimits"]]
    require(limits == [("memlock", -1)], f"limits are {limits}")


def _check_own_view(life: DockerLife) -> str:
    status = _inside(life, "cat", "/proc/1/status")
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    wanted = 1 << _IPC_LOCK_BIT if lacks_sys_resource() else 1 << _IPC_LOCK_BIT | 1 << SYS_RESOURCE_BIT
    require(int(facts["CapBnd"], 16) == wanted, f"bounding capabilities are {facts['CapBnd']}")
    require(facts["NoNewPrivs"].strip() == "1", f"NoNewPrivs is {facts['NoNewPrivs']}")
    kinds = _inside(life, "stat", "-c", "%F", "/dev/vfio/0", "/dev/vfio/vfio").splitlines()
    require(kinds == ["character special file"] * 2, f"the devices are {kinds}")
    shm = _inside(life, "df", "--output=size", "-m", "/dev/shm").split()[-1]  # noqa: S108 - of the container
    return f"shared memory: {shm} MiB"


def _inside(life: DockerLife, *words: str) -> str:
    """Run a program in the server's container and return its output."""
    done = life.machines.daemon.docker("exec", CONTAINER, *words)
    require(done.returncode == 0, f"`docker exec {' '.join(words)}`: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def _check_secrets(life: DockerLife) -> str:
    """Look for both secrets where docker puts a container's facts."""
    machines = life.machines
    found = life.inspected()
    for canary in (HF_CANARY, KEY_CANARY):
        shown = json.dumps({key: value for key, value in found.items() if key != "Config"}) + json.dumps(
            found["Config"]["Labels"]
        )
        require(
            canary not in shown + json.dumps(found["Config"]["Cmd"]), "a secret is in the container's command or labels"
        )
        logs = machines.daemon.docker("logs", CONTAINER)
        require(canary not in logs.stdout + logs.stderr, "a secret is in the server's log")
    kept = machines.daemon.folder / "data" / "containers" / found["Id"] / "config.v2.json"
    is_kept = KEY_CANARY in kept.read_text(encoding="utf-8")
    require(HF_CANARY not in kept.read_text(encoding="utf-8"), "the hub's token reached a server that does not need it")
    return "docker keeps the API key in config.v2.json of its data folder, which only root can read" if is_kept else ""


def _judge_changes(life: DockerLife) -> None:
    report, project = life.report, life.machines.project
    with report.judging("a killed server: exit code 137, and it is ready again") as notes:
        before, began_s = life.inspected()["Id"], time.time()
        life.machines.daemon.docker("kill", CONTAINER)
        wait_until(lambda: _id(life) not in ("", before), "a new container")
        codes = life.machines.exit_codes(before, began_s)
        require(codes == [KILLED], f"the container ended with {codes}")
        notes.append(f"ready after {life.until_phase(READY):.0f} s")
    with report.judging("a warning of the client is ignored: the server continues") as notes:
        notes.append(_check_warning(life))
    with report.judging("a change in place: a running request finishes, the machine stays") as notes:
        before, machine = life.status()["running"], life.status()["machine"]
        with _long_request(life) as lines:
            project.configure(STACK, vllm__maxModelLen="8192")
            project.gemma("up", STACK, "--yes")
        after = life.status()
        require(after["running"] != before and after["machine"] == machine, f"{after}")
        require(lines[-1:] == [b"data: [DONE]"], f"the running request ended with {lines[-1:]}")
        notes.append(f"the stream had {len(lines)} lines to its end")
    with report.judging("a wrong flag: exit code 2, rolled back, and `gemma up` says why") as notes:
        project.pulumi(
            "config", "set", "--path", "gemma-serving:vllm.extraArgs[0]", "--stack", STACK, "--", "--nothing"
        )
        project.configure(STACK, **{"acceptFindings[0]": "ARG02"})
        notes.append(_rolled_back(life, "unrecognized arguments: --nothing"))
        project.pulumi("config", "rm", "--path", "gemma-serving:vllm.extraArgs", "--stack", STACK)
    with report.judging("an image without a server (127): rolled back, and `gemma up` says why") as notes:
        image = {"repository": "vllm/vllm-tpu", "digest": life.machines.empty, "version": "0.30.0"}
        project.configure(STACK, **{f"image__{name}": value for name, value in image.items()})
        notes.append(_rolled_back(life, "executable file not found in $PATH"))
    project.pulumi("config", "rm", "--path", "gemma-serving:image", "--stack", STACK)
    with report.judging("the former settings again"):
        project.gemma("up", STACK, "--yes")
        project.pulumi("preview", "--expect-no-changes", "--stack", STACK)


def _check_warning(life: DockerLife) -> str:
    """Break the client's settings, of which each command then warns on stderr, and wait for several looks of the agent."""
    before, folder = _id(life), client_folder(life.machines.program)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{broken", encoding="utf-8")
    try:
        client = {"DOCKER_HOST": life.machines.daemon.host, "DOCKER_CONFIG": str(folder)}
        warned = run(["docker", "ps"], environment=client).stderr
        require(bool(warned), "the client does not warn of broken settings")
        time.sleep(_AWAY_S)
    finally:
        shutil.rmtree(folder)
    require((_id(life), life.status()["phase"]) == (before, READY), f"{life.status()}")
    return warned.splitlines()[0][:120]


def _id(life: DockerLife) -> str:
    return life.machines.daemon.docker("inspect", "--format={{.Id}}", CONTAINER).stdout.strip()


@contextmanager
def _long_request(life: DockerLife) -> Generator[list[bytes]]:
    """Stream a long response while the body runs, and then wait for its end."""
    lines: list[bytes] = []
    address = life.address()
    body = {"model": "google/gemma-4-E4B-it", "prompt": "x", "max_tokens": 2000, "stream": True, "ignore_eos": True}
    headers = {"Authorization": f"Bearer {KEY_CANARY}", "Content-Type": "application/json"}
    asked = urllib.request.Request(f"{address}/v1/completions", data=json.dumps(body).encode(), headers=headers)  # noqa: S310

    def read() -> None:
        with suppress(OSError, urllib.error.URLError), DIRECT.open(asked, timeout=WAIT_LIMIT_S) as answer:
            lines.extend(line.strip() for line in answer if line.strip())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield lines
    thread.join(WAIT_LIMIT_S)


def _rolled_back(life: DockerLife, said: str) -> str:
    """Deploy a document that cannot start, and require the former one and the reason. Return the reason's line."""
    before = life.status()["running"]
    text = life.machines.project.gemma("up", STACK, "--yes", allowed=(ExitCode.FAILED,))
    lines = [line.strip() for line in text.splitlines() if said in line]
    require(bool(lines), f"`gemma up` does not say {said!r}: {text[-300:]}")
    facts = life.status()
    require((facts["phase"], facts["running"]) == (FAILED, before), f"after the roll-back: {facts}")
    return lines[-1][:160]


def _restarts(life: DockerLife) -> int:
    """Return how many restarts the agent's journal counts."""
    (journal,) = life.machines.project.state.glob(f"machines/*/units/{CONTAINER}-agent.log")
    return len(re.findall(r"^Restart \d+ of", journal.read_text(encoding="utf-8"), re.MULTILINE))


def _judge_absent_docker(life: DockerLife) -> None:
    report, daemon = life.report, life.machines.daemon
    with report.judging("a daemon that restarts: the agent waits for it and uses up no restart") as notes:
        restarts = _restarts(life)
        daemon.stop()
        life.until_phase(WAITING_FOR_DOCKER, 60)
        facts = life.status()
        require(not facts.get("running"), f"status says that {facts.get('running')} is served while docker is off")
        time.sleep(_AWAY_S)
        daemon.start()
        notes.append(f"ready {life.until_phase(READY):.0f} s after the daemon's start")
        require(_restarts(life) == restarts, f"{_restarts(life) - restarts} restarts were used up")
    with report.judging("a daemon that is killed: the server continues, and the next daemon ends it") as notes:
        before, health = _id(life), f"{life.address()}/health"
        daemon.kill()
        time.sleep(_AWAY_S)
        with DIRECT.open(health, timeout=_ANSWER_LIMIT_S) as answer:
            require(answer.status == HTTPStatus.OK, f"/health answers {answer.status}")
        require(life.status()["phase"] == READY, f"the phase of a server that answers is {life.status()['phase']}")
        daemon.start()
        wait_until(lambda: _id(life) not in ("", before), "a new container")
        notes.append(f"ready {life.until_phase(READY):.0f} s after it")


def _judge_collector(life: DockerLife) -> None:
    with life.report.judging("the collector runs, and one that stops after each start is reported") as notes:
        status = ("inspect", "--format={{.State.Status}} {{.State.ExitCode}}", COLLECTOR_CONTAINER)
        daemon = life.machines.daemon
        wait_until(lambda: daemon.docker(*status).stdout == "running 0\n", "a collector that runs", _COLLECTOR_LIMIT_S)
        life.machines.use(daemon, COLLECTOR_PROBLEM="broken")
        daemon.docker("stop", COLLECTOR_CONTAINER)
        said = "The collector stops after each start"
        wait_until(lambda: said in life.machines.project.gemma("logs", STACK), said)
        life.machines.use(life.machines.daemon)
        notes.append(said)


def _judge_end(life: DockerLife) -> None:
    with life.report.judging("`gemma teardown` leaves nothing, no container either"):
        life.machines.project.gemma("teardown", STACK, "--yes")
        left = life.machines.daemon.docker("ps", "--all", "--quiet").stdout.split()
        require(not left, f"containers are left: {left}")
