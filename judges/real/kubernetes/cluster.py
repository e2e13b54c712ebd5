"""A control plane on loopback: etcd, API server, controllers and scheduler, with nodes as GKE labels them."""

import os
import re
import shutil
import socket
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import yaml

from judges.real.home import RealHome, run
from judges.real.kubernetes.api import Api, RefusedError
from judges.real.kubernetes.programs import Programs
from judges.real.service import Service

CONTEXT: Final = "judge"
AUTOSCALER_PERIOD_S: Final = 1
"""How often the autoscaler reads the metric; 15 s by default."""
_USERS: Final = {
    "admin": "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
}
_OFF: Final = ("nodeipam", "cloud-node-lifecycle", "route", "service-lb-controller")
"""Controllers that need a cloud, a network or disks."""
_LISTENS: Final = {"etcd": "etcd", "kube-controller-manager": "controllers", "kube-scheduler": "scheduler"}
"""Port on which a program listens when it is ready."""
_PORTS: Final[tuple[str, ...]] = ("etcd", "peer", "api", "controllers", "scheduler")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A control plane that runs."""

    api: Api
    kubeconfig: Path
    services: Mapping[str, Service]
    adapter: tuple[int, Path, Path]
    """Port of the metrics adapter, and its certificate and key."""

    def memory(self) -> str:
        """Return the highest resident memory of each program, in MiB."""
        found: list[str] = []
        for name, service in self.services.items():
            status = Path(f"/proc/{service.process_id}/status").read_text(encoding="utf-8")
            peak = re.search(r"VmHWM:\s+(\d+) kB", status)
            found.append(f"{name} {int(peak[1]) // 1024 if peak else 0} MiB")
        return ", ".join(found)


@contextmanager
def running_cluster(home: RealHome, programs: Programs) -> Generator[Cluster]:
    """Start a control plane with an empty store, and stop it at the end."""
    folder = home.folder / "kubernetes"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ports: dict[str, int] = dict(zip((*_PORTS, "adapter"), _free_ports(len(_PORTS) + 1), strict=True))
    tokens = {user: os.urandom(16).hex() for user in _USERS}
    _write_secrets(folder, tokens)
    url = f"https://127.0.0.1:{ports['api']}"
    api = Api(url=url, token=tokens["admin"], certificate=str(folder / "api/apiserver.crt"))
    services: dict[str, Service] = {}
    with ExitStack() as stack:
        for name, words in _commands(folder, ports).items():
            command = [str(programs.control_plane / name), *words]
            services[name] = Service(command, home.results / f"{name}.log")
            stack.callback(services[name].stop)
            if name == "kube-apiserver":
                services[name].start(lambda: _is_ready(api), limit_s=120)
                for user, token in tokens.items():
                    _write_kubeconfig(folder / f"{user}.kubeconfig", url, api.certificate, user, token)
            else:
                services[name].start(partial(_listens, ports[_LISTENS[name]]))
        adapter = (ports["adapter"], folder / "adapter.crt", folder / "adapter.key")
        yield Cluster(api=api, kubeconfig=folder / "admin.kubeconfig", services=services, adapter=adapter)


def _commands(folder: Path, ports: Mapping[str, int]) -> dict[str, list[str]]:
    """Return the flags of each program, in the order of their start."""
    etcd, peer = (f"http://127.0.0.1:{ports[name]}" for name in ("etcd", "peer"))
    key = folder / "accounts.key"

    def controller(name: str, user: str) -> list[str]:
        given = [
            f"--{option}kubeconfig={folder / user}.kubeconfig" for option in ("", "authentication-", "authorization-")
        ]
        return [
            *given,
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={ports[name]}",
            f"--cert-dir={folder / name}",
        ]

    return {
        "etcd": [
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        ],
        "kube-apiserver": [
            f"--etcd-servers={etcd}",
            f"--secure-port={ports['api']}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={folder / 'api'}",
            f"--service-account-key-file={folder / 'accounts.pub'}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/16",
        ],
        "kube-controller-manager": [
            *controller("controllers", "system:kube-controller-manager"),
            f"--service-account-private-key-file={key}",
            f"--root-ca-file={folder / 'api/apiserver.crt'}",
            "--use-service-account-credentials",
            f"--controllers=*,{','.join(f'-{name}' for name in _OFF)}",
            f"--horizontal-pod-autoscaler-sync-period={AUTOSCALER_PERIOD_S}s",
        ],
        "kube-scheduler": controller("scheduler", "system:kube-scheduler"),
    }


def _write_secrets(folder: Path, tokens: Mapping[str, str]) -> None:
    """Write the key of service accounts, the adapter's certificate and the users' tokens."""
    rows = [f'{token},{user},{user},"{_USERS[user]}"' for user, token in tokens.items()]
    (folder / "tokens.csv").write_text("\n".join([*rows, ""]), encoding="utf-8")
    adapter = ["-keyout", "adapter.key", "-out", "adapter.crt", "-subj", "/CN=localhost", "-days", "2"]
    for words in (
        ["genrsa", "-out", "accounts.key", "2048"],
        ["rsa", "-in", "accounts.key", "-pubout", "-out", "accounts.pub"],
        ["req", "-x509", "-newkey", "rsa:2048", "-nodes", *adapter],
    ):
        done = run(["openssl", *words], folder=folder)
        if done.returncode:
            pytest.skip(f"openssl {words[0]}: {done.stderr.strip()[-200:]}")


def _write_kubeconfig(path: Path, url: str, certificate: str, user: str, token: str) -> None:
    """Write a kubeconfig with one context."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": {"server": url, "certificate-authority": certificate}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": user}}],
        "current-context": CONTEXT,
    }
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    path.chmod(0o600)


def _free_ports(count: int) -> list[int]:
    """Return ports of loopback that were free a moment ago."""
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


def _is_ready(api: Api) -> bool:
    try:
        return Path(api.certificate).is_file() and api.call("GET", "readyz").get("message") == "ok"
    except (OSError, RefusedError):
        return False


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
