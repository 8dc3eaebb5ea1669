"""_memory.py - the memory behind an array of NumPy, PyTorch, JAX, CuPy or Python: its address, its type, its shape.

An array answers one of four interfaces, tried in this order: that of NumPy's ndarray, the buffer protocol,
DLPack, and __cuda_array_interface__.  Nothing is copied: an array that the library cannot use as it lies is refused
with a sentence.
"""
import ctypes
import enum
import sys
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from . import _c
from ._library import lib
from .errors import InvalidArgument, Unsupported


class DType(enum.IntEnum):
    """Types of elements.  Functions take these, or their names in lower case: "f32", "bf16"."""

    F32 = _c.PEN_F32
    F16 = _c.PEN_F16
    BF16 = _c.PEN_BF16
    F64 = _c.PEN_F64
    I8 = _c.PEN_I8
    U8 = _c.PEN_U8
    I32 = _c.PEN_I32
    U32 = _c.PEN_U32
    I64 = _c.PEN_I64
    U64 = _c.PEN_U64
    F8E4M3 = _c.PEN_F8E4M3
    F8E5M2 = _c.PEN_F8E5M2


_SIZES = {
    DType.F32: 4,
    DType.F16: 2,
    DType.BF16: 2,
    DType.F64: 8,
    DType.I8: 1,
    DType.U8: 1,
    DType.I32: 4,
    DType.U32: 4,
    DType.I64: 8,
    DType.U64: 8,
    DType.F8E4M3: 1,
    DType.F8E5M2: 1,
}
_KINDS = {
    ("f", 4): DType.F32,
    ("f", 2): DType.F16,
    ("f", 8): DType.F64,
    ("i", 1): DType.I8,
    ("u", 1): DType.U8,
    ("i", 4): DType.I32,
    ("u", 4): DType.U32,
    ("i", 8): DType.I64,
    ("u", 8): DType.U64,
    ("b", 1): DType.U8,
}
_NATIVE = "<" if sys.byteorder == "little" else ">"
_TYPESTRS = {(_NATIVE if size > 1 else "|") + f"{kind}{size}": dtype for (kind, size), dtype in _KINDS.items()}
_NAMED = {"bfloat16": DType.BF16, "float8_e4m3fn": DType.F8E4M3, "float8_e5m2": DType.F8E5M2}  # of ml_dtypes
_BITS = {DType.BF16: _NATIVE + "u2", DType.F8E4M3: "|u1", DType.F8E5M2: "|u1"}
_CODES = {0: "i", 1: "u", 2: "f", 6: "b"}  # of DLPack; 4 is bfloat
_FORMATS = {
    "f": "f",
    "d": "f",
    "e": "f",
    "b": "i",
    "h": "i",
    "i": "i",
    "l": "i",
    "q": "i",
    "n": "i",
    "B": "u",
    "H": "u",
    "I": "u",
    "L": "u",
    "Q": "u",
    "N": "u",
    "?": "b",
    "c": "u",
}  # of the buffer protocol


def dtype_of(name: Any) -> DType:
    """The type that a caller named: a DType, or its name."""
    try:
        return DType[name.upper()] if isinstance(name, str) else DType(name)
    except (KeyError, ValueError):
        known = ", ".join(t.name.lower() for t in DType)
        raise InvalidArgument(f"'{name}' is not a type of elements: use one of {known}") from None


class Memory:
    """Borrowed memory: valid as long as this object lives."""

    __slots__ = ("address", "count", "dtype", "shape", "is_readonly", "is_cuda", "owner", "held")

    def __init__(
        self,
        address: int,
        shape: Tuple[int, ...],
        dtype: DType,
        is_readonly: bool,
        is_cuda: bool,
        owner: Any,
        held: Any = None,
    ) -> None:
        count = 1
        for n in shape:
            count *= n
        self.address, self.count, self.dtype, self.shape = address, count, dtype, shape
        self.is_readonly, self.is_cuda, self.owner, self.held = is_readonly, is_cuda, owner, held

    @property
    def size(self) -> int:
        """Bytes."""
        return self.count * _SIZES[self.dtype]


def _refuse(owner: Any, why: str) -> InvalidArgument:
    return InvalidArgument(f"{type(owner).__name__}: {why}")


def _kind(owner: Any, kind: str, size: int) -> DType:
    found = _KINDS.get((kind, size))
    if found is None:
        raise _refuse(
            owner,
            f"elements of {size} bytes of kind '{kind}' have no type in Penstock: convert the array, "
            f"for example to float32",
        )
    return found


