"""What the driver asks of torch on a GPU, with as much of torch.cuda as it uses: as strict as the
real one about streams and pools of captured memory."""

import contextlib
import itertools

import pytest
import torch

from tokenix.drivers.cuda.dense import TorchDense

STREAM = 4096


class Graph:
    """A graph has memory of a pool, which is there as long as a graph has some of it."""

    pools: dict[int, int]

    def __init__(self) -> None:
        self.pool: int | None = None
        self.replayed = 0

    def replay(self) -> None:
        assert self.pool is not None, "not captured"
        self.replayed += 1

    def __del__(self) -> None:
        if self.pool is not None:
            self.pools[self.pool] -= 1


class Stream:
    def __init__(self, pointer: int, device: torch.device) -> None:
        self.pointer, self.device = pointer, device


@pytest.fixture
def cuda(monkeypatch):
    """torch.cuda, of a machine with one GPU."""
    handles, current = itertools.count(1), []
    monkeypatch.setattr(Graph, "pools", {}, raising=False)

    @contextlib.contextmanager
    def graph(made, pool, stream, capture_error_mode):
        assert capture_error_mode == "thread_local", "swap threads go on calling"
        assert stream.pointer == STREAM == current[-1].pointer
        assert Graph.pools.get(pool) != 0, "a pool that had graphs, and has none any more"
        yield
        made.pool = pool
        Graph.pools[pool] = Graph.pools.get(pool, 0) + 1

    for name, stand_in in {
        "is_available": lambda: True, "set_device": lambda device: None, "ExternalStream": Stream,
        "graph_pool_handle": lambda: next(handles), "CUDAGraph": Graph, "graph": graph,
        "set_stream": current.append,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    for name in ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction",
                 "allow_tf32"):  # fmt: skip
        before = getattr(torch.backends.cuda.matmul, name)
        monkeypatch.setattr(torch.backends.cuda.matmul, name, before)
    grad = torch.is_grad_enabled()
    yield Graph
    torch.set_grad_enabled(grad)


def test_graphs_share_a_pool_until_all_are_gone(cuda):
    dense = TorchDense(0, STREAM)
    dense.enter()
    done = []
    first, second = (dense.record(lambda n=n: done.append(n)) for n in range(2))
    assert done == [0, 1] and list(cuda.pools.values()) == [2]
    first()
    del first
    third = dense.record(lambda: None)
    assert list(cuda.pools.values()) == [2]
    del second, third
    assert list(cuda.pools.values()) == [0]
    again = dense.record(lambda: None)
    again()
    assert list(cuda.pools.values()) == [0, 1]


def test_what_cannot_be_captured_is_no_graph(cuda):
    dense = TorchDense(0, STREAM)
    dense.enter()

    def fail():
        raise RuntimeError("not while a stream is captured")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="captured"):
            dense.record(fail)
    dense.record(lambda: None)()


def test_a_torch_without_cuda_is_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(OSError, match="built without CUDA"):
        TorchDense(0, STREAM)
