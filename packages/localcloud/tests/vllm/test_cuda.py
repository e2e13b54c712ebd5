"""CUDA of the image against the driver of the GPU: two drivers, with and without compatibility libraries."""

import pytest

from localcloud.vllm.arguments import parse
from localcloud.vllm.boot import plan
from localcloud.vllm.settings import read

MISMATCH = "Error 803: system has unsupported display driver / cuda driver combination"
TOO_OLD = "The NVIDIA driver on your system is too old (found version 12020)"


def problem(driver: str, compatibility: str | None, *, version: str = "0.31.0", gpu: str = "nvidia-l4") -> str:
    """Return the error of a start. Empty if it succeeds."""
    given = {"VLLM_SIM_ACCELERATOR": gpu, "VLLM_SIM_CUDA_DRIVER": driver, "VLLM_SIM_VERSION": version}
    if compatibility is not None:
        given["VLLM_ENABLE_CUDA_COMPATIBILITY"] = compatibility
    started = plan(parse(["vllm", "serve", "simulated/tiny"]), read(given))
    assert (started.capacity is None) == (started.steps[-1].error is not None)
    return str(started.steps[-1].error or "")


@pytest.mark.parametrize(
    ("driver", "compatibility", "said"),
    [("535", "1", ""), ("535", "0", TOO_OLD), ("580", "1", MISMATCH), ("580", "0", "")],
)
def test_each_driver_runs_cuda_13_in_one_of_two_ways(driver: str, compatibility: str, said: str):
    found = problem(driver, compatibility)
    assert (said in found) if said else (found == "")


def test_a_variable_that_is_not_set_is_off_and_vllm_reads_true_as_1():
    assert TOO_OLD in problem("535", None)
    assert MISMATCH in problem("580", " True ")


def test_an_image_with_cuda_12_needs_no_libraries_on_either_driver():
    assert {problem(driver, "0", version="0.19.1") for driver in ("535", "580")} == {""}
