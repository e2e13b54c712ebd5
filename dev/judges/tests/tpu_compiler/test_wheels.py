"""Each image of the project has its nearest wheels, and each lock has what its row says."""

import re
from pathlib import Path

import pytest

from dev.judges.tpu_compiler.wheels import LEFT_OUT, NEWEST, WHEELS, wheels_for
from gemma_serving.planning.data.tables import data_file

ROOT = Path(__file__).resolve().parents[4]
BLOCK = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>\S+) \\\n    --hash=sha256:(?P<hash>[0-9a-f]{64})\n")
TPU = {name: row for name, row in data_file("images.json").items() if row["platform"] == "tpu"}
ROWS = pytest.mark.parametrize("wheels", WHEELS, ids=lambda wheels: wheels.name)


def locked(wheels):
    """Return (version, hash) by package."""
    return {found["name"]: (found["version"], found["hash"]) for found in BLOCK.finditer(wheels.lock.read_text())}


@pytest.mark.parametrize("name", TPU)
def test_each_tpu_image_of_the_project_has_one_row_which_names_its_version_and_digest(name):
    (row,) = [wheels for wheels in WHEELS if name in {image.name for image in wheels.images}]
    (image,) = [image for image in row.images if image.name == name]
    assert (image.version, image.digest) == (TPU[name]["version"], TPU[name]["digest"])
    found = wheels_for(TPU[name]["version"], TPU[name]["digest"])
    assert (found.wheels, found.gap) == (row, row.gap)
    assert wheels_for(TPU[name]["version"]).wheels == row


def test_no_row_names_an_image_that_the_project_does_not_have():
    assert {image.name for wheels in WHEELS for image in wheels.images} == set(TPU)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("0.28.0", "0.30.0-day-20260928"),
        ("0.30.2", "0.30.0-day-20260928"),
        ("0.31.0", "0.31.0"),
        ("0.31.1rc1.dev7+gabc", "0.31.0"),
        ("0.40.0", "0.32.0"),
    ],
)
def test_an_unknown_image_gets_the_nearest_release_and_the_gap_names_both(version, name):
    found = wheels_for(version, "sha256:other")
    assert found.wheels.name == name
    assert found.wheels.words in found.gap
    assert version in found.gap


@pytest.mark.parametrize(("version", "digest"), [("", ""), ("", "sha256:other"), ("nightly", "sha256:other")])
def test_an_image_without_a_release_gets_the_newest_wheels_and_says_that_its_version_is_unknown(version, digest):
    found = wheels_for(version, digest)
    assert found.wheels == NEWEST
    assert "is unknown" in found.gap
    assert digest in found.gap
    assert version in found.gap


def test_a_known_digest_is_enough():
    row = TPU["vllm-tpu"]
    assert wheels_for("", row["digest"]).wheels == wheels_for(row["version"]).wheels


@ROWS
def test_a_lock_pins_the_wheels_of_its_row_with_one_hash_for_each_package_and_nothing_else(wheels):
    text = wheels.lock.read_text()
    assert BLOCK.sub("", text) == "", "a line that is no pin and no hash, such as the address of a registry"
    found = locked(wheels)
    assert found["vllm-tpu"][0] == wheels.vllm_tpu
    assert found["tpu-inference"][0] == wheels.tpu_inference
    assert {"jax", "jaxlib", "libtpu", "torch", "transformers", "flax", "nvidia-cuda-runtime-cu12"} <= set(found)
    assert len(found) > 200


@ROWS
def test_what_is_left_out_is_in_no_lock(wheels):
    assert set(locked(wheels)) & set(LEFT_OUT) == set()
    assert {name for name in locked(wheels) if name.startswith("nvidia-")} == {"nvidia-cuda-runtime-cu12"}


def test_the_stand_ins_for_nvidias_libraries_fit_the_locked_torch():
    assert {locked(wheels)["torch"][0] for wheels in WHEELS} == {"2.10.0"}, "compare `_LINKED` in environment.py"


def test_the_wheels_of_the_4_bit_image_are_those_that_its_dockerfile_installs():
    (row,) = [wheels for wheels in WHEELS if "vllm-tpu-w4a16" in {image.name for image in wheels.images}]
    text = (ROOT / "images/vllm-tpu-w4a16/requirements.txt").read_text()
    wanted = re.findall(r"^(\S+)==(\S+) --hash=sha256:(\w+)$", text, re.MULTILINE)
    assert len(wanted) == 5
    assert {name: (version, digest) for name, version, digest in wanted}.items() <= locked(row).items()
