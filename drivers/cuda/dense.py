"""Where dense layers run: torch on the compute stream, beside our own kernels.

torch is told to use our stream, so one queue has everything in order, and what is captured on it is
captured whole. This is the seam at which tests put torch of the CPU (tests/cuda/fake.py).
"""

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch

DenseKind = Literal["bf16", "f16", "f32"]
"""Of weights and activations. Sums are float32."""

Work = Callable[[], object]


class Dense(Protocol):
    """torch, on one stream."""

    device: "torch.device"

    def enter(self) -> None:
        """Once in the thread that computes, before all else there."""
        ...

    def view(self, address: int, size: int) -> "torch.Tensor":
        """Memory of the device as uint8 [size]."""
        ...

    def run(self, work: Work) -> None:
        """Do torch operations, in the order of the stream. They must write to tensors that exist,
        and read nothing that changes later but the contents of tensors."""
        ...

    def record(self, work: Work) -> Work:
        """What `work` gives the stream (by `run`, and by launches) is recorded, not done; calling
        the result does it, again and again."""
        ...


def dtype_of(kind: DenseKind) -> "torch.dtype":
    import torch

    return {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[kind]


class _Span:
    """Device memory as torch takes it."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (size,),
            "typestr": "|u1",
            "strides": None,
            "version": 3,
        }


class TorchDense:
    """torch on a GPU. `stream`: a handle of cuda.bindings. OSError if torch has no CUDA."""

    def __init__(self, ordinal: int, stream: Any) -> None:
        import errno

        import torch

        if not torch.cuda.is_available():
            raise OSError(
                errno.ENODEV,
                f"torch {torch.__version__} is built without CUDA, or does not see the GPU; "
                "install the CUDA build of torch",
            )
        self.device = torch.device("cuda", ordinal)
        torch.cuda.set_device(self.device)
        self._stream = torch.cuda.ExternalStream(int(stream), self.device)  # type: ignore[no-untyped-call]
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        # Sums of products stay float32 until they are whole.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_tf32 = False

    def enter(self) -> None:
        import torch

        torch.cuda.set_device(self.device)
        torch.cuda.set_stream(self._stream)
        torch.set_grad_enabled(False)

    def view(self, address: int, size: int) -> "torch.Tensor":
        import torch

        return torch.as_tensor(_Span(address, size), device=self.device)

    def run(self, work: Work) -> None:
        work()

    def record(self, work: Work) -> Work:
        import torch

        if not self._graphs:
            # torch refuses a pool that once had graphs and has none any more.
            self._pool: Any = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # thread_local: the swap threads go on calling meanwhile.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            work()
        self._graphs.add(graph)
        return graph.replay
