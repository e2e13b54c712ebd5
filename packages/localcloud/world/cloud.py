"""The state that all services share, as one object."""

import asyncio
import hashlib
import json
import secrets
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcloud.json_values import JsonObject, packaged
from localcloud.world.downloads import Downloads
from localcloud.world.logs import LogEntries
from localcloud.world.oauth import Tokens
from localcloud.world.operations import LongRunningOperations
from localcloud.world.policies import Policies
from localcloud.world.runtime import FrontRuntime, MachineRuntime, RevisionRuntime
from localcloud.world.scenario import Scenario
from localcloud.world.store import ResourceStore
from localcloud.world.timeline import Clock, Timeline

REGIONS: dict[str, str] = packaged("localcloud.world", "regions.json")
"""The regions, with the letters of their zones (Compute Engine's page on regions and zones)."""

_OWNER = "owner@example.com"
"""The user who owns new projects if the operator does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtimes:
    """The runtimes of revisions, fronts and machines."""

    revisions: RevisionRuntime
    fronts: FrontRuntime
    machines: MachineRuntime


class Ids:
    """Ids and etags that the server assigns. Values queued with `assign` are used first, in order."""

    def __init__(self) -> None:
        self._ids: deque[str] = deque()
        self._etags: deque[str] = deque()

    def assign(self, ids: list[str], etags: list[str]) -> None:
        """Queue values for the next resources."""
        self._ids.extend(ids)
        self._etags.extend(etags)

    def number(self) -> str:
        """Return a numeric id."""
        return self._ids.popleft() if self._ids else random_id()

    def etag(self) -> str:
        """Return an etag for a resource (not for a policy)."""
        return self._etags.popleft() if self._etags else secrets.token_urlsafe(9) + "AA=="


def random_id() -> str:
    """Return a 19-digit number, as Google's services assign ids. It is below 2^63 because pulumi-gcp reads ids as signed 64-bit numbers."""
    return str(secrets.randbelow(8 * 10**18) + 10**18)


def project_policy(project: str) -> str:
    """Return the key of a project's IAM policy."""
    return f"//cloudresourcemanager.googleapis.com/projects/{project}"


