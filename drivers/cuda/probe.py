"""Whether this machine has a GPU that the driver can use; if not, why, and what to do."""

import errno
from dataclasses import dataclass
from typing import Any

LEAST_DRIVER = 13000
"""CUDA version of the driver: kernels are compiled for 13.0."""

LEAST_CAPABILITY = (8, 0)

NO_DEVICE, STUB_LIBRARY, MISMATCH, COMPAT_REFUSED = 100, 34, 803, 804

_REFUSALS = {
    NO_DEVICE: "the driver sees no GPU; check nvidia-smi, and CUDA_VISIBLE_DEVICES",
    STUB_LIBRARY: "libcuda.so.1 is the toolkit's stub; take lib/stubs out of LD_LIBRARY_PATH",
    MISMATCH: "the driver in the kernel and libcuda.so.1 are of two versions; reboot, or install "
    "them again",
    COMPAT_REFUSED: "this GPU does not run with a forward-compatibility libcuda.so.1; take it out "
    "of LD_LIBRARY_PATH",
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A usable GPU."""

    ordinal: int
    name: str
    capability: tuple[int, int]
    processors: int
    memory_bytes: int
    driver_version: int
    """13000 is CUDA 13.0."""


def load_driver() -> Any:
    """The module cuda.bindings.driver, its library loaded and initialised. OSError if it cannot."""
    try:
        from cuda.bindings import driver
    except ImportError:
        raise OSError(
            errno.ENODEV, "the cuda driver needs cuda-bindings; run: pip install 'tokenix[cuda]'"
        ) from None
    try:
        (result,) = driver.cuInit(0)
    except RuntimeError:  # what its loader raises where there is no library
        raise OSError(
            errno.ENODEV, "no NVIDIA driver: libcuda.so.1 is not found; install the driver, or "
            "boot with driver='cpu'",
        ) from None  # fmt: skip
    if int(result):
        why = _REFUSALS.get(int(result), "see dmesg for what the driver says")
        raise OSError(errno.ENODEV, f"the NVIDIA driver does not start ({result.name}): {why}")
    return driver


def find_gpu(ordinal: int = 0) -> Gpu:
    """The GPU of that number. OSError ENODEV, with what to do, if it cannot be used.

    Initialises the driver: a process that has called it must not compute in a fork.
    """
    driver = load_driver()
    version, count = _version(driver), _count(driver)
    if not 0 <= ordinal < count:
        raise OSError(errno.ENODEV, f"no GPU {ordinal}: there are {count}, from 0")
    device = _take(driver.cuDeviceGet(ordinal))
    kinds = driver.CUdevice_attribute

    def attribute(name: str) -> int:
        found = driver.cuDeviceGetAttribute(getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}"), device)
        return int(_take(found))

    name = _take(driver.cuDeviceGetName(128, device)).split(b"\0")[0].decode()
    capability = attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")
    if capability < LEAST_CAPABILITY:
        have, need = (".".join(map(str, pair)) for pair in (capability, LEAST_CAPABILITY))
        raise OSError(
            errno.ENODEV,
            f"{name} has compute capability {have}, and the kernels need {need}; "
            "boot with driver='cpu'",
        )
    return Gpu(
        ordinal=ordinal,
        name=name,
        capability=capability,
        processors=attribute("MULTIPROCESSOR_COUNT"),
        memory_bytes=int(_take(driver.cuDeviceTotalMem(device))),
        driver_version=version,
    )


def count_gpus() -> int:
    """One at least. OSError ENODEV, with what to do, if none can be used."""
    driver = load_driver()
    _version(driver)
    return _count(driver)


def check_count(count: int) -> None:
    """OSError ENODEV, with what to do, if there are not so many GPUs."""
    found = count_gpus()
    if found < count:
        there = "there is 1" if found == 1 else f"there are {found}"
        raise OSError(
            errno.ENODEV,
            f"tensor_parallel={count} needs {count} GPUs, and {there} (CUDA_VISIBLE_DEVICES says "
            "which of them are seen); ask for fewer",
        )


def _version(driver: Any) -> int:
    """What CUDA the driver is for; enough."""
    version = int(_take(driver.cuDriverGetVersion()))
    if version < LEAST_DRIVER:
        raise OSError(
            errno.ENODEV,
            f"the NVIDIA driver is for CUDA {_dotted(version)}, and {_dotted(LEAST_DRIVER)} is "
            "needed; update it (580 or newer)",
        )
    return version


def _count(driver: Any) -> int:
    """How many GPUs there are, one at least."""
    count = int(_take(driver.cuDeviceGetCount()))
    if count == 0:
        raise OSError(errno.ENODEV, _REFUSALS[NO_DEVICE])
    return count


def _take(found: tuple[Any, ...]) -> Any:
    result, value = found
    if int(result):
        raise OSError(errno.ENODEV, f"the NVIDIA driver fails ({result.name}); see dmesg")
    return value


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
