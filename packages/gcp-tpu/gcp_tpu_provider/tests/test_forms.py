"""An order of forms: every zone for one form, then every zone for the next. Capacity in use is never touched by a change of the order."""

from collections.abc import Mapping
from copy import deepcopy
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given as given_by
from hypothesis import settings
from hypothesis import strategies as st

from gcp_tpu_provider.capacity import fitting_form, form_to_continue
from gcp_tpu_provider.forms import Form
from gcp_tpu_provider.tests.cloud import FakeTpu
from gcp_tpu_provider.tests.conftest import examples
from gcp_tpu_provider.tests.harness import Aborted, FakeEngine, wanted
from gcp_tpu_provider.tpu_api import PROVISIONING_MODELS
from gcp_tpu_provider.transport import Pacing

A, B = "us-east5-a", "us-east5-b"
DRY = ("CREATING", "WAITING_FOR_RESOURCES")
OUT_OF_STOCK = ("CREATING", "FAILED:There is no more capacity in the zone")
ALL = ("flex-start", "spot", "standard")


def ordered(*forms: str | Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a program's inputs with an order of forms, and waits that end soon on the virtual clock."""
    listed = [{"provisioningModel": form} if isinstance(form, str) else dict(form) for form in forms]
    return wanted(provisioningModel=None, forms=listed, **{"waitPerZoneS": 600, **changes})


def engine_of(scripts: Mapping[str, tuple[str, ...]]) -> tuple[FakeEngine, FakeTpu]:
    cloud = FakeTpu(scripts=dict(scripts))
    return FakeEngine(cloud, Pacing()), cloud


def requested(cloud: FakeTpu) -> list[tuple[str, str]]:
    """Return zone and model of each request that was accepted, in order."""
    return [(call["zone"], call["model"]) for call in cloud.requests]


@settings(max_examples=examples(test=100, part=300, night=3000))
@given_by(
    order=st.lists(st.sampled_from(ALL), min_size=1, max_size=3, unique=True),
    model=st.sampled_from(ALL),
    zone=st.sampled_from([A, B]),
    state=st.sampled_from(["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]),
    run_s=st.sampled_from([None, 3600, 7200]),
    version=st.sampled_from(["a", "a", "b"]),
    is_order=st.booleans(),
)
def test_a_request_keeps_its_form_while_the_order_has_it_and_granted_capacity_keeps_it_always(
    *, order: list[str], model: str, zone: str, state: str, run_s: int | None, version: str, is_order: bool
):
    """All forms have the zone A, and only flex-start has a run duration."""
    inputs = {"acceleratorType": "v6e-1", "runtimeVersion": "a", **({"forms": []} if is_order else {})}
    desired = SimpleNamespace(
        inputs=inputs,
        forms=[Form(one, None, (A,)) for one in order],
        request_inputs=lambda form: {"maxRunDurationS": 3600} if form.model == "flex-start" else {},
    )
    found = SimpleNamespace(
        provisioning_model=PROVISIONING_MODELS[model],
        zone=zone,
        state=state,
        max_run_duration_s=run_s,
        config={**inputs, "runtimeVersion": version},
    )
    fits = model in order and version == "a" and run_s == (3600 if model == "flex-start" else None)
    form = fitting_form(cast("Any", desired), cast("Any", found))
    assert (form and form.model) == (model if fits else None)
    kept = model if model in order else None
    if not is_order:
        kept = order[0]
    elif state != "WAITING_FOR_RESOURCES":
        kept = kept or order[0]
    elif zone != A:
        kept = None
    form = form_to_continue(cast("Any", desired), cast("Any", found))
    assert (form and form.model) == kept


def test_a_form_waits_as_long_as_it_says_in_all_its_zones_together():
    engine, cloud = engine_of({f"{zone} FLEX_START": DRY for zone in (A, B)})
    engine.up(ordered({"provisioningModel": "flex-start", "waitS": 900}, "standard"))
    assert requested(cloud) == [(A, "FLEX_START"), (B, "FLEX_START"), (A, "STANDARD")]
    assert 900 <= engine.waited_s < 1000, "600 s in the first zone, 300 s in the second"
    assert any("the wait for flex-start timed out" in line for line in engine.lines)


def test_the_total_wait_does_not_start_again_with_a_zone_or_a_form():
    engine, cloud = engine_of(dict.fromkeys((A, B), DRY))
    with pytest.raises(Aborted, match=r"the total wait of 15m expired before this zone was requested") as ended:
        engine.up(ordered("flex-start", "spot", waitTotalS=900))
    assert "us-east5-a flex-start  unknown: WAITING_FOR_RESOURCES for 10m" in ended.value.message
    assert ": the total wait timed out." in ended.value.message
    assert "not tried: raise `waitTotalS`" in ended.value.message
    assert (engine.state, cloud.queued) == (None, {}), "nothing is left"
    assert requested(cloud) == [(A, "FLEX_START"), (B, "FLEX_START")]
    assert 900 <= engine.waited_s < 1000, "600 s in the first zone, 300 s in the second"


@pytest.mark.parametrize(
    "changed",
    [
        ordered("standard", "flex-start"),
        ordered("standard"),
        ordered("flex-start"),
        ordered({"provisioningModel": "standard", "zones": [B]}),
        wanted(waitPerZoneS=600, provisioningModel="standard"),
    ],
)
def test_a_change_of_the_order_never_touches_capacity_in_use(changed: dict[str, Any]):
    engine, cloud = engine_of({})
    engine.up(ordered("flex-start", "standard", allowReplaceActive=True))
    before = cloud.queued[cloud.name(A)]
    assert engine.preview({**changed, "allowReplaceActive": True}) == "update"
    engine.up({**changed, "allowReplaceActive": True})
    assert cloud.queued == {cloud.name(A): before}
    assert engine.outputs["provisioningModelInUse"] == "flex-start"


def test_a_word_that_becomes_a_list_touches_nothing():
    engine, cloud = engine_of({})
    engine.up(wanted())
    before = cloud.queued[cloud.name(A)]
    assert engine.up(ordered("spot", "standard", waitPerZoneS=None)) == "update"
    assert cloud.queued == {cloud.name(A): before}


def test_a_word_for_another_word_still_replaces():
    engine, _ = engine_of({})
    engine.up(wanted())
    with pytest.raises(Aborted, match="replaces"):
        engine.up(wanted(provisioningModel="standard", maxRunDurationS=None))


def test_only_the_first_form_starts_in_the_zone_of_a_lost_answer():
    engine, cloud = engine_of({f"{zone} {model}": OUT_OF_STOCK for zone in (A, B) for model in ("FLEX_START", "SPOT")})
    cloud.faults.append(("POST", "dropped"))
    with pytest.raises(Aborted, match="may still take effect"):
        engine.up(ordered("flex-start", zones=[A]))
    cloud.requests.clear()
    engine.up(ordered(*ALL, zones=[B, A]))
    assert requested(cloud) == [
        (A, "FLEX_START"),
        (B, "FLEX_START"),
        (B, "SPOT"),
        (A, "SPOT"),
        (B, "STANDARD"),
    ]


@pytest.mark.parametrize("state", ["ACTIVE", "WAITING_FOR_RESOURCES"])
def test_an_update_deletes_what_was_granted_late_in_a_zone_that_the_state_has_forgotten(state: str):
    engine, cloud = engine_of({})
    engine.up(ordered("standard", zones=[A, B]))
    served = cloud.queued[cloud.name(A)]
    cloud.scripts[f"{B} FLEX_START"] = (state,)
    late, parent = deepcopy(served.body), f"projects/my-project/locations/{B}"
    late["tpu"]["nodeSpec"][0]["parent"] = parent
    cloud.create(parent, B, {"queuedResourceId": "serve"}, {**late, "provisioningModel": "FLEX_START"})
    assert engine.outputs["triedZones"] == [A]
    engine.up(ordered("standard", zones=[A, B], tags=["other"]))
    assert cloud.queued == {cloud.name(A): served}


def test_a_waiting_request_whose_form_left_the_list_is_deleted_and_the_order_starts():
    engine, cloud = engine_of({f"{A} FLEX_START": DRY})
    with pytest.raises(Aborted):
        engine.up(ordered("flex-start", "spot"), timeout_s=300)
    engine.up(ordered("spot"))
    assert cloud.queued[cloud.name(A)].body["provisioningModel"] == "SPOT"
    assert len(cloud.queued) == 1


def test_a_lost_state_keeps_the_capacity_of_a_later_form():
    engine, cloud = engine_of({f"{zone} FLEX_START": OUT_OF_STOCK for zone in (A, B)})
    inputs = ordered("flex-start", "spot")
    engine.up(inputs)
    before, engine.state = cloud.queued[cloud.name(A)], None
    engine.up(inputs)
    assert cloud.queued == {cloud.name(A): before}


@pytest.mark.parametrize(
    ("forms", "path", "sentence"),
    [
        ([], "forms", "`forms` is empty, but must list at least one form, such as flex-start."),
        (["reservation"], "forms[0].provisioningModel", "must be one of flex-start, spot, standard."),
        (["spot", "spot"], "forms[1]", "`forms` lists spot more than once. Remove the duplicate."),
        ([{"provisioningModel": "spot", "waitS": 0}], "forms[0].waitS", "must be at least 1 (seconds)."),
        ([{"provisioningModel": "spot", "zones": ["us-east5-c"]}], "forms[0].zones", "which `zones` does not list."),
        ([{"model": "spot"}], "forms[0].model", "is unknown."),
    ],
)
def test_a_wrong_order_is_one_sentence_at_its_path(forms: list[Any], path: str, sentence: str):
    engine, _ = engine_of({})
    assert sentence in engine.mistakes(ordered(*forms))[path]


def test_a_resource_has_a_model_or_an_order():
    engine, _ = engine_of({})
    either = "Set either `provisioningModel` or `forms`"
    assert either in engine.mistakes(wanted(provisioningModel=None))["provisioningModel"]
    assert either in engine.mistakes({**ordered("spot"), "provisioningModel": "spot"})["provisioningModel"]


def test_flex_start_anywhere_in_the_order_requires_a_run_duration():
    engine, _ = engine_of({})
    assert "is missing" in engine.mistakes(ordered("spot", "flex-start", maxRunDurationS=None))["maxRunDurationS"]
    assert not engine.mistakes(ordered("spot", "standard", maxRunDurationS=None))
