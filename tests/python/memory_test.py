#!/usr/bin/python3
"""memory_test.py - which arrays may be given to a call, and what is said of the others."""
import array
import ctypes

import numpy as np

import tap
from tap import raises


def borrowed():
    import penstock
    from penstock import _memory

    return penstock, _memory


def test_an_array_of_numpy_is_used_where_it_lies():
    penstock, memory = borrowed()
    for kind, dtype in (
        ("f4", "F32"),
        ("f2", "F16"),
        ("f8", "F64"),
        ("i1", "I8"),
        ("u1", "U8"),
        ("i4", "I32"),
        ("u4", "U32"),
        ("i8", "I64"),
        ("u8", "U64"),
        ("?", "U8"),
    ):
        x = np.zeros((3, 4), kind)
        m = memory.borrow_out(x)
        assert (m.address, m.count, m.shape, m.dtype.name) == (x.ctypes.data, 12, (3, 4), dtype), kind
    assert memory.borrow(np.zeros((2, 0, 3), "f4")).count == 0
    assert memory.borrow(np.float32(3)).count == 1
    assert memory.borrow(np.zeros((5, 1, 4), "f4")[:, :, :]).count == 20


def test_anything_with_the_buffer_protocol_is_an_array():
    penstock, memory = borrowed()
    for x, dtype, count in (
        (bytearray(5), "U8", 5),
        (b"abc", "U8", 3),
        (array.array("d", [1, 2]), "F64", 2),
        (memoryview(array.array("q", [1])), "I64", 1),
        ((ctypes.c_int32 * 3)(), "I32", 3),
        (array.array("f", []), "F32", 0),
        (ctypes.c_double(1), "F64", 1),
    ):
        m = memory.borrow(x)
        assert (m.count, m.dtype.name) == (count, dtype), x


def test_a_buffer_that_was_given_out_keeps_its_size_until_it_is_given_back():
    penstock, memory = borrowed()
    x = bytearray(8)
    m = memory.borrow(x)
    raises(BufferError, "", x.append, 1)
    del m
    x.append(1)


class DLTensor(ctypes.Structure):
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


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Exporter:
    """An array of a library that speaks DLPack only."""

    def __init__(self, shape=(2, 3), strides=None, device=1, code=2, bits=32, lanes=1, offset=0, version=None, flags=0):
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = (ctypes.c_int64 * len(shape))(*strides) if strides else None
        self.block = (ctypes.c_char * 4096)()
        t = DLTensor(
            ctypes.addressof(self.block), device, 0, len(shape), code, bits, lanes, self.shape, self.strides, offset
        )
        self.version = version
        self.given = Versioned(version, 0, None, None, flags, t) if version else t

    def __dlpack__(self, **wishes):
        if wishes and not self.version:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        return new_capsule(ctypes.addressof(self.given), b"dltensor_versioned" if self.version else b"dltensor", None)


def test_an_array_that_speaks_dlpack_is_used_where_it_lies():
    penstock, memory = borrowed()
    for version in (None, 1):
        x = Exporter(version=version, offset=64)
        m = memory.borrow_out(x)
        assert (m.address, m.shape, m.dtype.name) == (ctypes.addressof(x.block) + 64, (2, 3), "F32")
        assert memory.borrow(Exporter(code=4, bits=16, version=version)).dtype.name == "BF16"
        assert memory.borrow(Exporter(strides=(3, 1), version=version)).count == 6
        assert memory.borrow(Exporter(device=2, version=version)).is_cuda
        raises(penstock.InvalidArgument, "not contiguous", memory.borrow, Exporter(strides=(1, 2), version=version))
        raises(
            penstock.InvalidArgument, "no type in Penstock", memory.borrow, Exporter(code=5, bits=64, version=version)
        )
        raises(penstock.InvalidArgument, "several lanes", memory.borrow, Exporter(lanes=4, version=version))
        raises(penstock.Unsupported, "device type 8", memory.borrow, Exporter(device=8, version=version))
    raises(penstock.InvalidArgument, "is read-only", memory.borrow_out, Exporter(version=1, flags=1))
    raises(penstock.InvalidArgument, "DLPack of version 2", memory.borrow, Exporter(version=2))


