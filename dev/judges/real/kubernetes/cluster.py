"""A control plane on loopback: etcd, API server, controllers and scheduler."""

import os
import shutil
import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import yaml

from dev.judges.real.home import RealHome, run
from dev.judges.real.kubernetes.api import Api, RefusedError
from dev.judges.real.kubernetes.programs import Programs
from dev.judges.real.service import Service

CONTEXT: Final = "judge"
_FLAGS: Final = {
    "etcd": """--data-dir={folder}/etcd --unsafe-no-fsync --initial-cluster=default={peer} --initial-advertise-peer-urls={peer}
        --listen-peer-urls={peer} --listen-client-urls={etcd} --advertise-client-urls={etcd}""",
    "kube-apiserver": """--etcd-servers={etcd} --bind-address=127.0.0.1 --secure-port={api} --cert-dir={folder}/api
        --service-account-key-file={folder}/accounts.pub --service-account-signing-key-file={folder}/accounts.key
        --service-account-issuer=https://kubernetes.default.svc --service-cluster-ip-range=10.0.0.0/16
        --token-auth-file={folder}/tokens.csv --authorization-mode=RBAC""",
    "kube-controller-manager": """--kubeconfig={folder}/kubeconfig --use-service-account-credentials --leader-elect=false
        --bind-address=127.0.0.1 --secure-port={controllers} --cert-dir={folder}/controllers
        --service-account-private-key-file={folder}/accounts.key --root-ca-file={folder}/api/apiserver.crt
        --controllers=*,-nodeipam,-cloud-node-lifecycle,-route,-service-lb-controller
        --horizontal-pod-autoscaler-sync-period=1s""",
    "kube-scheduler": """--kubeconfig={folder}/kubeconfig --leader-elect=false
        --bind-address=127.0.0.1 --secure-port={scheduler} --cert-dir={folder}/scheduler""",
}
"""Flags of each program, in the order of their start. The controllers that are off need a cloud. The autoscaler's period is 15 s by default."""
_PORTS: Final = ("etcd", "peer", "api", "controllers", "scheduler", "adapter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A control plane that runs."""

    api: Api
    folder: Path
    """With `kubeconfig`, and `adapter.crt` and `adapter.key` for the metrics API."""
    adapter_port: int


@contextmanager
def running_cluster(home: RealHome, programs: Programs) -> Generator[Cluster]:
    """Start a control plane with an empty store, and stop it at the end."""
    folder = home.folder / "kubernetes"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ports = _free_ports()
    url = f"https://127.0.0.1:{ports['api']}"
    api = Api(url=url, token=os.urandom(16).hex(), certificate=str(folder / "api/apiserver.crt"))
    _write_secrets(folder, api)
    urls = {name: f"http://127.0.0.1:{ports[name]}" for name in ("etcd", "peer")}
    with ExitStack() as stack:
        for name, flags in _FLAGS.items():
            words = flags.format(**{"folder": folder, **ports, **urls}).split()
            service = Service([str(programs.control_plane / name), *words], home.results / f"{name}.log")
            stack.callback(service.stop)
            service.start(lambda: _is_ready(api) if name == "kube-apiserver" else True, limit_s=120)  # noqa: B023 - called at once
        yield Cluster(api=api, folder=folder, adapter_port=ports["adapter"])


def _write_secrets(folder: Path, api: Api) -> None:
    """Write the administrator's token and kubeconfig, the key of service accounts, and the adapter's certificate."""
    (folder / "tokens.csv").write_text(f'{api.token},admin,admin,"system:masters"\n', encoding="utf-8")
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": {"server": api.url, "certificate-authority": api.certificate}}],
        "users": [{"name": CONTEXT, "user": {"token": api.token}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
        "current-context": CONTEXT,
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(content), encoding="utf-8")
    for words in (
        "genrsa -out accounts.key 2048",
        "rsa -in accounts.key -pubout -out accounts.pub",
        "req -x509 -newkey rsa:2048 -nodes -keyout adapter.key -out adapter.crt -subj /CN=localhost -days 2",
    ):
        done = run(["openssl", *words.split()], folder=folder)
        if done.returncode:
            pytest.skip(f"openssl {words}: {done.stderr.strip()[-200:]}")


def _free_ports() -> dict[str, int]:
    """Return ports of loopback that were free a moment ago."""
    with ExitStack() as stack:
        found = {name: stack.enter_context(socket.socket()) for name in _PORTS}
        for one in found.values():
            one.bind(("127.0.0.1", 0))
        return {name: int(one.getsockname()[1]) for name, one in found.items()}


def _is_ready(api: Api) -> bool:
    try:
        return Path(api.certificate).is_file() and api.call("GET", "readyz").get("message") == "ok"
    except (OSError, RefusedError):
        return False
