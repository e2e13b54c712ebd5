"""Part `docker`: the simulated docker against a real one, and a TPU stack's machine with a real one."""

import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from judges.real.daemon import DockerDaemon
from judges.real.docker_cases import cases
from judges.real.docker_life import STACK, DockerLife, judge_life
from judges.real.docker_machine import (
    RealMachines,
    lacks_sys_resource,
    needed_mounts,
    real_daemon,
    real_machines,
    server_variables,
)
from judges.real.docker_twins import Docker, judge_twins, simulated_docker
from judges.real.home import RealHome, run
from judges.real.rows import JudgeReport, NotJudgedError, Row
from judges.real_vllm.server import free_port

SPEED = 50.0
"""Simulated seconds per real second: a start of ten minutes takes 12 s, and Docker's own times stay real."""
SMALL_DISK_MIB = 64


def judge_docker(home: RealHome) -> Sequence[Row]:
    """Return the rows of Docker."""
    with real_machines(home, name="docker", stack=STACK, speed=SPEED) as machines:
        daemon = machines.daemon
        report = JudgeReport("Docker", f"{daemon.version} ({daemon.driver}), client {daemon.client_version}")
        _judge_twins(home, machines, report)
        with small_daemon(home) as small:
            judge_life(DockerLife(machines=machines, report=report), small)
        if lacks_sys_resource():
            reason = "root lacks CAP_SYS_RESOURCE here; a runtime in front of runc drops both"
            report.not_judged("the limit of locked memory, and CAP_SYS_RESOURCE", reason)
        report.not_judged("chips: devices are null devices", "no TPU")
        report.not_judged(
            "the metadata guard's firewall rule and control group", "no systemd and no version 2 groups in use"
        )
        return report.rows


def _judge_twins(home: RealHome, machines: RealMachines, report: JudgeReport) -> None:
    folder = home.folder / "twin"
    project = machines.project.folder
    options = [f"--volume={path}:{path}:ro" for path in needed_mounts(project)]
    options += [f"--env={name}={value}" for name, value in server_variables(project).items()]
    real = Docker(program="docker", environment=machines.daemon.environment, port=free_port(), of_run=tuple(options))
    with simulated_docker(folder, machines.image, free_port()) as simulated:
        judge_twins(report, cases(machines.image, folder), real, simulated)
    real.said(("rm", "-f", "twin"))


@contextmanager
def small_daemon(home: RealHome) -> Generator[DockerDaemon]:
    """Start a daemon whose data is on a file system that the image does not fit on."""
    with real_daemon(home, "small") as daemon:
        daemon.stop()
        data = daemon.folder / "data"
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MIB}m", "small", str(data)]
        done = run([*daemon.entering(), *mount])
        if done.returncode:
            raise NotJudgedError(f"mount of a small disk: {done.stderr.strip()}")
        daemon.start()
        yield daemon
