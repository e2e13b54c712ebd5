"""Random schedules: whatever happens in whichever order, one more `up` and `destroy` leave nothing of ours, and nothing of others was touched.

`EXAMPLES` says how many each suite draws.
"""

import random
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as given_by
from hypothesis import strategies as st

from gcp_tpu_provider.desired_state import urn_hash
from gcp_tpu_provider.errors import GoogleError
from gcp_tpu_provider.tests.cloud import FakeTpu, Queued
from gcp_tpu_provider.tests.compute_cloud import FakeCompute
from gcp_tpu_provider.tests.conftest import examples
from gcp_tpu_provider.tests.harness import URN, Aborted, FakeEngine, wanted

ZONES = ("us-east5-a", "us-east5-b", "europe-west4-a", "asia-northeast1-b")
EXAMPLES = examples(test=40, part=150, night=2000)
LATE_S = (0.0, 0.0, 0.0, 0.01, 0.06, 0.11)
"""When a commit becomes visible. The harness waits 0.05 s for a lost answer in an update, and 0.1 s in a deletion or a refresh."""

HOURS = (0.0, 0.0, 0.5, 3.0, 3.5, 4.5)
"""How much time passes before a step. A run lasts four hours: in its last hour, or its last three, it is renewed."""

TIMEOUT_S = 0.15
"""The custom timeout of an update: some capacity never comes."""


ANOTHER = {"gemma-serving-urn": urn_hash("another")}
IMAGE = "projects/p-images/global/images/family/f"


def wish_of(wish: dict[str, Any]) -> dict[str, Any]:
    """Return a program's inputs. Compute Engine has no renewal, and takes an image."""
    on_compute = wish.get("api") == "compute-engine"
    return wanted(**wish, **({"runtimeVersion": IMAGE, "renewBeforeS": None} if on_compute else {}))


def given(body: dict[str, Any]) -> dict[str, Any]:
    """Return the given fields, without the fields that Google adds."""
    return {key: value for key, value in body.items() if key != "resourceStatus"}


def is_ours(item: Queued) -> bool:
    return urn_hash(URN) in str(item.body)


class KilledError(Exception):
    """The process ends here."""


SCRIPTS = st.sampled_from(
    [
        ("ACTIVE",),
        ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"),
        ("CREATING", "WAITING_FOR_RESOURCES"),
        ("CREATING", "FAILED:no capacity"),
        ("WAITING_FOR_RESOURCES", "SUSPENDED"),
        ("CREATING", "PROVISIONING", "FAILED:it broke", "ACTIVE"),
    ]
)
WISHES = st.fixed_dictionaries(
    {
        "zones": st.lists(st.sampled_from(ZONES), min_size=1, max_size=3, unique=True),
        "acceleratorType": st.sampled_from(["v6e-4", "v6e-4", "v6e-8"]),
        "allowReplaceActive": st.booleans(),
        "tags": st.sampled_from([["serve"], ["serve", "other"]]),
        "renewBeforeS": st.sampled_from([None, 3600, 3600, 10800]),
    }
)
FAULTS = st.lists(
    st.tuples(
        st.sampled_from(["POST", "POST", "GET", "DELETE", "PATCH", "/locations", ""]),
        st.sampled_from(["lost", "dropped", "unsent", "503", "limited"]),
    ),
    max_size=3,
)
ENDS = st.one_of(
    st.none(),
    st.tuples(st.sampled_from(["kill before", "kill after", "cancel"]), st.integers(1, 60)),
    st.tuples(st.sampled_from(["kill before", "kill after"]), st.just(0)),  # 0: at the request itself
)
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "do": st.sampled_from(["up", "up", "up", "refresh", "destroy", "vanish"]),
            "wish": WISHES,
            "faults": FAULTS,
            "end": ENDS,
            "late_s": st.sampled_from(LATE_S),
            "hours": st.sampled_from(HOURS),
        }
    ),
    min_size=1,
    max_size=5,
)