def test_an_array_of_a_cuda_library_is_known_by_its_interface():
    penstock, memory = borrowed()

    class Cupy:
        __cuda_array_interface__ = {
            "data": (4096, False),
            "shape": (4, 2),
            "typestr": "<f4",
            "strides": None,
            "version": 3,
        }

    m = memory.borrow_out(Cupy())
    assert m.is_cuda and (m.address, m.count, m.dtype.name) == (4096, 8, "F32")


def test_what_cannot_be_used_as_it_lies_is_refused_with_a_sentence():
    penstock, memory = borrowed()
    refused = [
        (np.zeros((4, 4), "f4").T[:2], "is not contiguous in row-major order: pass a contiguous copy"),
        (np.zeros(8, "f4")[::2], "is not contiguous"),
        (np.zeros(8, "f4")[::-1], "is not contiguous"),
        (memoryview(bytes(8))[::2], "is not contiguous"),
        (np.zeros(3, ">f4"), "its bytes are in another order than this machine's ('>f4'): use .astype('f4')"),
        (np.zeros(3, "i2"), "elements of 2 bytes of kind 'i' have no type in Penstock"),
        (np.zeros(3, "c8"), "elements of type '<c8' have no type in Penstock"),
        (np.zeros(3, "M8[s]"), "no type in Penstock"),
        (np.zeros(3, [("a", "f4")]), "no type in Penstock"),
        (array.array("h", [1]), "elements of 2 bytes of kind 'i'"),
        ([1.0, 2.0], "list: is no array: pass one of NumPy, PyTorch, JAX or CuPy"),
        (None, "NoneType: is no array"),
        ("text", "str: is no array"),
    ]
    for x, sentence in refused:
        raises(penstock.InvalidArgument, sentence, memory.borrow, x)
    frozen = np.zeros(3, "f4")
    frozen.flags.writeable = False
    for x in (frozen, b"abc", memoryview(b"abc"), np.float32(1)):
        raises(penstock.InvalidArgument, "is read-only, and the call writes to it", memory.borrow_out, x)


def test_memory_of_the_sdk_is_an_array_that_outlives_its_job():
    penstock, memory = borrowed()
    with penstock.init() as job:
        for shape, dtype, kind in (
            ((3, 4), "f32", "float32"),
            (5, "f16", "float16"),
            ((0, 3), "f64", "float64"),
            ((2, 2), "bf16", "uint16"),
            ((), "i64", "int64"),
        ):
            x = job.alloc(shape, dtype)
            assert x.dtype == kind and x.shape == ((shape,) if isinstance(shape, int) else shape) and not x.any()
            x[...] = 1
        kept = job.alloc(1000)
    kept[:] = 3
    assert kept.sum() == 3000


def test_memory_is_freed_with_the_last_array_over_it():
    penstock, memory = borrowed()
    resident = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096
    with penstock.init() as job:
        for i in range(300):
            job.alloc(1 << 20)[:] = 1  # 4 MiB
            if i == 20:
                before = resident()
        assert resident() < before + (16 << 20), (before, resident())


def test_without_numpy_memory_of_the_sdk_is_a_memoryview():
    tap.passes(
        tap.run(
            [
                tap.sys.executable,
                "-c",
                """
import sys
sys.modules["numpy"] = None
import penstock
with penstock.init() as job:
    for shape, dtype, letter in (((3, 4), "f32", "f"), (6, "bf16", "H"), ((0, 3), "f32", "f")):
        x = job.alloc(shape, dtype)
        assert isinstance(x, memoryview) and x.format == letter, x.format
    x = job.alloc((2, 2))
    x[1, 1] = 7
    assert job.world.all_reduce(x) is x and x.tolist() == [[0, 0], [0, 7]]
""",
            ]
        )
    )


tap.main()
