"""A stack can name a file with prices of its own."""

import json
import os
from pathlib import Path

import pytest
import yaml

from gemma_serving.cloud import price_file
from gemma_serving.cloud.model_files import read_object
from gemma_serving.cloud.price_file import book_of, list_prices
from gemma_serving.contracts.settings_files import MOST_BYTES
from gemma_serving.planning.data.prices import LIST_PRICES
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.planner import plan
from gemma_serving.stacks import loading
from gemma_serving.stacks.loading import SettingsError, from_file
from gemma_serving.stacks.planned import to_question
from tests.planning.test_incidents import ROOT, TODAY


def planned(folder, text, name="prices.json"):
    """Plan l4-qat with a price file of this text."""
    (folder / "prices.json").write_text(text, encoding="utf-8")
    document = yaml.safe_load((ROOT / "Pulumi.l4-qat.yaml").read_text(encoding="utf-8"))
    document["config"]["gemma-serving:prices"] = name
    path = folder / "Pulumi.l4-qat.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return plan(to_question(from_file(path, project="my-project"), folder, today=TODAY))


def test_prices_of_the_region_decide(tmp_path):
    text = json.dumps({"as_of": TODAY, "regions": {"us-east4": {"cloud_run_l4_usd_per_s": 0.001}}})
    assert planned(tmp_path, text).cost.parts_usd_per_hour[0][1] == pytest.approx(3.6)


SPOT, STANDARD = "v6e_spot_usd_per_chip_hour", "v6e_standard_usd_per_chip_hour"
REFRESHED = {
    "by hand": {},
    "by a refresh": {"catalog": {"url": price_file.CATALOG_URL, "keys": [SPOT], "unclear": {}}},
    "of a local cloud": {"catalog": {"url": "http://127.0.0.1/", "keys": [SPOT], "unclear": {}}},
}


@pytest.mark.parametrize("is_simulated", [False, True])
@pytest.mark.parametrize("shared", [None, "{", *REFRESHED])
@pytest.mark.parametrize("own", [None, "own.json", "prices.json"])
def test_only_a_refresh_of_google_prices_what_exists_and_a_stacks_file_precedes_it(
    tmp_path, monkeypatch, own, shared, is_simulated
):
    """`prices.json`, which a refresh writes, is of all stacks. A user's prices in it are for plans only."""
    monkeypatch.setattr(price_file, "is_simulated", lambda: is_simulated)
    (tmp_path / "own.json").write_text(json.dumps({STANDARD: 0.25}))
    if shared:
        text = json.dumps({SPOT: 0.5, **REFRESHED[shared]}) if shared in REFRESHED else shared
        (tmp_path / "prices.json").write_text(text)
    is_foreign = shared == "of a local cloud" and not is_simulated
    is_catalogs = shared == "by a refresh" or (shared == "of a local cloud" and is_simulated)
    listed = {key: LIST_PRICES.price(key).usd for key in (SPOT, STANDARD)}
    assert list_prices(tmp_path).price(SPOT).usd == (0.5 if is_catalogs else listed[SPOT])
    if shared == "{" or (own == "prices.json" and not shared) or (is_foreign and own != "prices.json"):
        with pytest.raises(PlanningError):
            book_of(own, tmp_path)
        return
    book = book_of(own, tmp_path)
    assert (book is None) == (own is None and not shared)
    used = book or LIST_PRICES
    assert used.price(SPOT).usd == (0.5 if shared else listed[SPOT])
    assert used.price(STANDARD).usd == (0.25 if own == "own.json" else listed[STANDARD])
    assert (used.refreshed is not None) == (own == "own.json" and shared is not None)


@pytest.mark.parametrize("name", ["/etc/passwd", "../prices.json", "a/../../b.json"])
def test_a_file_outside_the_project_is_not_read(tmp_path, name):
    with pytest.raises(SettingsError, match=r"prices.*a path inside the project, without \.\."):
        planned(tmp_path, "{}", name)


@pytest.mark.parametrize("reader", [read_object, from_file])
def test_a_pipe_or_a_device_is_refused_at_once(tmp_path, reader):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises((PlanningError, SettingsError), match=r"cannot be read: not a regular file\."):
            reader(path)


def test_a_settings_file_of_the_largest_size_is_read_and_a_larger_one_is_refused_before_it_is_parsed(
    tmp_path, monkeypatch
):
    path = tmp_path / "Pulumi.s.yaml"
    path.write_text("a: 1\n#".ljust(MOST_BYTES, "x"), encoding="utf-8")
    with pytest.raises(SettingsError, match="has no settings of this project"):
        from_file(path)
    path.write_text("a: 1\n#".ljust(MOST_BYTES + 1, "x"), encoding="utf-8")
    monkeypatch.setattr(loading, "read_yaml", lambda text: pytest.fail("the text was parsed"))
    said = r"^Pulumi\.s\.yaml cannot be read: it has 1,048,577 bytes, at most 1,048,576 are allowed\.$"
    with pytest.raises(SettingsError, match=said):
        from_file(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "is invalid: expected one JSON object."),
        ('{"gce_h100_usd_per_hour": NaN}', "NaN is not a number"),
    ],
)
def test_a_file_with_a_mistake_is_refused_in_one_sentence(tmp_path, text, said):
    with pytest.raises(PlanningError) as caught:
        planned(tmp_path, text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
