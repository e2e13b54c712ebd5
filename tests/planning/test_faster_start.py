"""The next faster way to read the weights on Cloud Run, or to start a TPU server: named with both starts and its price, and nothing if it is in use."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from gemma_serving.contracts.settings_files import settings_file, shipped_files
from gemma_serving.planning.cost.loading_modes import LoadingMode, loading_modes
from gemma_serving.planning.cost.running_costs import archive_parts, running_costs
from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.solve.explain import explain
from gemma_serving.planning.solve.faster_start import FasterStart, faster_start
from gemma_serving.planning.solve.stored_programs import stored_programs
from gemma_serving.planning.solve.text_only_start import text_only_start
from gemma_serving.planning.units import duration
from gemma_serving.scripts.gemma.__main__ import main
from gemma_serving.scripts.plan.question import CommandWording
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question
from gemma_serving.stacks.settings_wording import StackWording

ROOT = Path(__file__).parents[2]
CLOUD_RUN = ("l4-12b-qat", "l4-12b-qat-mtp", "l4-e2b-lora", "l4-qat", "l4-qat-002", "rtx6000-31b")
TPU = tuple(sorted(name for path in shipped_files(ROOT) if (name := path.name.split(".")[1]).startswith("tpu-")))
VPC = {"cloudRun.directVpc": True}
NO_VPC = {"cloudRun.directVpc": False, "cloudRun.compileCache": "off"}


def subject(stack: str, **changes: object) -> Subject:
    path = settings_file(stack, ROOT)
    return examine(
        to_question(
            from_file(path, project="my-project", changes=changes if stack.startswith("tpu") else {**NO_VPC, **changes})
        )
    )


def found(stack: str, **changes: object) -> FasterStart:
    faster = faster_start(subject(stack, **changes))
    assert faster is not None
    return faster


def text(stack: str, **changes: object) -> str:
    one = subject(stack, **changes)
    return found(stack, **changes).text(StackWording(one.resolved.question, stack))


@pytest.mark.parametrize("stack", CLOUD_RUN)
def test_the_change_that_it_names_starts_as_fast_as_it_states(stack: str):
    before = subject(stack)
    faster = found(stack)
    after = examine(with_changes(before.resolved.question, faster.changes))
    assert faster.present.start_s == pytest.approx(before.startup.total_s)
    assert faster.mode.start_s == pytest.approx(after.startup.total_s)
    assert after.startup.total_s < before.startup.total_s
    assert after.cost.usd_per_hour == pytest.approx(before.cost.usd_per_hour)
    assert f"{duration(after.startup.total_s)} instead of {duration(before.startup.total_s)}" in text(stack)


def test_buffered_reads_are_next_to_a_plain_mount_and_then_direct_vpc_with_its_price():
    assert text("l4-12b-qat") == (
        "Direct VPC: 4 min 27 s instead of 5 min 31 s; the same price per hour; after a teardown Google holds its subnetwork for up to two "
        "hours, at no cost. Set cloudRun.directVpc: true."
    )
    buffers_gib = f"{constant('FUSE_BUFFERS_GIB'):.1f} GiB"
    assert re.fullmatch(
        rf"fuse-buffered: .* instead of .*; the same price per hour, {buffers_gib} more of the container's memory\. "
        r"Set cloudRun\.mount\.mode: fuse-buffered\.",
        text("l4-qat-002"),
    )


@pytest.mark.parametrize("stack", CLOUD_RUN)
@pytest.mark.parametrize("mode", ["fuse-buffered", "streamer"])
def test_nothing_is_named_if_the_fastest_is_in_use(stack: str, mode: str):
    chosen = subject(stack, **VPC, **{"cloudRun.mount.mode": mode})
    starts = [one.start_s for one in loading_modes(chosen)]
    assert chosen.startup.total_s == pytest.approx(min(starts))
    assert faster_start(chosen) is None


def test_a_difference_that_no_probe_sees_is_not_named():
    """A copy into memory of 12B with Direct VPC is slower than buffered reads by more than a probe's period, the file cache by less."""
    cache = {"mode": "fuse-cached", "cacheSize": "9Gi"}
    cached = subject("l4-12b-qat", **VPC, **{"cloudRun.mount": cache, "cloudRun.memory": "24Gi", "cloudRun.cpu": 6})
    best = min(one.start_s for one in loading_modes(cached))
    assert 0 < cached.startup.total_s - best < 10
    assert faster_start(cached) is None
    assert found("l4-12b-qat", **VPC, **{"cloudRun.mount.mode": "memory"}).mode.mode == "fuse-buffered"


def test_a_mode_that_a_finding_blocks_is_not_named():
    """A server that fetches media must not be in a network of its own (SEC06)."""
    media = {"vllm.allowedMediaDomains": ["a.example"]}
    assert faster_start(subject("l4-12b-qat", **media)) is None
    assert faster_start(subject("l4-12b-qat", **media, acceptFindings=["SEC06"])) is not None


def test_more_memory_is_the_price_where_buffered_reads_do_not_fit_and_the_image_cannot_stream():
    small = {"cloudRun.memory": "17Gi"}
    assert text("l4-qat-002", **small).endswith("Set cloudRun.mount.mode: streamer.")
    image = {"repository": "vllm/vllm-openai", "digest": f"sha256:{'1' * 64}", "version": "0.10.2"}
    faster = found("l4-qat-002", **small, image=image, acceptFindings=["FIT06"])
    assert dict(faster.changes) == {"weights_mode": "fuse-buffered", "cloud_run.memory_mib": 20_480}
    one = subject("l4-qat-002", **small, image=image, acceptFindings=["FIT06"])
    said = faster.text(StackWording(one.resolved.question, "l4-qat-002"))
    assert re.search(r"; \$0\.02/h more \(20 GiB, 8 vCPU\)\. Set .*cloudRun\.memory: 20Gi", said)


