"""Putting a machine together: model, device, scheduler, kernel, pump. Imports are lazy: a program
that only talks to a kernel never loads torch or numba."""

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

from tokenix.drivers.device import Device, DeviceInfo
from tokenix.drivers.kvkind import KV_KINDS, KvKind
from tokenix.drivers.weightkind import WEIGHT_KINDS, WeightKind
from tokenix.kernel.calls import ImageDir, KernelError, Principal, Swapon, error
from tokenix.kernel.core import Kernel
from tokenix.kernel.loop import Pump
from tokenix.kernel.params import Params
from tokenix.sched.policies import POLICIES
from tokenix.sched.rates import Rates
from tokenix.sched.scheduler import Scheduler
from tokenix.sched.tunables import Tunables, retune

if TYPE_CHECKING:
    from tokenix.models.image import ProgramImage

Progress = Callable[[str, int, int], None]
"""(what is being done, steps done, steps in all)."""

DEFAULT_POOL_BYTES = 512 << 20
"""Size of the device pool where the caller gives none."""

DRIVERS = ("cpu", "cuda")

_FP8: dict[str, Literal["stored", "all", "never"]] = {
    "auto": "stored", "native": "stored", "bf16": "never", "exact": "never",
    "fp8": "all",
}  # fmt: skip
"""Of the cuda driver: which weights are in 8 bits."""

DEFAULT_HOST_POOLS = 4
"""Host tier, in device pools, where the caller gives none."""


@dataclass(frozen=True, slots=True)
class BootOptions:
    """How to boot. Pages are KV pages of `page_tokens` tokens over all layers."""

    model: str = "smollm2"
    driver: str = "cpu"
    policy: str = "progress"
    device_pages: int | None = None
    """KV frames on the device; None: as many as fit into 512 MiB, or one full context."""
    host_pages: int | None = None
    """Slots in the host tier; None: four times the device; 0: no swap, pauses recompute."""
    page_tokens: int = 16
    kv_dtype: str = "f16"
    """Format of keys and values, one of `drivers.kvkind.KV_KINDS`."""
    weights: str = "auto"
    """How weights are kept, one of `drivers.weightkind.WEIGHT_KINDS`."""
    threads: int | None = None
    params: Params = field(default_factory=Params)
    tunables: Mapping[str, float] = field(default_factory=dict)
    """Overrides of sched.tunables.Tunables, by name."""
    swap_dir: str | None = None
    """Where a swap file is opened at boot; None: nowhere (`swapon` opens one later)."""
    swap_bytes: int | None = None
    """Its size."""
    image_dir: str | None = None
    """Where images of processes are kept; None: `suspend` is refused, and idle ones get none."""
    swap_resume: bool = False
    """Bring back the processes that waited for input when the last kernel of `image_dir` ended; if
    not, their images are wiped."""
    tensor_parallel: int = 1
    """GPUs that compute the model together; of the cuda driver."""
    weight_cache: bool = True
    """Keep packed weights in the user's cache folder for the next start; of the cpu driver."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A running kernel and the program image it serves."""

    image: "ProgramImage"
    kernel: Kernel
    pump: Pump
    warnings: tuple[str, ...] = ()
    """What is unwise about its sizes; in the trace as well."""


def boot(options: BootOptions, progress: Progress | None = None) -> Machine:
    """Load the model, start device and kernel. OSError says what is wrong and what to do."""
    from tokenix.drivers.imagestore import check_directory
    from tokenix.drivers.swapfile import check_room
    from tokenix.models.registry import load_image
    from tokenix.models.text import TextStream

    tunables = check_options(options)
    if options.swap_dir is not None:
        assert options.swap_bytes is not None, "checked before"
        check_room(options.swap_dir, options.swap_bytes)
    if options.image_dir is not None:
        check_directory(options.image_dir)
    image = load_image(options.model, progress)
    device = _open_device(options, image, progress)
    try:
        kernel = make_kernel(
            device, options.policy, options.params, tunables, image.config.eos_tokens
        )
        kernel.images.model, kernel.images.kv_dtype = image.fingerprint, _page_format(options)
        if options.driver == "cpu":
            kernel.images.weights = _choose_weights(options, image)
        elif options.weights == "fp8":
            kernel.images.weights = "fp8"
        kernel.images.thaw = partial(TextStream.thaw, image.tokenizer)
        kernel.images.thaw_grammar = image.grammars.thaw
        warnings = find_warnings(device.info())
        for text in warnings:
            kernel.trace.add(0.0, None, "warning", text=text)
        pump = Pump(kernel, device)
    except BaseException:
        device.close()
        raise
    if options.swap_dir is not None:
        assert options.swap_bytes is not None, "checked before"
        _ask(pump, Swapon(options.swap_dir, options.swap_bytes))
    if options.image_dir is not None:
        _ask(pump, ImageDir(options.image_dir, options.swap_resume))
    return Machine(image, kernel, pump, warnings)


