"""Random schedules: whatever happens in whichever order, one more `up` and `destroy` leave nothing of ours, and nothing of others was touched.

`EXAMPLES` says how many each suite draws.
"""

import random
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as given_by
from hypothesis import strategies as st

from gcp_tpu_provider.desired_state import urn_hash
from gcp_tpu_provider.errors import GoogleError
from gcp_tpu_provider.tests.cloud import FakeTpu, Queued
from gcp_tpu_provider.tests.conftest import examples
from gcp_tpu_provider.tests.harness import URN, Aborted, FakeEngine, wanted

ZONES = ("us-east5-a", "us-east5-b", "europe-west4-a", "asia-northeast1-b")
EXAMPLES = examples(test=40, part=150, night=2000)
LATE_S = (0.0, 0.0, 0.0, 0.01, 0.06, 0.11)
"""When a commit becomes visible. The harness waits 0.05 s for a lost answer in an update, and 0.1 s in a deletion or a refresh."""

TIMEOUT_S = 0.15
"""The custom timeout of an update: some capacity never comes."""


ANOTHER = {"gemma-serving-urn": urn_hash("another")}


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

    def __init__(self, scripts: dict[str, tuple[str, ...]], strangers: set[str]) -> None:
        self.cloud = FakeTpu(scripts=scripts, zones=ZONES)
        self.engine = FakeEngine(self.cloud)
        for zone in sorted(strangers):
            identifier = "serve" if zone == "asia-northeast1-b" else "serve-too"
            self.cloud.add_stranger(zone, identifier, ANOTHER)
        self.strangers = self.others()

    def others(self) -> dict[str, Any]:
        """Return what is not ours, as it is now."""
        found = {name: item for name, item in self.cloud.queued.items() if not is_ours(item)}
        return deepcopy({name: (item.body, item.created) for name, item in found.items()})

    def ours(self) -> list[str]:
        return [name for name, item in self.cloud.queued.items() if is_ours(item)]

    def vanish(self) -> None:
        """Somebody deletes the oldest of ours."""
        if self.ours():
            self.cloud.drop(self.cloud.queued[self.ours()[0]])

    def play(self, step: dict[str, Any]) -> None:
        """Do one step. A kill leaves the state as it was before the step, whatever the provider says at its end."""
        engine = self.engine
        before, ended = deepcopy(engine.state), Ending(engine, step["end"])
        self.cloud.faults.extend(step["faults"])
        self.cloud.hidden_s = step["late_s"]
        self.cloud.pass_time(step["hours"])
        self.cloud.on_call = ended
        actions = {
            "up": lambda: engine.up(wanted(**step["wish"]), timeout_s=TIMEOUT_S),
            "refresh": self.refresh,
            "destroy": engine.destroy,
            "vanish": self.vanish,
        }
        with suppress(Aborted, KilledError):
            actions[step["do"]]()
        if ended.killed:
            engine.state = before
        if ended.killed or engine.state is None:
            self.settle()
        self.cloud.on_call = None
        self.cloud.faults.clear()

    def settle(self) -> None:
        """Make everything visible: a run that starts again after a kill is slower than Google. Without a state it is undetectable.

        The same after a deletion: a commit that is later than the deletion looks for is found by a later creation, if it is visible then.
        """
        clock = self.engine.clock
        assert clock is not None
        clock.now_s = max([clock.now_s, *(item.visible_at_s for item in self.cloud.queued.values())])

    def refresh(self) -> None:
        if self.engine.state is not None:
            self.engine.refresh()


STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "do": st.sampled_from(["up", "up", "up", "up", "up", "up", "refresh", "refresh", "destroy", "vanish"]),
            "wish": st.fixed_dictionaries(
                {
                    "zones": st.one_of(
                        st.permutations(ZONES[:2]),
                        st.lists(st.sampled_from(ZONES), min_size=1, max_size=3, unique=True),
                    ),
                    "acceleratorType": st.sampled_from(["v6e-4", "v6e-4", "v6e-4", "v6e-8"]),
                    "waitFor": st.sampled_from(["active", "active", "accepted"]),
                    "allowReplaceActive": st.sampled_from([True, True, False]),
                    "tags": st.sampled_from([["serve"], ["serve", "other"]]),
                }
            ),
            "faults": st.one_of(st.just([]), FAULTS),
            "end": st.one_of(st.none(), ENDS),
            "late_s": st.sampled_from(LATE_S[:-1]),
            "hours": st.sampled_from((0.2, 3.5, 4.5)),
        }
    ),
    min_size=2,
    max_size=6,
)


@pytest.mark.law
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given_by(
    later=st.fixed_dictionaries(dict.fromkeys(ZONES, st.one_of(st.just(("ACTIVE",)), SCRIPTS))),
    strangers=st.sets(st.sampled_from(ZONES), max_size=2),
    refused=st.sets(st.sampled_from(ZONES), max_size=1),
    steps=STEPS,
)
def test_no_end_of_a_step_leaves_more_than_one_that_serves_or_touches_what_is_of_others(
    later: dict[str, tuple[str, ...]], strangers: set[str], refused: set[str], steps: list[dict[str, Any]]
):
    random.seed(0)
    world = World({}, strangers)
    world.engine.up(wanted())
    for zone in refused:
        world.cloud.refusals[zone] = GoogleError(403, "PERMISSION_DENIED", "no")
    for step in steps:
        was_there = world.engine.state is not None
        world.play(step)
        world.cloud.scripts = later
        if step["do"] == "destroy" and was_there and world.engine.state is None:
            assert world.ours() == [], "a destroy deletes it"
    require_an_end(world)


def calm(world: World) -> None:
    """Let the cloud do from here on what it is asked for."""
    world.settle()
    world.cloud.hidden_s = 0
    world.cloud.scripts = dict.fromkeys(ZONES, ("ACTIVE",))
    world.cloud.refusals.clear()
    for queued in world.cloud.queued.values():
        if queued.state != "DELETING":
            queued.steps.append("ACTIVE")


def require_an_end(world: World) -> None:
    """One more `up` has one queued resource, and `destroy` none; what is of others is as it was."""
    engine = world.engine
    calm(world)
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
    assert world.ours() == [engine.outputs["name"]], "one, and no duplicate"
    engine.destroy()
    assert world.ours() == [], "nothing is left"
    assert world.others() == world.strangers
