"""The table of models, precisions and features that a release has: what it answers, and what a plan makes of the answer."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemma_serving.planning.data.checkpoints import CHECKPOINTS
from gemma_serving.planning.data.images import IMAGES
from gemma_serving.planning.machine.hardware import ACCELERATORS
from gemma_serving.planning.model.catalog import MODELS, spec_of
from gemma_serving.planning.model.spec import ModelSpec
from gemma_serving.planning.model.support import support_of, version_key
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.settings.finding import Finding
from gemma_serving.planning.settings.image import image_of_version
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import VllmOptions
from gemma_serving.planning.solve.remedy_wording import remedy_of
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question
from gemma_serving.stacks.settings_wording import StackWording
from tests.records import replace

ROOT = Path(__file__).resolve().parents[2]
QAT = "google/gemma-4-31B-it-qat-w4a16-ct"
DENSE, EXPERTS = MODELS["google/gemma-4-31B-it"], MODELS["google/gemma-4-26B-A4B-it"]
SHARED_KV = MODELS["google/gemma-4-E2B-it"]
FP8 = replace(EXPERTS, name="an fp8 checkpoint of 26B-A4B", native_quantization="fp8")


def answer(scheme: str, spec: ModelSpec, accelerator: str, **image: Any) -> str:
    row = support_of(scheme, spec, ACCELERATORS[accelerator], **image)
    return f"{row.answer}, in bf16" if row.is_weight_only else row.answer


def finding(p: Plan) -> Finding | None:
    return next((f for f in p.findings if f.id == "FIT06"), None)


def test_bf16_loads_wherever_a_start_is_known(subtests: pytest.Subtests):
    for accelerator, version in product(ACCELERATORS, [None, "", "0.23.0", "nightly"]):
        with subtests.test(f"{accelerator}, image {version}"):
            answers = {answer("bf16", spec, accelerator, image_version=version) for spec in MODELS.values()}
            assert answers == ({"yes", "unknown"} if accelerator.startswith("v5e") else {"yes"})
    assert answer("bf16", EXPERTS, "v5e-8") == answer("fp8", FP8, "v5e-8") == "unknown"


@pytest.mark.parametrize(
    ("model", "accelerator", "version", "severity", "says"),
    [
        ("E2B", "v5e-1", "0.19.0", "block", "E2B and E4B from 0.22.1"),
        ("E4B", "v6e-1", "0.21.0", "block", "E2B and E4B from 0.22.1"),
        ("E4B", "v6e-1", "0.22.0", "warn", "no image of 0.22.0 was read"),
        ("E4B", "v6e-1", "0.22.1", None, ""),
        ("31B", "v6e-8", "0.19.1", None, ""),
        ("26B-A4B", "v5e-8", "0.19.1", "warn", "no public start of 26B-A4B on v5e"),
        ("26B-A4B", "v6e-8", "0.19.1", None, ""),
        ("12B", "L4x2", "0.21.0", "block", "does not have the architecture"),
        ("12B", "L4x2", "0.22.1", "warn", "from vLLM 0.23.0"),
        ("12B", "L4x2", "0.23.0", None, ""),
    ],
)
def test_a_release_is_asked_for_a_model_by_its_path(
    model: str, accelerator: str, version: str, severity: str | None, says: str
):
    found = finding(plan(of_release(model, accelerator, version)))
    assert (found.severity if found else None) == severity
    assert says in (found.message if found else "")


DRAFTED: dict[str, Any] = {
    "speculative_config": {"model": "google/gemma-4-31B-it-assistant", "num_speculative_tokens": 3}
}
ADAPTED: dict[str, Any] = {"lora_adapters": {"sql": "someone/sql"}}
SCALED: dict[str, Any] = {"kv_cache_dtype": "int8_per_token_head"}


@pytest.mark.parametrize(
    ("model", "accelerator", "options", "releases", "words"),
    [
        ("31B", "v6e-8", DRAFTED, ("0.22.1", "0.23.0"), "a draft model does not work on v6e-8"),
        ("31B", "H100", DRAFTED, ("0.20.2", "0.21.0"), "a draft model does not work on H100"),
        ("31B", "H100", ADAPTED, ("0.19.1", "0.20.0"), "LoRA adapters does not work on H100"),
        ("26B-A4B", "H100", ADAPTED, ("0.24.0", "0.25.0"), "LoRA adapters does not work on H100"),
        ("31B", "H100", SCALED, ("0.23.0", "0.24.0"), "vllm.kvCacheDtype int8_per_token_head does not work on H100"),
        ("31B", "v6e-8", {}, ("0.19.0", "0.20.0"), "structured output is untested on v6e-8"),
    ],
)
def test_a_feature_has_a_first_release(
    model: str, accelerator: str, options: dict[str, Any], releases: tuple[str, str], words: str
):
    last, first = releases
    found = finding(plan(of_release(model, accelerator, last, **options)))
    assert found is not None
    assert words in found.message
    assert found.severity == ("warn" if "untested" in words else "block")
    assert {"image": None} in [remedy.changes for remedy in found.remedies]
    assert finding(plan(of_release(model, accelerator, first, **options))) is None


@pytest.mark.parametrize(("version", "severity"), [("0.20.2rc1.dev49+gabcdef012", "warn"), ("0.19.2rc1.dev7", "block")])
def test_a_development_version_may_have_what_the_next_minor_release_has(version: str, severity: str):
    """0.20.2rc1.dev49 served a draft model in public."""
    found = finding(plan(of_release("31B", "H100", version, **DRAFTED)))
    assert found is not None
    assert found.severity == severity
    assert ("this development version may be older or newer" in found.message) == (severity == "warn")


def of_release(model: str, accelerator: str, version: str, **options: Any) -> Question:
    return Question().changed(
        model=f"google/gemma-4-{model}-it",
        accelerator=accelerator,
        image=image_of_version(version),
        vllm=VllmOptions(max_model_len=4_096, max_num_seqs=8, **options),
    )


@pytest.mark.parametrize(
    ("version", "dense", "others"),
    [
        (None, "no", "no"),
        ("0.29.1rc1.dev468+g0b7f11a1e", "no", "no"),
        ("0.30.0", "no", "no"),
        ("0.30.1rc1.dev221+gc8d7a7dd1", "unknown", "unknown"),
        ("0.31.0", "yes", "unknown"),
        ("", "unknown", "unknown"),
        ("of my own", "unknown", "unknown"),
    ],
)
@pytest.mark.parametrize("accelerator", ["v6e-1", "v6e-8"])
def test_four_bits_on_tpu_are_a_look_up_by_version(accelerator: str, version: str | None, dense: str, others: str):
    assert answer("w4a16", DENSE, accelerator, image_version=version) == dense
    for spec in (EXPERTS, SHARED_KV):
        assert answer("w4a16", spec, accelerator, image_version=version) == others


SHARING = [
    name for name, one in CHECKPOINTS.items() if one.architecture.endswith(("E2B-it", "E4B-it")) and not one.is_drafter
]
"""Checkpoints with layers that read another layer's KV cache. Google's exports after quantization-aware training leave their projections out."""


@pytest.mark.law
def test_files_without_the_projections_of_shared_layers_load_on_no_tpu_release(subtests: pytest.Subtests):
    releases = ("0.22.1", "0.23.0", "0.25.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", None)
    tpus = [name for name, one in ACCELERATORS.items() if one.is_tpu]
    for model, accelerator, version in product(SHARING, tpus, releases):
        with subtests.test(f"{model} on {accelerator}, {version}"):
            checkpoint = CHECKPOINTS[model]
            row = support_of(checkpoint.scheme, spec_of(model), ACCELERATORS[accelerator], image_version=version)
            assert row.answer == ("no" if "-qat-" in model else "yes")


def test_four_bits_on_v5e_were_seen_to_fail_with_patches_and_with_no_release():
    assert answer("w4a16", DENSE, "v5e-1", image_version="0.30.0") == "no"
    assert answer("w4a16", DENSE, "v5e-1", image_version="0.31.0") == "unknown"


def test_fp8_on_tpu_is_read_and_not_made():
    assert answer("fp8", FP8, "v6e-1") == "yes, in bf16"
    assert answer("fp8", EXPERTS, "v6e-1") == "no"
    assert answer("fp8", FP8, "v6e-1", image_version="0.24.0") == "no"
    assert answer("fp8", FP8, "v6e-1", image_version="0.25.0") == "yes, in bf16"


def test_packed_experts_have_releases_between_two_that_load_them():
    versions = ("0.19.0", "0.19.1", "0.20.2", "0.21.0")
    packed = [answer("w4a16", EXPERTS, "H100", image_version=version) for version in versions]
    assert packed == ["yes", "unknown", "unknown", "yes"]
    assert answer("w4a16", replace(EXPERTS, packing="awq"), "H100", image_version="0.20.2") == "yes"


def test_what_an_image_has_by_its_owners_word_counts():
    assert answer("w4a16", EXPERTS, "v5e-1", image_supports=("w4a16",)) == "yes"
    assert answer("fp8", EXPERTS, "v5e-1", image_supports=("w4a16",)) == "no"


def test_versions_sort_as_vllm_counts_them():
    versions = ["0.9.2", "0.29.0", "0.29.1rc1.dev468+g0b7f11a1e", "0.29.1rc1.dev1000", "0.29.1", "v0.30.0", "1.0"]
    keys = [version_key(version) for version in versions]
    assert None not in keys
    assert keys == sorted(keys)
    assert version_key("nightly") is None


def stack(folder: Path, image: object) -> Question:
    document = yaml.safe_load((ROOT / "Pulumi.tpu-v6e1.yaml").read_text(encoding="utf-8"))
    document["config"] |= {"gemma-serving:model": QAT, "gemma-serving:image": image}
    del document["config"]["gemma-serving:modelRevision"]
    document["config"]["gemma-serving:vllm"] |= {"maxModelLen": 4_096, "maxNumSeqs": 16}
    path = folder / "Pulumi.tpu-v6e1.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return to_question(from_file(path, project="my-project"))


PATCHED = {"repository": "vllm/vllm-tpu", "digest": IMAGES["vllm-tpu"].digest, "version": IMAGES["vllm-tpu"].version}


def test_a_stack_asks_with_its_own_image(tmp_path: Path):
    assert finding_severity(stack(tmp_path, "vllm-tpu")) == "block"
    assert finding_severity(stack(tmp_path, PATCHED)) == "block"
    assert finding_severity(stack(tmp_path, {"repository": "my/vllm", "digest": f"sha256:{'0' * 64}"})) == "warn"
    patched = stack(tmp_path, {**PATCHED, "supports": ["w4a16"]})
    assert finding_severity(patched) is None
    assert plan(patched).fits


def finding_severity(question: Question) -> str | None:
    found = finding(plan(question))
    if found is not None and found.severity == "block":
        assert "image.supports" in remedy_of(found, StackWording(question))
    return found.severity if found else None
