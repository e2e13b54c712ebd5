"""An idle local cloud, with a small client."""

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import requests
from hypothesis import settings

from localcloud.callers import SHARED_QUOTA_HEADER
from localcloud.tests import idle_cloud
from localcloud.world.scenario import Images, OperationDurations, Scenario

# Alone: a property's example may take long on a busy machine, and each run draws the same. From the repository's root its profiles hold.
if settings.get_current_profile_name() not in {"project", "part", "long"}:
    settings.register_profile("alone", deadline=None, derandomize=True)
    settings.load_profile("alone")

PROJECT = "local-project"
PROJECT_POLICY = f"/cloudresourcemanager/v1/projects/{PROJECT}"
ALICE = "user:alice@example.com"
IMAGES = Images(
    existing=(
        *Images().existing,
        "docker.io/x",
        "docker.io/x:fails",
        "docker.io/y",
        "docker.io/vllm/vllm-openai:v1",
        # That of gcloud's commands.
        "us-east4-docker.pkg.dev/local-project/listrepo/vllm/vllm-tpu:v1@sha256:" + "a" * 64,
    ),
    docker_hub_pulls=100_000,
)
"""What the tests of services deploy."""
SCENARIO = Scenario(operations=OperationDurations(instant=True), images=IMAGES)


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an asynchronous test, within two minutes."""

    @functools.wraps(test)
    def run(*arguments: Any, **options: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **options), 120))

    return run


class _JumpingSelector(selectors.DefaultSelector):
    """Moves the clock of its loop to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        assert found or timeout is not None, "every task waits for something that nothing here brings about"
        if not found and timeout:
            self.now_s += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time moves to the next timer when every task waits, so that nothing takes time and no machine is too slow.

    Not with sockets or processes: time would run ahead of them.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def in_virtual_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test without sockets or processes on a virtual clock."""

    @functools.wraps(test)
    def run(*arguments: Any, **options: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*arguments, **options))

    return run


@dataclass
class Client:
    """Speaks JSON with a bearer token."""

    base_url: str
    token: str
    session: requests.Session = field(default_factory=requests.Session)
    headers: dict[str, str] = field(default_factory=dict[str, str])

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, dict[str, Any]]:
        headers = self.headers | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
        response = self.session.request(
            method, self.base_url + path, json=body, params=query, headers=headers, timeout=30
        )
        return response.status_code, response.json() if response.content else {}

    def ok(self, method: str, path: str, body: Any = None, **query: Any) -> dict[str, Any]:
        status, answer = self.call(method, path, body, **query)
        assert status < 300, (status, answer)
        return answer

    def as_caller(self, email: str, **headers: str) -> "Client":
        """Return a client with a token of another account."""
        token = self.ok("POST", "/admin/tokens", {"email": email})["accessToken"]
        return Client(self.base_url, token, headers=headers)

    def error(self, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, str]:
        status, answer = self.call(method, path, body, **query)
        assert status >= 400, answer
        return status, answer["error"]["message"]


def gcloud_itself() -> dict[str, str]:
    """Return the headers of the gcloud stand-in, whose calls need no quota project."""
    return {SHARED_QUOTA_HEADER: "gcloud"}


def grant(client: Client, policy: str, role: str, expression: str = "", member: str = ALICE) -> None:
    """Add a binding to the policy at a path, as a client does: read, change, write."""
    is_project = policy.startswith("/cloudresourcemanager/")
    body = {"options": {"requestedPolicyVersion": 3}} if is_project else None
    version = {} if is_project else {"options.requestedPolicyVersion": 3}
    verb = "POST" if is_project or "/serviceAccounts/" in policy else "GET"
    found = client.ok(verb, f"{policy}:getIamPolicy", body, **version)
    condition = {"condition": {"title": "t", "expression": expression}} if expression else {}
    binding = {"role": role, "members": [member], **condition}
    bindings = [*found.get("bindings", []), binding]
    client.ok("POST", f"{policy}:setIamPolicy", {"policy": {**found, "version": 3, "bindings": bindings}})


@pytest.fixture(scope="session")
def shared_cloud() -> Iterator[idle_cloud.Started]:
    """One cloud for tests that use names of their own."""
    with idle_cloud.start(scenario=SCENARIO) as cloud:
        yield cloud


@pytest.fixture
def client(shared_cloud: idle_cloud.Started) -> Client:
    return Client(shared_cloud.base_url, shared_cloud.token)


@pytest.fixture
def own_cloud() -> Iterator[idle_cloud.Started]:
    """A cloud of the test's own."""
    with idle_cloud.start(scenario=SCENARIO) as cloud:
        yield cloud


@pytest.fixture
def own_client(own_cloud: idle_cloud.Started) -> Client:
    return Client(own_cloud.base_url, own_cloud.token)
