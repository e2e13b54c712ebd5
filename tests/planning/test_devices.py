"""Custom devices: accepted and rejected input, and the comparison with Google's devices."""

import json
import shlex
from datetime import UTC, datetime

import pytest

from gemma_serving.planning.data.images import IMAGES
from gemma_serving.planning.machine.devices import parse_device
from gemma_serving.planning.machine.hardware import ACCELERATORS, find_accelerator, known_places

RTX_3090 = "memory=24GiB,bandwidth=936GB/s,tflops=71"
MODEL = ("--model", "google/gemma-4-E2B-it")


def test_the_figures_of_a_box_give_a_device():
    found = parse_device(f"{RTX_3090}, count=2, link=15.75 GB/s, name=RTX 3090, usd=0.3/h")
    assert (found.name, found.devices, found.platforms) == ("2 x RTX 3090", 2, ("own",))
    assert (found.bandwidth_gb_per_s, found.bf16_tflops, found.host_link_gb_per_s) == (936, 71, 15.75)
    assert (found.is_large, found.usd_per_hour) == (False, 0.3)


def test_each_gpu_of_cloud_run_has_its_own_regions():
    l4, rtx = (known_places(ACCELERATORS[name]) for name in ("L4", "RTX PRO 6000"))
    assert "us-east4" in l4
    assert "us-east4" not in rtx
    assert "us-central1" in rtx
    assert known_places(ACCELERATORS["H100"]) == ()


def test_a_device_is_one_more_row_of_the_comparison(run):
    code, out, _ = run(*MODEL, "--compare", "--device", f"{RTX_3090},name=RTX 3090", "--json")
    rows = {row["accelerator"]: row for row in json.loads(out)["rows"]}
    assert code == 0
    assert rows.keys() == {*ACCELERATORS, "RTX 3090"}
    assert rows["RTX 3090"]["cost"] is None
    assert json.loads(out)["cheapest"] in ACCELERATORS
    table = run(*MODEL, "--compare", "--accelerator", "L4", "--device", f"{RTX_3090},name=RTX 3090,usd=0.3/h")[1]
    assert "cheapest that meets the limits: RTX 3090 on own, $0.30/h" in table


def test_a_price_of_the_users_own_device_is_of_today(run):
    before = datetime.now(UTC)
    planned = json.loads(run(*MODEL, "--device", f"{RTX_3090},name=RTX 3090,usd=0.3/h", "--json")[1])
    assert planned["cost"]["prices_as_of"] in {f"{day:%Y-%m-%d}" for day in (before, datetime.now(UTC))}


def test_a_move_to_another_kind_of_device_leaves_the_release_behind(run):
    asked = ("--model", "google/gemma-4-31B-it", "--accelerator", "L4", "--vllm", "0.22.0")
    finding = next(f for f in json.loads(run(*asked, "--json")[1])["findings"] if f["id"] == "FIT01")
    texts = {r["changes"].get("accelerator"): r["text"] for r in finding["remedies"] if r["text"]}
    assert "--vllm none" in texts["v5e-8"]
    assert "--vllm" not in texts["RTX PRO 6000"]
    words = shlex.split(texts["v5e-8"].removeprefix("add "))
    code, out, _ = run(*asked, *words, "--json")
    assert (code, json.loads(out)["vllm_version"]) == (
        0,
        next(i.version for i in IMAGES.values() if i.platform == "tpu"),
    )


def test_one_word_serves_text_only(run):
    e4b = ("--model", "google/gemma-4-E4B-it", "--accelerator", "L4", "--set", "vllm.enforceEager=true", "--json")
    with_towers, text_only = (json.loads(run(*e4b, *more)[1])["memory"] for more in ((), ("--text-only",)))
    by_hand = json.loads(run(*e4b, "--set", 'vllm.limitMmPerPrompt={"image":0,"video":0,"audio":0}')[1])["memory"]
    assert text_only == by_hand
    assert text_only["weights_gib"] < with_towers["weights_gib"] - 0.5
    assert text_only["kv_tokens"] > with_towers["kv_tokens"]


def test_a_first_start_for_text_may_lack_memory_that_images_leave(run):
    code, out, _ = run("--model", "google/gemma-4-E4B-it", "--accelerator", "L4", "--text-only", "--json")
    finding = next(f for f in json.loads(out)["findings"] if f["id"] == "FIT01")
    assert code == 2
    assert {"vllm.limit_mm_per_prompt": None} in [remedy["changes"] for remedy in finding["remedies"]]


@pytest.mark.parametrize(
    ("spelled", "meant"),
    [
        ("v6e1", "v6e-1"),
        ("tpu v6e 8", "v6e-8"),
        ("v5litepod-8", "v5e-8"),
        ("nvidia-l4", "L4"),
        ("NVIDIA H100 80GB", "H100"),
        ("nvidia-rtx-pro-6000", "RTX PRO 6000"),
        ("a100", "A100-80GB"),
    ],
)
def test_an_accelerator_is_found_by_the_names_that_people_type(spelled: str, meant: str):
    found = find_accelerator(spelled)
    assert found is not None
    assert found.name == meant


@pytest.mark.parametrize("name", ["v6e", "v6e-2", "RTX 6000", "", "nvidia", "l"])
def test_a_name_that_means_no_accelerator_or_several_is_none(name: str):
    assert find_accelerator(name) is None