def _check_dense(owner: Any, shape: Sequence[int], strides: Optional[Sequence[int]], size: int) -> None:
    if strides is None or 0 in shape:
        return
    expected = size
    for n, stride in zip(reversed(shape), reversed(strides)):
        if n != 1 and stride != expected:
            raise _refuse(owner, "is not contiguous in row-major order: pass a contiguous copy, and copy a result back")
        expected *= n


# ---- NumPy's __array_interface__, and the same of CUDA arrays -----------------------------------
def _typestr(owner: Any, text: str) -> DType:
    plain = _TYPESTRS.get(text)
    if plain is not None:
        return plain
    named = _NAMED.get(getattr(getattr(owner, "dtype", None), "name", ""))
    if named is not None:
        return named
    if not text[2:].isdigit() or text[1] not in "fiub":
        raise _refuse(owner, f"elements of type '{text}' have no type in Penstock")
    if text[0] not in ("|", _NATIVE):
        raise _refuse(
            owner, f"its bytes are in another order than this machine's ('{text}'): use .astype('{text[1:]}')"
        )
    return _kind(owner, text[1], int(text[2:]))


def _of_interface(owner: Any, interface: Dict[str, Any], is_cuda: bool) -> Memory:
    dtype = _typestr(owner, interface["typestr"])
    shape = tuple(interface["shape"])
    _check_dense(owner, shape, interface.get("strides"), _SIZES[dtype])
    address, is_readonly = interface["data"]
    return Memory(address or 0, shape, dtype, is_readonly, is_cuda, owner)


def _of_numpy(owner: Any) -> Memory:
    return _of_interface(owner, owner.__array_interface__, False)


def _of_cuda(owner: Any) -> Memory:
    return _of_interface(owner, owner.__cuda_array_interface__, True)


# ---- the buffer protocol ------------------------------------------------------------------------
class _Py_buffer(ctypes.Structure):
    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
        ("internal", ctypes.c_void_p),
    ]


_PyBUF_RECORDS_RO = 0x18 | 0x04  # strides and format
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_Py_buffer), ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes, _release_buffer.restype = [ctypes.POINTER(_Py_buffer)], None


class _Export:
    """A buffer that its owner has given out: a bytearray does not change its size meanwhile."""

    def __init__(self, owner: Any) -> None:
        self.view = _Py_buffer()
        _get_buffer(owner, ctypes.byref(self.view), _PyBUF_RECORDS_RO)

    def __del__(self, release: Callable[[Any], None] = _release_buffer, byref: Any = ctypes.byref) -> None:
        release(byref(self.view))


def _of_buffer(owner: Any) -> Memory:
    export = _Export(owner)
    view = export.view
    text = (view.format or b"B").decode()
    order, letter = (text[0], text[1:]) if text[0] in "@=<>!" else ("@", text)
    if order in "<>!" and order.replace("!", ">") != _NATIVE and view.itemsize > 1:
        raise _refuse(owner, f"its bytes are in another order than this machine's ('{text}')")
    if letter not in _FORMATS:
        raise _refuse(owner, f"elements of format '{text}' have no type in Penstock")
    shape = tuple(view.shape[: view.ndim]) if view.ndim > 0 else ()
    strides = tuple(view.strides[: view.ndim]) if view.ndim > 0 and view.strides else None
    _check_dense(owner, shape, strides, view.itemsize)
    return Memory(
        view.buf or 0, shape, _kind(owner, _FORMATS[letter], view.itemsize), bool(view.readonly), False, owner, export
    )


# ---- DLPack -------------------------------------------------------------------------------------
class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLVersioned(ctypes.Structure):  # DLManagedTensorVersioned up to its tensor
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.argtypes, _is_capsule.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
_DL_CPU, _DL_CUDA, _DL_CUDA_HOST, _DL_CUDA_MANAGED = 1, 2, 3, 13