@pytest.mark.parametrize("given", [("hub", "fuse"), ("bucket", "memory")])
def test_every_answer_is_one_of_the_modes_and_fits(given: tuple[str, str]):
    weights, mode = given
    given_mode = {"cloudRun.mount.mode": mode} if weights == "bucket" else {}
    one = subject("l4-12b-qat", weights=weights, **given_mode)
    faster = faster_start(one)
    assert faster is not None
    assert isinstance(faster.mode, LoadingMode)
    # From the hub, Direct VPC needs Cloud NAT, whose price is named.
    nat = f"; Cloud NAT adds ${faster.mode.nat_start_usd:.2f} per start. " in text(
        "l4-12b-qat", weights=weights, **given_mode
    )
    assert (faster.mode.mode == "hub", nat) == (weights == "hub",) * 2


def text_only(before: Subject) -> tuple[str, Mapping[str, object]]:
    """Return the text about a start for text only, and the settings that it names; empty if none is named."""
    shown = text_only_start(before, StackWording(before.resolved.question))
    return shown, yaml.safe_load(shown.rpartition(". Set ")[2].removesuffix(".")) or {}


@pytest.mark.parametrize("stack", TPU)
def test_text_only_starts_a_tpu_as_fast_as_it_states_and_is_named_unless_in_use(stack: str):
    before = subject(stack)
    shown, changes = text_only(before)
    after = subject(stack, **changes)
    assert bool(shown) is before.resolved.has_processor
    assert not after.resolved.has_processor
    assert text_only(after) == ("", {})
    served = [name for kind, name in (("image", "images"), ("video", "video")) if before.resolved.item_limit(kind)]
    starts = f"{duration(after.startup.total_s)} instead of {duration(before.startup.total_s)}"
    assert not shown or f"{starts}; requests with {' or '.join(served)} are then rejected. " in shown


def test_a_limit_that_is_not_stated_costs_the_time_of_the_processor_only():
    before = subject("tpu-v6e1", **{"vllm.limitMmPerPrompt": {"image": 0, "audio": 0}})
    shown, changes = text_only(before)
    after = subject("tpu-v6e1", **changes)
    assert before.startup.total_s - after.startup.total_s == pytest.approx(constant("TPU_MULTIMODAL_WARM_UP_S"))
    assert "; no request that is served now is rejected. " in shown


def test_text_only_is_not_named_if_a_finding_then_blocks_or_for_a_gpu():
    assert text_only(subject("tpu-v6e1", **{"vllm.extraArgs": ["--limit-mm-per-prompt.image=2"]})) == ("", {})
    assert text_only(subject("rtx6000-31b")) == ("", {})


def test_plan_prints_it_below_the_start_up_and_json_has_a_key(capsys: pytest.CaptureFixture[str]):
    slow = ["plan", "l4-12b-qat", "--set", "cloudRun.directVpc=false", "--set", "cloudRun.compileCache=off"]
    assert main(slow) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Faster with {text('l4-12b-qat')} Speed" in shown
    assert main(["plan", "l4-12b-qat"]) == 0
    assert "Faster" not in capsys.readouterr().out
    assert main([*slow, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["faster_start"]["change"] == "set cloudRun.directVpc: true"
    assert document["faster_start"]["start_s"] < document["faster_start"]["present_start_s"]
    for stack in ("l4-12b-qat", "tpu-v6e1"):
        assert main(["plan", stack, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["faster_start"] is None
    assert main(["plan", "tpu-v6e1"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Faster with {text_only(subject('tpu-v6e1'))[0]} Speed" in shown
    assert found("l4-12b-qat").text(CommandWording()).endswith("Add --set cloudRun.directVpc=true.")


@pytest.mark.parametrize("stack", TPU)
def test_the_plan_of_a_tpu_names_the_price_and_the_end_of_its_stored_programs(stack: str):
    """The paragraph is in the plan of a stack that archives them, with the bill's own sums."""
    archived, changes = subject(stack), {"max_age_s": None, "tpu.zones": ("us-east5-a",)}
    text, parts = stored_programs(archived), [*archive_parts(archived.resolved)]
    bill = [part.name for part in running_costs(archived).bill]
    assert {part.name for part in parts if part.usd >= 0.01} <= {*bill}
    monthly, traffic = (sum(part.usd for part in parts if part.basis == basis) for basis in ("month", "start"))
    assert f"${monthly:.2f} per month for storage and key, and up to ${traffic:.2f} per start for traffic." in text
    assert (
        "A teardown deletes programs and key; with maxAge 24 h, a guard does so every 24 h: the next start is a first one."
        in text
    )
    at_home = stored_programs(examine(with_changes(archived.resolved.question, changes)))
    assert ("traffic" in at_home, "guard" in at_home) == (False, False)
    assert stored_programs(subject(stack, **{"tpu.compileCache": "machine"})) == ""


@pytest.mark.parametrize("cache", ["machine", "bucket"])
def test_the_explanation_names_the_part_that_stored_programs_and_text_only_change(cache: str):
    lines = dict(explain(subject("tpu-v6e1", **{"tpu.compileCache": cache})))["Start-up"]
    assert [" ".join(line.split()) for line in lines[-3:]] == [
        "with stored programs (tpu.compileCache) 513.7 s; compile and warm-up 147 instead of 396",
        "with text only (vllm.limitMmPerPrompt) 512.2 s; server process 70 instead of 123, compile and warm-up 198 instead of 396",
        "with both 387.4 s; server process 70 instead of 123, compile and warm-up 73 instead of 396",
    ]
