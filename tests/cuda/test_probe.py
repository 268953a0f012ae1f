"""What is said of a machine whose GPU cannot be used, or that has none."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from tokenix.drivers.cuda.probe import find_gpu


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ({"result": 100}, ("CUDA_ERROR_NO_DEVICE", "sees no GPU", "CUDA_VISIBLE_DEVICES")),
        ({"result": 34}, ("stub", "LD_LIBRARY_PATH")),
        ({"result": 803}, ("two versions", "reboot")),
        ({"result": 804}, ("forward-compatibility", "LD_LIBRARY_PATH")),
        ({"result": 999}, ("does not start", "dmesg")),
        ({"devices": 0}, ("sees no GPU", "nvidia-smi")),
        ({"version": 12080}, ("CUDA 12.8", "13.0 is needed", "update")),
    ],
)
def test_a_machine_that_does_not_do_is_told_why(fake, machine, words):
    fake.machine(**machine)
    with pytest.raises(OSError) as raised:
        find_gpu()
    assert raised.value.errno == errno.ENODEV
    assert all(word in str(raised.value) for word in words), raised.value
    assert "\n" not in str(raised.value)


def test_a_gpu_is_described(fake):
    gpu = find_gpu(0)
    assert (gpu.name, gpu.capability, gpu.processors) == ("Fake H200", (9, 0), 132)
    assert (gpu.memory_bytes, gpu.driver_version) == (1 << 30, 13000)


@pytest.mark.parametrize("ordinal", [1, -1])
def test_there_is_no_such_gpu(fake, ordinal):
    with pytest.raises(OSError, match=f"no GPU {ordinal}: there are 1"):
        find_gpu(ordinal)


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a driver")
def test_without_a_driver_it_says_so():
    code = "from tokenix.drivers.cuda.probe import find_gpu; find_gpu()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1
    assert "OSError" in done.stderr
    assert "no NVIDIA driver: libcuda.so.1 is not found; install the driver" in done.stderr
