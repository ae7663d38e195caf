"""What torch knows of a kernel without a GPU: schema, shapes on meta tensors, tracing."""

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pk_runtime.gpu.operator import operator_name, register
from pk_runtime.interface import Interface, InterfaceError

WORLD = 4
BF16 = torch.bfloat16


def tensor(name: str, *shape: str, dtype: str = "bfloat16") -> dict[str, Any]:
    return {"name": name, "shape": list(shape), "dtype": dtype}


GEMM_RS = Interface.from_json(
    {
        "inputs": [tensor("a", "M", "K/W"), tensor("b", "K/W", "N")],
        "outputs": [tensor("c", "M/W", "N")],
    }
)
TWO = Interface.from_json(
    {
        "inputs": [tensor("x", "M", "N")],
        "outputs": [tensor("y", "M*W", "N"), tensor("z", "M", dtype="float32")],
    }
)


def meta(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_meta_tensors_get_the_interfaces_shapes() -> None:
    call = register("gemm_reducescatter", "candidate", GEMM_RS, WORLD)
    c = call(meta(256, 64), meta(64, 96))
    assert (c.shape, c.dtype, c.device.type) == ((64, 96), BF16, "meta")
    y, z = register("two", "candidate", TWO, WORLD)(meta(8, 16))
    assert (y.shape, y.dtype) == ((32, 16), BF16)
    assert (z.shape, z.dtype) == ((8,), torch.float32)


def test_what_does_not_fit_is_refused_while_tracing() -> None:
    call = register("gemm_reducescatter", "candidate", GEMM_RS, WORLD)
    with pytest.raises(InterfaceError, match="axis K/W is 65"):
        call(meta(256, 64), meta(65, 96))
    with pytest.raises(InterfaceError, match=r"'b' is torch\.float32, not torch\.bfloat16"):
        call(meta(256, 64), meta(64, 96, dtype=torch.float32))


def test_the_name_follows_from_the_kernel() -> None:
    name = operator_name("gemm_reducescatter", "candidate", GEMM_RS, WORLD)
    assert name.startswith("gemm_reducescatter_")
    assert name == operator_name("gemm_reducescatter", "candidate", GEMM_RS, WORLD)
    others = {
        operator_name("gemm_reducescatter", "other", GEMM_RS, WORLD),
        operator_name("gemm_reducescatter", "candidate", TWO, WORLD),
        operator_name("gemm_reducescatter", "candidate", GEMM_RS, 2),
    }
    assert len(others | {name}) == 4
    assert operator_name("2-d/all reduce", "x", TWO, 2).startswith("2_d_all_reduce_")
    call = register("gemm_reducescatter", "candidate", GEMM_RS, WORLD)
    assert register("gemm_reducescatter", "candidate", GEMM_RS, WORLD) is call
    assert str(call._schema) == f"pkforge::{name}(Tensor a, Tensor b) -> Tensor"  # type: ignore[attr-defined]


def test_only_gpus_run_it() -> None:
    call = register("gemm_reducescatter", "candidate", GEMM_RS, WORLD)
    with pytest.raises(NotImplementedError, match="CPU"):
        call(torch.zeros(256, 64, dtype=BF16), torch.zeros(64, 96, dtype=BF16))


def test_a_whole_graph_is_traced_through_it() -> None:
    call = register("gemm_reducescatter", "candidate", GEMM_RS, WORLD)
    seen: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        seen.append(graph)
        return graph.forward

    def layer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(call(a * 2, b))

    traced = torch.compile(layer, backend=backend, fullgraph=True)
    assert traced(meta(256, 64), meta(64, 96)).shape == (64, 96)
    (graph,) = seen
    assert any(node.target is call for node in graph.graph.nodes)


def test_shapes_may_be_symbolic() -> None:
    call = register("gemm_reducescatter", "candidate", GEMM_RS, WORLD)

    def layer(a: torch.Tensor, b: torch.Tensor) -> Any:
        return call(a, b)

    graph = make_fx(layer, tracing_mode="symbolic")(meta(256, 64), meta(64, 96))
    assert any(node.target is call for node in graph.graph.nodes)
