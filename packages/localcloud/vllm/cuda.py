"""Check whether an image's CUDA runs on a GPU's driver, with and without the image's compatibility libraries.

With `VLLM_ENABLE_CUDA_COMPATIBILITY`, vLLM loads the image's own libcuda before the driver's (vllm/env_override.py). An older driver needs that.
A driver as new as the image's libraries rejects them, with the message of gpustack/gpustack#4678. The message of an old driver is PyTorch's
(c10/cuda/CUDAFunctions.cpp).
"""

from typing import Final

from localcloud.vllm.memory import EngineStartError
from localcloud.vllm.settings import RuntimeEnvironment

_CUDA_OF: Final = {535: 12_020, 580: 13_000}
"""Branch of the driver -> its CUDA version, as PyTorch prints it."""
DRIVERS: Final = tuple(_CUDA_OF)
"""Driver branches that the simulator supports."""
_CUDA_13: Final = 13_000
_FIRST_WITH_CUDA_13: Final = (0, 20)
"""vLLM 0.20 is the first release whose image has CUDA 13 by default (its release notes name cu129 for older drivers); 12.x runs on driver 535."""


def check_driver(environment: RuntimeEnvironment) -> None:
    """Raise EngineStartError with the real server's message if it cannot use its GPU. Without a simulated driver it always can."""
    driver_cuda = _CUDA_OF.get(environment.cuda_driver or 0)
    if driver_cuda is None:
        return
    is_old = driver_cuda < _CUDA_13
    if environment.uses_cuda_compatibility and not is_old:
        raise EngineStartError(_MISMATCH)
    if is_old and not environment.uses_cuda_compatibility and _has_cuda_13(environment.version):
        raise EngineStartError(_TOO_OLD.format(version=driver_cuda))


def _has_cuda_13(version: str) -> bool:
    numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    return tuple(numbers) >= _FIRST_WITH_CUDA_13


_MISMATCH: Final = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might "
    "have already set an error? Error 803: system has unsupported display driver / cuda driver combination"
)
_TOO_OLD: Final = (
    "RuntimeError: The NVIDIA driver on your system is too old (found version {version}). Please update your GPU driver by downloading and "
    "installing a new version from the URL: http://www.nvidia.com/Download/index.aspx Alternatively, go to: https://pytorch.org to install a "
    "PyTorch version that has been compiled with your version of the CUDA driver."
)
