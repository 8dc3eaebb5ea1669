"""memory.py - the memory of PyTorch's tensors."""
from typing import Any, Dict

import torch

from .. import _memory
from .._memory import DType, Memory
from ..errors import InvalidArgument, Unsupported

DTYPES: Dict[torch.dtype, DType] = {
    torch.float32: DType.F32,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.float64: DType.F64,
    torch.int8: DType.I8,
    torch.uint8: DType.U8,
    torch.bool: DType.U8,
    torch.int32: DType.I32,
    torch.int64: DType.I64,
}
for _name, _dtype in (
    ("uint32", DType.U32),
    ("uint64", DType.U64),
    ("float8_e4m3fn", DType.F8E4M3),
    ("float8_e5m2", DType.F8E5M2),
):
    if hasattr(torch, _name):
        DTYPES[getattr(torch, _name)] = _dtype


def of_tensor(t: Any) -> Memory:
    """The memory of a tensor, gradient or not."""
    dtype = DTYPES.get(t.dtype)
    if t.layout is not torch.strided:
        raise InvalidArgument(f"a tensor of layout {t.layout} has no dense memory: use .to_dense()")
    if dtype is None:
        raise InvalidArgument(
            f"tensors of {t.dtype} have no type in Penstock: convert it, for example to torch.float32"
        )
    if not t.is_contiguous():
        raise InvalidArgument("the tensor is not contiguous: use .contiguous(), and copy a result back")
    if t.device.type not in ("cpu", "cuda"):
        raise Unsupported(
            f"the tensor is on device '{t.device}': Penstock uses the memory of hosts and of CUDA devices"
        )
    return Memory(t.data_ptr(), tuple(t.shape), dtype, False, t.is_cuda, t)


_memory.readers[torch.Tensor] = of_tensor
_memory.readers[torch.nn.Parameter] = of_tensor