def _of_dlpack(owner: Any) -> Memory:
    try:
        capsule = owner.__dlpack__(max_version=(1, 0))
    except TypeError:  # a library from before version 1
        capsule = owner.__dlpack__()
    is_readonly = False
    if _is_capsule(capsule, b"dltensor_versioned"):
        versioned = _DLVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise _refuse(owner, f"gives DLPack of version {versioned.major}, and Penstock reads version 1")
        tensor, is_readonly = versioned.tensor, bool(versioned.flags & 1)
    else:
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    if tensor.device_type not in (_DL_CPU, _DL_CUDA, _DL_CUDA_HOST, _DL_CUDA_MANAGED):
        raise Unsupported(
            f"{type(owner).__name__}: is on a device that Penstock cannot use (DLPack's device type "
            f"{tensor.device_type}): copy it to the host or to a CUDA device"
        )
    if tensor.lanes != 1:
        raise _refuse(owner, "elements of several lanes have no type in Penstock")
    size = tensor.bits // 8
    dtype = DType.BF16 if (tensor.code, size) == (4, 2) else _kind(owner, _CODES.get(tensor.code, "?"), size)
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(size * s for s in tensor.strides[: tensor.ndim]) if tensor.strides else None
    _check_dense(owner, shape, strides, size)
    address = (tensor.data or 0) + tensor.byte_offset
    return Memory(
        address, shape, dtype, is_readonly, tensor.device_type in (_DL_CUDA, _DL_CUDA_MANAGED), owner, capsule
    )


# ---- any of them --------------------------------------------------------------------------------
readers: Dict[type, Callable[[Any], Memory]] = {}  # by the type of the array; penstock.torch adds its own


def _reader(owner: Any) -> Callable[[Any], Memory]:
    if any((c.__module__, c.__name__) == ("numpy", "ndarray") for c in type(owner).__mro__):
        return _of_numpy  # not its scalars, whose interface is that of a copy
    try:
        memoryview(owner).release()
        return _of_buffer
    except TypeError:
        pass
    if hasattr(owner, "__dlpack__"):
        return _of_dlpack
    if hasattr(owner, "__cuda_array_interface__"):
        return _of_cuda
    raise _refuse(owner, "is no array: pass one of NumPy, PyTorch, JAX or CuPy, or anything with the buffer protocol")


def borrow(owner: Any) -> Memory:
    """The memory of an array, which the caller only reads."""
    kind = type(owner)
    reader = readers.get(kind)
    if reader is None:
        reader = readers[kind] = _reader(owner)
    return reader(owner)


def borrow_out(owner: Any) -> Memory:
    """The memory of an array, which the library writes."""
    memory = borrow(owner)
    if memory.is_readonly:
        raise _refuse(owner, "is read-only, and the call writes to it: pass a writable array")
    return memory


# ---- memory of the library, as an array ---------------------------------------------------------
_LETTERS = {
    DType.F32: "f",
    DType.F64: "d",
    DType.I8: "b",
    DType.U8: "B",
    DType.I32: "i",
    DType.U32: "I",
    DType.I64: "q",
    DType.U64: "Q",
    DType.F16: "H",
    DType.BF16: "H",
    DType.F8E4M3: "B",
    DType.F8E5M2: "B",
}


class _Block:
    """Memory of pen_alloc() or of an answer, freed with the last array that lies in it."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __del__(self, free: Callable[[int], None] = lib.pen_free) -> None:
        free(self.address)


def array(address: int, shape: Tuple[int, ...], dtype: DType, keeps: Any) -> Any:
    """An array over memory that `keeps` keeps alive: of NumPy if that is installed, else a memoryview.

    16-bit floats are float16 of NumPy; where no such type exists (bf16, f8, memoryview) elements are the bits,
    unsigned.
    """
    size = _SIZES[dtype]
    for n in shape:
        size *= n
    block = (ctypes.c_char * size).from_address(address)
    setattr(block, "keeps", keeps)
    try:
        import numpy
    except ImportError:
        view = memoryview(block).cast("B")
        return view.cast(_LETTERS[dtype], shape) if size > 0 and shape else view.cast(_LETTERS[dtype])
    return numpy.ndarray(shape, "f2" if dtype == DType.F16 else _LETTERS[dtype], memoryview(block))


class DeviceArray:
    """Memory on a CUDA device, for what reads __cuda_array_interface__: torch.as_tensor(), CuPy, Penstock's own calls.

    Shape      that of the tensor; where the interface has no such type (bf16, f8) elements are the bits, unsigned.
    Ownership  that of the tensor's memory: of the SDK, it is valid until close(), and with mode=zero3 while its unit is
               in use.
    """

    def __init__(self, address: int, shape: Tuple[int, ...], dtype: DType, keeps: Any) -> None:
        self._keeps = keeps
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": _BITS.get(dtype) or next(text for text, known in _TYPESTRS.items() if known == dtype),
            "data": (address, False),
        }


def owned(address: Optional[int], shape: Tuple[int, ...], dtype: DType) -> Any:
    """An array over memory that the library gave away; freed with the last array over it."""
    return array(address or 0, shape, dtype, _Block(address or 0))