class Cloud:
    """Store, time, identities and runtimes. One event loop owns it."""

    def __init__(self, *, state: Path, project: str, clock: Clock, scenario: Scenario) -> None:
        """Open the state in the folder `state`; a new folder starts empty."""
        self.state = state
        self.store = ResourceStore(state / "resources.sqlite")
        meta = self.store.get("meta", "time") or {"simulated_s": 0.0, "advanced_s": 0.0}
        self.timeline = Timeline(clock, simulated_s=meta["simulated_s"], advanced_s=meta["advanced_s"])
        self.project = project
        home = self.store.get("meta", "home") or self.store.put("meta", "home", {"project": project})
        self.home = str(home["project"])
        self.operator = f"local-operator@{self.home}.iam.gserviceaccount.com"
        self.scenario = scenario
        self.tokens = Tokens(state, id_token_lifetime_s=lambda: self.scenario.iam.id_token_life_s)
        self.policies = Policies(
            self.store,
            now=self.timeline.now,
            now_s=self.timeline.simulated_s,
            lag_s=lambda: self.scenario.iam.lag_s,
            organization=lambda: self.scenario.iam.organization,
        )
        self.operations = LongRunningOperations(self.store, self.timeline)
        self.logs = LogEntries(self.store, self.timeline, lag_s=lambda: self.duration_s(self.scenario.logging.lag_s))
        self.ids = Ids()
        self.written_objects: Counter[str] = Counter()
        """Number of times that this process stored each Cloud Storage object, by BUCKET/NAME."""
        self.base_url = ""
        self._runtimes: Runtimes | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.changed = asyncio.Event()
        self.downloads = Downloads(self.timeline)
        self.machine_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One lock per machine, so a power-off waits for the boot."""

    @property
    def runtimes(self) -> Runtimes:
        """Return the runtimes of revisions, fronts and machines."""
        if self._runtimes is None:
            raise RuntimeError("the runtimes have not been attached yet")
        return self._runtimes

    @property
    def owner(self) -> str:
        """Return the email address of the owner of new projects: the operator or a user."""
        iam = self.scenario.iam
        return self.operator if iam.login_is_owner and not iam.login_is_person else _OWNER

    @property
    def login(self) -> str:
        """Return the email address of the environment's credentials."""
        return _OWNER if self.scenario.iam.login_is_person else self.operator

    def may_do_everything(self, email: str) -> bool:
        """Return whether a caller is the operator and the operator owns all projects."""
        return email == self.operator == self.owner

    def attach(self, runtimes: Callable[["Cloud"], Runtimes]) -> None:
        """Create the runtimes. They need the cloud's address."""
        self._runtimes = runtimes(self)

    def duration_s(self, simulated_s: float) -> float:
        """Return a duration of the scenario in simulated seconds: 0 if operations are instant."""
        return 0.0 if self.scenario.operations.instant else simulated_s

    def machine_life_s(self) -> float:
        """Return the seconds against which the run of a machine is limited: real ones, or simulated ones if the scenario accelerates runs."""
        is_accelerated = self.scenario.tpu.accelerate_run_duration
        return self.timeline.simulated_s() if is_accelerated else self.timeline.life_s()

    async def power_off(self, machine: str) -> None:
        """Power off a machine, after its boot has finished."""
        async with self.machine_locks[machine]:
            await self.runtimes.machines.stop(machine)

    def project_number(self, project: str) -> str:
        """Return a project's number, or `0` for an unknown project."""
        document = self.store.get("projects", project)
        return "0" if document is None else str(document["projectNumber"])

    def default_account(self, project: str) -> str:
        """Return the email of a project's default service account."""
        return f"{self.project_number(project)}-compute@developer.gserviceaccount.com"

    def project_id(self, project: str) -> str | None:
        """Return the id for an id or a number, or None if the project does not exist."""
        if self.store.has("projects", project):
            return project
        for name, document in self.store.under("projects") if project.isdigit() else []:
            if document["projectNumber"] == project:
                return name
        return None

    def add_project(self, project: str, number: str | None = None) -> JsonObject:
        """Return the project. If it does not exist, create it with its owner."""
        found = self.store.get("projects", project)
        if found is not None:
            return found
        number = number or str(
            10**11 + int.from_bytes(hashlib.sha256(project.encode()).digest()[:5], "big") % (9 * 10**11)
        )
        document: JsonObject = {
            "projectId": project,
            "projectNumber": number,
            "name": project,
            "lifecycleState": "ACTIVE",
            "createTime": self.timeline.stamp(),
        }
        self.store.put("projects", project, document)
        bindings: list[JsonObject] = [
            {"role": "roles/editor", "members": [f"serviceAccount:{self.default_account(project)}"]},
            {"role": "roles/owner", "members": [self._owner_as_member]},
        ]
        self.policies.seed(project_policy(project), bindings)
        return document

    @property
    def _owner_as_member(self) -> str:
        return f"{'serviceAccount' if self.owner == self.operator else 'user'}:{self.owner}"

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background. Closing the cloud cancels it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def cancel(self) -> None:
        """Cancel all background work and wait until it has stopped."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Cancel background work, store the time, close the store."""
        await self.cancel()
        self.remember_time()
        self.store.close()

    def remember_time(self) -> None:
        """Store the elapsed time, so the next run continues from there."""
        self.store.put(
            "meta", "time", {"simulated_s": self.timeline.simulated_s(), "advanced_s": self.timeline.advanced_s}
        )


def fingerprint(document: JsonObject) -> str:
    """Return a short digest of a document, as Compute Engine uses it for optimistic locking."""
    text = json.dumps(document, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:11] + "="
