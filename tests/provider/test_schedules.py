"""Random schedules: whatever happens in whichever order, one more `up` and `destroy` leave nothing of ours, and nothing of others was touched.

`make test` runs 150 of them, `make schedules` 2,000.
"""

import random
import time
from contextlib import suppress
from copy import deepcopy
from typing import Any

from gcp_tpu_provider.desired_state import urn_hash
from gcp_tpu_provider.errors import GoogleError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.provider.cloud import FakeTpu
from tests.provider.harness import Aborted, FakeEngine, wanted

ZONES = ("us-east5-a", "us-east5-b", "europe-west4-a", "asia-northeast1-b")
EXAMPLES = 2000 if settings.get_current_profile_name() == "long" else 150
LATE_S = (0.0, 0.0, 0.0, 0.01, 0.06, 0.11)
"""When a commit becomes visible. The harness waits 0.05 s for a lost answer in an update, and 0.1 s in a deletion or a refresh."""

HOURS = (0.0, 0.0, 0.5, 3.0, 3.5, 4.5)
"""How much time passes before a step. A run lasts four hours: in its last hour, or its last three, it is renewed."""

TIMEOUT_S = 0.15
"""The custom timeout of an update: some capacity never comes."""


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
        st.sampled_from(["lost", "dropped", "unsent", "503"]),
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
            "do": st.sampled_from(["up", "up", "up", "refresh", "destroy"]),
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


class World:
    """A cloud with strangers in it, and what a schedule does to it."""

    def __init__(self, scripts: dict[str, tuple[str, ...]], strangers: set[str], refused: set[str]) -> None:
        self.cloud = FakeTpu(scripts=scripts, zones=ZONES)
        for zone in refused:
            self.cloud.refusals[zone] = GoogleError(403, "PERMISSION_DENIED", "no")
        self.engine = FakeEngine(self.cloud)
        for zone in sorted(strangers):
            labels = {"gemma-serving-urn": urn_hash("another")}
            body = {"tpu": {"nodeSpec": [{"parent": "p", "nodeId": "n", "node": {"labels": labels}}]}}
            identifier = {"asia-northeast1-b": "serve", "us-east5-b": "serve-b"}.get(zone, "serve-too")
            kept, self.cloud.refusals = self.cloud.refusals, {}
            self.cloud.create(f"projects/my-project/locations/{zone}", zone, {"queuedResourceId": identifier}, body)
            self.cloud.refusals = kept
        self.strangers = deepcopy({name: (item.body, item.created) for name, item in self.cloud.queued.items()})

    def ours(self) -> list[str]:
        return [name for name in self.cloud.queued if name not in self.strangers]

    def play(self, step: dict[str, Any]) -> None:
        """Do one step. A kill leaves the state as it was before the step, whatever the provider says at its end."""
        cloud, engine = self.cloud, self.engine
        before, ended = deepcopy(engine.state), Ending(engine, step["end"])
        cloud.faults.extend(step["faults"])
        cloud.hidden_s = step["late_s"]
        cloud.pass_time(step["hours"])
        cloud.on_call = ended
        actions = {
            "up": lambda: engine.up(wanted(**step["wish"]), timeout_s=TIMEOUT_S),
            "refresh": self.refresh,
            "destroy": engine.destroy,
        }
        with suppress(Aborted, KilledError):
            actions[step["do"]]()
        if ended.killed:
            engine.state = before
        if ended.killed or engine.state is None:
            self.settle()
        cloud.on_call = None
        cloud.faults.clear()

    def settle(self) -> None:
        """Let everything become visible: whoever starts again after a kill is slower than Google. Without a state nobody could tell.

        The same after a deletion: a commit that is later than the deletion looks for is found by a later creation, if it is visible then.
        """
        time.sleep(max([0.0, *(item.visible_at_s - time.monotonic() for item in self.cloud.queued.values())]))

    def refresh(self) -> None:
        if self.engine.state is not None:
            self.engine.refresh()


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    scripts=st.fixed_dictionaries(dict.fromkeys(ZONES, SCRIPTS)),
    strangers=st.sets(st.sampled_from(ZONES), max_size=2),
    refused=st.sets(st.sampled_from(ZONES), max_size=1),
    steps=STEPS,
)
def test_one_more_up_and_destroy_leave_nothing_of_ours_and_everything_of_others(
    scripts: dict[str, tuple[str, ...]], strangers: set[str], refused: set[str], steps: list[dict[str, Any]]
):
    random.seed(0)
    world = World(scripts, strangers, refused)
    for step in steps:
        world.play(step)
    require_an_end(world)


RENEWALS = st.lists(
    st.fixed_dictionaries(
        {
            "do": st.sampled_from(["up", "up", "up", "up", "up", "up", "refresh", "destroy"]),
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


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
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


def require_an_end(world: World) -> None:
    """One more `up` has one queued resource, and `destroy` none; what is of others is as it was."""
    cloud, engine = world.cloud, world.engine
    world.settle()
    cloud.hidden_s = 0
    cloud.scripts = dict.fromkeys(ZONES, ("ACTIVE",))
    cloud.refusals.clear()
    for queued in cloud.queued.values():
        if queued.state != "DELETING":
            queued.steps.append("ACTIVE")
    last = wanted(zones=["us-east5-a"], allowReplaceActive=True)
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
    assert {name: (item.body, item.created) for name, item in cloud.queued.items()} == world.strangers


def test_the_long_profile_runs_two_thousand_schedules():
    assert settings.get_profile("long").max_examples == 2000
    assert EXAMPLES in {150, 2000}