def find_warnings(info: DeviceInfo) -> tuple[str, ...]:
    """What the device says, and what works but is hardly meant. A host tier that is smaller than
    the device's churns: what is paused to make room has none, is dropped, and is computed again."""
    if not 0 < info.host_slots < info.frames:
        return info.notes
    return (
        *info.notes,
        f"the host tier has {info.host_slots} pages, fewer than the device's {info.frames}: what "
        f"is paused will often be computed again; give host_pages of at least {info.frames}, or 0 "
        "to do without it",
    )


def _ask(pump: Pump, request: Swapon | ImageDir) -> None:
    """It is done, or there is no machine at all."""
    try:
        pump.submit(request, Principal(root=True))[1].result()
    except BaseException as problem:
        pump.close()
        if isinstance(problem, KernelError):
            raise problem.as_os_error() from None
        raise


def make_kernel(
    device: Device,
    policy: str = "progress",
    params: Params | None = None,
    tunables: Tunables | None = None,
    eos_tokens: tuple[int, ...] = (),
) -> Kernel:
    """A kernel for an open device, without a pump (tests and simulations step it themselves)."""
    info = device.info()
    rates = Rates(step_s=info.step_s, prefill_tokens_per_s=info.prefill_tokens_per_s)
    scheduler = Scheduler(POLICIES[policy], tunables or Tunables(), rates)
    return Kernel(info, scheduler, params, eos_tokens)


def check_options(options: BootOptions) -> Tunables:
    """The constants of the scheduler with these options. OSError EINVAL, ENODEV: what of them makes
    no sense, on whatever machine."""
    if not isinstance(options.policy, str) or options.policy not in POLICIES:
        raise _invalid(f"no policy {options.policy!r}; there are {', '.join(POLICIES)}")
    if options.driver not in DRIVERS:
        known = " and ".join(DRIVERS)
        raise error(errno.ENODEV, f"no driver {options.driver!r}; there are {known}").as_os_error()
    if options.kv_dtype not in KV_KINDS:
        raise _invalid(f"kv_dtype must be one of {', '.join(KV_KINDS)}, not {options.kv_dtype!r}")
    if options.weights not in WEIGHT_KINDS:
        kinds = ", ".join(WEIGHT_KINDS)
        raise _invalid(f"weights must be one of {kinds}, not {options.weights!r}")
    if options.weights == "fp8" and options.driver != "cuda":
        raise _invalid("weights='fp8' is of the cuda driver; boot with weights='auto'")
    for name in (
        "device_pages", "host_pages", "page_tokens", "threads", "swap_bytes", "tensor_parallel",
    ):  # fmt: skip
        value = getattr(options, name)
        low = 0 if name == "host_pages" else 1
        if value is None and name not in ("page_tokens", "tensor_parallel"):
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise _invalid(f"{name} must be a whole number, not {value!r}")
        if value < low:
            raise _invalid(f"{name} must be at least {low}, not {value}")
    if options.tensor_parallel > 1 and options.driver != "cuda":
        raise _invalid(
            f"tensor_parallel={options.tensor_parallel} is of the cuda driver, and driver="
            f"{options.driver!r}; boot with driver='cuda', or with tensor_parallel=1"
        )
    if (options.swap_dir is None) != (options.swap_bytes is None):
        raise _invalid("swap_dir and swap_bytes go together: where the swap file is, and its size")
    if options.swap_dir is not None and not isinstance(options.swap_dir, str):
        raise _invalid(f"swap_dir must be a path, not {options.swap_dir!r}")
    if options.image_dir is not None and not isinstance(options.image_dir, str):
        raise _invalid(f"image_dir must be a path, not {options.image_dir!r}")
    if not isinstance(options.swap_resume, bool):
        raise _invalid(f"swap_resume must be true or false, not {options.swap_resume!r}")
    if not isinstance(options.weight_cache, bool):
        raise _invalid(f"weight_cache must be true or false, not {options.weight_cache!r}")
    if options.swap_resume and options.image_dir is None:
        raise _invalid("swap_resume needs image_dir: where the images of the last kernel are")
    if not isinstance(options.params, Params):
        raise _invalid(f"params must be a Params, not {options.params!r}")
    if not isinstance(options.tunables, Mapping):
        raise _invalid(f"tunables must map names to numbers, not {options.tunables!r}")
    for name, number in options.tunables.items():
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise _invalid(f"tunable {name} must be a number, not {number!r}")
    try:
        return retune(Tunables(), options.tunables)
    except ValueError as why:
        raise _invalid(f"tunables: {why}") from None


def _choose_weights(options: BootOptions, image: "ProgramImage") -> WeightKind:
    """native, bf16 or exact, of the cpu driver."""
    from tokenix.drivers.cpu.dense import choose_weights

    return choose_weights(cast(WeightKind, options.weights), image.weights)