class Ending:
    """Ends a step at its n-th call, or at its request if n is 0: by a kill before or after the call, or by Ctrl-C."""

    def __init__(self, engine: FakeEngine, end: tuple[str, int] | None) -> None:
        self.engine, self.end = engine, end
        self.seen, self.armed, self.killed = 0, False, False

    def __call__(self, call: str) -> None:
        if self.killed or self.armed:
            self.kill()
        if self.end is None:
            return
        how, at = self.end
        self.seen += 1
        if self.seen != at and not (at == 0 and call.startswith("POST")):
            return
        if how == "cancel":
            self.engine.provider.cancel_all()
        elif how == "kill after":
            self.armed = True
        else:
            self.kill()

    def kill(self) -> None:
        self.killed = True
        raise KilledError


@dataclass
class BothApis:
    """The transport: each call reaches the API of its path."""

    tpu: FakeTpu
    compute: FakeCompute

    async def call(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        return await (self.compute if path.startswith("compute/") else self.tpu).call(method, path, **more)

    def now(self) -> datetime:
        return self.tpu.now()

    async def close(self) -> None:
        return None


class World:
    """A cloud with strangers in it, and what a schedule does to it."""

    def __init__(
        self,
        scripts: dict[str, tuple[str, ...]],
        strangers: set[str],
        refused: set[str],
        instances: dict[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.cloud = FakeTpu(scripts=scripts, zones=ZONES)
        self.compute = FakeCompute(scripts=instances or {}, zones=ZONES, faults=self.cloud.faults)
        self.clouds = (self.cloud, self.compute)
        self.engine = FakeEngine(BothApis(self.cloud, self.compute))  # type: ignore[arg-type] - a transport too
        for cloud in self.clouds:
            for zone in refused:
                cloud.refusals[zone] = GoogleError(403, "PERMISSION_DENIED", "no")
            for zone in sorted(strangers):
                identifier = {"asia-northeast1-b": "serve", "us-east5-b": "serve-b"}.get(zone, "serve-too")
                cloud.add_stranger(zone, identifier, ANOTHER)
        self.strangers = self.others()

    def others(self) -> dict[str, Any]:
        """Return what is not ours, as it is now."""
        found = {name: item for cloud in self.clouds for name, item in cloud.queued.items() if not is_ours(item)}
        return deepcopy({name: (given(item.body), item.created) for name, item in found.items()})

    def ours(self) -> list[str]:
        return [name for cloud in self.clouds for name, item in cloud.queued.items() if is_ours(item)]

    def known_api(self, wished: str) -> str:
        """Return the API that a program may name: a creation looks at that one only, so whoever killed one keeps to it."""
        state = self.engine.state
        recorded = str(state.inputs["api"]) if state else ""
        held = {"cloud-tpu": self.cloud, "compute-engine": self.compute}
        lost = [api for api, cloud in held.items() if api != recorded and any(map(is_ours, cloud.queued.values()))]
        return lost[0] if lost else wished

    def vanish(self) -> None:
        """Somebody deletes the oldest of ours."""
        for cloud in self.clouds:
            found = next((item for item in cloud.queued.values() if is_ours(item)), None)
            if found is not None:
                cloud.drop(found)
                return

    def stop(self) -> None:
        """Somebody stops our instance."""
        for item in self.compute.queued.values():
            if is_ours(item) and item.state == "RUNNING":
                item.state = "TERMINATED"
                item.steps.clear()

    def play(self, step: dict[str, Any]) -> None:
        """Do one step. A kill leaves the state as it was before the step, whatever the provider says at its end."""
        engine, wish = self.engine, step["wish"]
        if "api" in wish:
            wish = wish | {"api": self.known_api(wish["api"])}
        before, ended = deepcopy(engine.state), Ending(engine, step["end"])
        self.cloud.faults.extend(step["faults"])
        self.compute.busy = step.get("busy", 0)
        self.compute.change_errors.extend(step.get("change_errors", ()))
        self.compute.rivals = dict.fromkeys(step.get("rivals", ()), ANOTHER)
        for cloud in self.clouds:
            cloud.hidden_s = step["late_s"]
            cloud.pass_time(step["hours"])
            cloud.on_call = ended
        actions = {
            "up": lambda: engine.up(wish_of(wish), timeout_s=TIMEOUT_S),
            "refresh": self.refresh,
            "destroy": engine.destroy,
            "vanish": self.vanish,
            "stop": self.stop,
        }
        with suppress(Aborted, KilledError):
            actions[step["do"]]()
        if ended.killed:
            engine.state = before
        if ended.killed or engine.state is None:
            self.settle()
        for cloud in self.clouds:
            cloud.on_call = None
        self.cloud.faults.clear()
        self.compute.change_errors.clear()
        self.strangers = self.others() | self.strangers

    def settle(self) -> None:
        """Make everything visible: a run that starts again after a kill is slower than Google. Without a state it is undetectable.

        The same after a deletion: a commit that is later than the deletion looks for is found by a later creation, if it is visible then.
        """
        queued = [item for cloud in self.clouds for item in cloud.queued.values()]
        clock = self.engine.clock
        assert clock is not None
        clock.now_s = max([clock.now_s, *(item.visible_at_s for item in queued)])

    def refresh(self) -> None:
        if self.engine.state is not None:
            self.engine.refresh()


@pytest.mark.law
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given_by(
    scripts=st.fixed_dictionaries(dict.fromkeys(ZONES, SCRIPTS)),
    strangers=st.sets(st.sampled_from(ZONES), max_size=2),
    refused=st.sets(st.sampled_from(ZONES), max_size=1),
    steps=STEPS,
    last=st.sampled_from(["up", "destroy"]),
)
def test_one_more_up_and_destroy_leave_nothing_of_ours_and_everything_of_others(
    scripts: dict[str, tuple[str, ...]], strangers: set[str], refused: set[str], steps: list[dict[str, Any]], last: str
):
    random.seed(0)
    world = World(scripts, strangers, refused)
    for step in steps:
        world.play(step)
    if last == "destroy" and world.engine.state is not None:
        require_destroyed(world)
    else:
        require_an_end(world)


RENEWALS = st.lists(
    st.fixed_dictionaries(
        {
            "do": st.sampled_from(["up", "up", "up", "up", "up", "up", "refresh", "refresh", "destroy", "vanish"]),
            "wish": st.fixed_dictionaries(
                {
                    "zones": st.permutations(ZONES[:2]),
                    "renewBeforeS": st.sampled_from([3600, 3600, 3600, 10800, None]),
                    "waitFor": st.sampled_from(["active", "active", "accepted"]),
                    "allowReplaceActive": st.just(True),
                    "tags": st.sampled_from([["serve"], ["serve", "other"]]),
                }
            ),
            "faults": st.one_of(st.just([]), FAULTS),
            "end": st.one_of(st.none(), ENDS),
            "late_s": st.sampled_from(LATE_S[:-1]),
            "hours": st.sampled_from((3.2, 3.5, 0.2, 4.5)),
        }
    ),
    min_size=2,
    max_size=6,
)


@pytest.mark.law
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given_by(
    later=st.fixed_dictionaries(dict.fromkeys(ZONES[:2], st.one_of(st.just(("ACTIVE",)), SCRIPTS))),
    stranger=st.sets(st.just("us-east5-b"), max_size=1),
    steps=RENEWALS,
)
def test_no_end_of_a_renewal_leaves_more_than_one_that_serves(
    later: dict[str, tuple[str, ...]], stranger: set[str], steps: list[dict[str, Any]]
):
    random.seed(0)
    world = World({}, stranger, set())
    world.engine.up(wanted(renewBeforeS=3600))
    for step in steps:
        was_there = world.engine.state is not None
        world.play(step)
        world.cloud.scripts = later
        if step["do"] == "destroy" and was_there and world.engine.state is None:
            assert world.ours() == [], "a destroy deletes both"
    require_an_end(world)


def calm(world: World) -> None:
    """Let the clouds do from here on what they are asked for."""
    world.settle()
    for cloud in world.clouds:
        cloud.hidden_s = 0
        cloud.scripts = dict.fromkeys(ZONES, (cloud.serving,))
        cloud.refusals.clear()
        for queued in cloud.queued.values():
            if queued.state != "DELETING":
                queued.steps.append(cloud.serving)
    world.compute.rivals = {}


def require_destroyed(world: World) -> None:
    """One `destroy`, without an `up` before it, leaves none of ours, whatever the state names; what is of others is as it was."""
    calm(world)
    world.engine.destroy()
    assert world.ours() == [], "nothing is left"
    assert world.others() == world.strangers


def require_an_end(world: World, api: str = "cloud-tpu") -> None:
    """One more `up` has one queued resource, and `destroy` none; what is of others is as it was."""
    engine = world.engine
    calm(world)
    last = wish_of({"zones": ["us-east5-a"], "allowReplaceActive": True, "api": world.known_api(api)})
    # It was ACTIVE and is gone, and the message says to refresh; or an answer came late, and what came then had failed.
    for _ in range(2):
        try:
            engine.up(last)
            break
        except Aborted:
            world.refresh()
    else:
        engine.up(last)
    assert engine.state
    assert world.ours() == [engine.state.outputs["name"]], "one, and no duplicate"
    engine.destroy()
    assert world.ours() == [], "nothing is left"
    assert world.others() == world.strangers
    for name in world.compute.taken:
        assert world.compute.queued[name].body["labels"] == ANOTHER, "a rival keeps its instance"


INSTANCES = st.sampled_from(
    [
        ("RUNNING",),
        ("PROVISIONING", "STAGING", "RUNNING"),
        ("PENDING", "PENDING", "PROVISIONING", "RUNNING"),
        ("PENDING",),
        ("!ZONE_RESOURCE_POOL_EXHAUSTED",),
        ("PENDING", "!QUOTA_EXCEEDED"),
        ("PROVISIONING", "STOPPING!ZONE_RESOURCE_POOL_EXHAUSTED", "STOPPING", ""),
        ("RUNNING", "RUNNING", "STOPPING", ""),
    ]
)
ON_EITHER_API = st.lists(
    st.fixed_dictionaries(
        {
            "do": st.sampled_from(["up", "up", "up", "up", "refresh", "destroy", "vanish", "stop"]),
            "wish": st.fixed_dictionaries(
                {
                    "api": st.sampled_from(["compute-engine", "compute-engine", "cloud-tpu"]),
                    "zones": st.lists(st.sampled_from(ZONES), min_size=1, max_size=3, unique=True),
                    "acceleratorType": st.sampled_from(["v6e-4", "v6e-4", "v6e-8"]),
                    "allowReplaceActive": st.booleans(),
                    "tags": st.sampled_from([["serve"], ["serve", "other"]]),
                    "waitFor": st.sampled_from(["active", "active", "accepted"]),
                }
            ),
            "faults": FAULTS,
            "end": ENDS,
            "late_s": st.sampled_from(LATE_S),
            "hours": st.sampled_from(HOURS),
            "busy": st.sampled_from([0, 0, 2]),
            "change_errors": st.lists(st.sampled_from(["CONDITION_NOT_MET", "RESOURCE_NOT_READY"]), max_size=2),
            "rivals": st.sets(st.sampled_from(ZONES[1:3]), max_size=1),
        }
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.law
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given_by(
    scripts=st.fixed_dictionaries(dict.fromkeys(ZONES, SCRIPTS)),
    instances=st.fixed_dictionaries(dict.fromkeys(ZONES, INSTANCES)),
    others=st.tuples(st.sets(st.sampled_from(ZONES), max_size=2), st.sets(st.sampled_from(ZONES), max_size=1)),
    steps=ON_EITHER_API,
    api=st.sampled_from(["compute-engine", "cloud-tpu"]),
)
def test_on_either_api_and_from_one_to_the_other_nothing_of_ours_is_left(
    scripts: dict[str, tuple[str, ...]],
    instances: dict[str, tuple[str, ...]],
    others: tuple[set[str], set[str]],
    steps: list[dict[str, Any]],
    api: str,
):
    random.seed(0)
    world = World(scripts, *others, instances)
    for step in steps:
        world.play(step)
    require_an_end(world, api)


@pytest.mark.parametrize("api", ["cloud-tpu", "compute-engine"])
def test_what_a_killed_replacement_left_in_a_zone_that_no_state_names_goes_with_the_next_deletion(api: str):
    world = World({"us-east5-b": ("CREATING", "WAITING_FOR_RESOURCES")}, set(), set())
    for zone, end in (("us-east5-b", None), ("us-east5-a", ("kill after", 0))):
        wish = {"api": "cloud-tpu", "zones": [zone], "waitFor": "active"}
        world.play({"do": "up", "wish": wish, "faults": [], "end": end, "late_s": 0.0, "hours": 0.0})
    assert [name.split("/")[3] for name in world.ours()] == ["us-east5-a"], "made, and in no state"
    assert world.engine.state is not None
    assert world.engine.state.outputs["zone"] == "us-east5-b"
    if api == "cloud-tpu":
        require_destroyed(world)
    else:
        require_an_end(world, api)