def _page_format(options: BootOptions) -> str:
    """What a page holds, for images: the order of heads in it depends on the number of GPUs."""
    ranks = options.tensor_parallel
    return options.kv_dtype if ranks == 1 else f"{options.kv_dtype} on {ranks} GPUs"


def _tell_part(progress: Progress, stage: str, part: float) -> None:
    progress(stage, int(part * 100), 100)


def _invalid(message: str) -> OSError:
    return error(errno.EINVAL, message).as_os_error()


def _open_device(options: BootOptions, image: "ProgramImage", progress: Progress | None) -> Device:
    if options.driver == "cuda":
        return _open_gpu(options, image, progress)
    try:
        from tokenix.drivers.cpu.arena import PageShape
        from tokenix.drivers.cpu.dense import WEIGHTS
        from tokenix.drivers.cpu.device import CpuDevice
        from tokenix.drivers.cpu.jit import tell_compiling
        from tokenix.drivers.cpu.packcache import PackCache
    except ImportError as missing:
        raise error(
            errno.ENODEV, f"the cpu driver needs {missing.name}; run: pip install 'tokenix[cpu]'"
        ).as_os_error() from None
    config, kv_dtype = image.config, cast(KvKind, options.kv_dtype)
    try:
        shape = PageShape.of(config, options.page_tokens, kv_dtype)
        frames = options.device_pages
        if frames is None:
            context = -(-config.max_context_tokens // options.page_tokens) + 1
            frames = max(2, min(context, DEFAULT_POOL_BYTES // shape.frame_bytes))
        host = DEFAULT_HOST_POOLS * frames if options.host_pages is None else options.host_pages
        size = (frames + host) * shape.frame_bytes / (1 << 30)
        asked = f"device_pages {frames} and host_pages {host} take {size:.1f} GiB"
        told = None if progress is None else partial(_tell_part, progress)
        keep = PackCache(image.fingerprint + image.stamp) if options.weight_cache else None
        with tell_compiling(told):
            return CpuDevice(
                config,
                image.weights,
                frames=frames,
                host_slots=host,
                page_tokens=options.page_tokens,
                kv_dtype=kv_dtype,
                dense=WEIGHTS[_choose_weights(options, image)],
                threads=options.threads,
                progress=told,
                keep=keep,
            )
    except ValueError as why:  # a model or a page size that its kernels do not cover
        raise _invalid(str(why)) from None
    except (MemoryError, OverflowError, OSError) as why:
        if isinstance(why, OSError) and why.errno != errno.ENOMEM:
            raise
        what = f"{asked}, which this machine does not give; ask for fewer"
        raise error(errno.ENOMEM, what).as_os_error() from None


def _open_gpu(options: BootOptions, image: "ProgramImage", progress: Progress | None) -> Device:
    """OSError ENODEV says why there is no GPU to use."""
    from tokenix.models.registry import load_weights

    try:
        from tokenix.drivers.cuda.arena import FrameShape
        from tokenix.drivers.cuda.device import CudaDevice
        from tokenix.drivers.cuda.ranks.device import ParallelDevice, check_ranks
        from tokenix.drivers.cuda.sizing import choose_frames, choose_slots
    except ImportError as missing:
        raise error(
            errno.ENODEV, f"the cuda driver needs {missing.name}; run: pip install 'tokenix[cuda]'"
        ).as_os_error() from None
    config, kv_dtype = image.config, cast(KvKind, options.kv_dtype)
    frames, host = options.device_pages, options.host_pages
    ranks, fp8 = options.tensor_parallel, _FP8[options.weights]
    try:
        part = check_ranks(config, ranks)
        shape = FrameShape.of(part, options.page_tokens, kv_dtype)
        if frames is None:
            frames = choose_frames(config, image.weights, shape, "bf16", fp8, ranks)
        host = choose_slots(frames, shape, ranks) if host is None else host
        device: Callable[..., Device] = CudaDevice
        if ranks > 1:
            weights = partial(load_weights, options.model)
            device = partial(ParallelDevice, ranks=ranks, open_weights=weights)
        return device(
            config,
            image.weights,
            frames=frames,
            host_slots=host,
            page_tokens=options.page_tokens,
            kv_dtype=kv_dtype,
            fp8=fp8,
            progress=None if progress is None else partial(_tell_part, progress),
        )
    except ValueError as why:
        raise _invalid(str(why)) from None
    except MemoryError as why:
        asked = f"device_pages {frames} and host_pages {host} do not fit ({why}); ask for fewer"
        raise error(errno.ENOMEM, asked).as_os_error() from None
    except RuntimeError as why:  # what CUDA's own calls and torch's raise
        said = str(why).split("\n")[0]
        what = f"the GPU cannot be opened: {said}; see dmesg, or boot with driver='cpu'"
        raise error(errno.EIO, what).as_os_error() from None
