"""files.py - a module's values from and to files of safetensors, and from snapshots."""
import json
import os
import subprocess
import tempfile
from typing import Any, Dict, Optional, Tuple, Union

import torch

from ..errors import Corrupt, InvalidArgument, Mismatch, NotFound, Store

Path = Union[str, "os.PathLike[str]"]
_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_HEADER_MAX = 100 << 20


def _header(path: Path, file: Any) -> Tuple[Dict[str, Any], int]:
    """What a file says that it has, and where its data begins; checked against the file's own size."""
    size = os.fstat(file.fileno()).st_size
    n = int.from_bytes(file.read(8), "little")
    if size < 8 or n > min(size - 8, _HEADER_MAX):
        raise Corrupt(f"{os.fspath(path)} is no safetensors file: its header is longer than the file")
    try:
        header = json.loads(file.read(n))
        header.pop("__metadata__", None)
        for row in header.values():
            begin, end = row["data_offsets"]
            if not all(type(n) is int for n in (begin, end, *row["shape"])):
                raise ValueError("an offset or a dimension is no integer")
            count = 1
            for dim in row["shape"]:
                count *= dim
            bytes_each = torch.empty((), dtype=_TYPES[row["dtype"]]).element_size()
            if (
                not 0 <= begin <= end <= size - 8 - n
                or end - begin != count * bytes_each
                or min(row["shape"], default=0) < 0
            ):
                raise ValueError("a tensor is not inside the file")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"{os.fspath(path)} is no safetensors file: {error!r}") from None
    return header, 8 + n


def _read(path: Path, wanted: Dict[str, torch.Tensor]) -> None:
    try:
        file = open(path, "rb")
    except OSError as error:
        raise NotFound(f"load_into(): {error}") from None
    with file:
        header, start = _header(path, file)
        for name, tensor in wanted.items():
            if name not in header:
                more = ", ".join(sorted(set(header) - set(wanted))[:5]) or "nothing else"
                raise NotFound(f"load_into(): {os.fspath(path)} has no '{name}'; it has {more}")
            if list(header[name]["shape"]) != list(tensor.shape):
                raise Mismatch(
                    f"load_into(): '{name}' has shape {list(tensor.shape)} in the module and "
                    f"{header[name]['shape']} in {os.fspath(path)}"
                )
        for name, tensor in wanted.items():
            begin, end = header[name]["data_offsets"]
            file.seek(start + begin)
            raw = bytearray(file.read(end - begin))
            dtype = _TYPES[header[name]["dtype"]]
            values = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
            tensor.copy_(values.reshape(tensor.shape))


def load_into(module: torch.nn.Module, path: Path, *, step: int = -1) -> None:
    """Fills a module's parameters and buffers by their names, from a safetensors file or a snapshot.

    Shape      path: a file, as Context.save(), pen_export(), from_module() or other systems write them; or the folder of
               a job's snapshots (--store DIR), of which step chooses one; -1: the newest.  Values are rounded to the
               module's types.  Each name of the module must be there, others are ignored.  `penstock export`, which
               reads snapshots, gives parameters only: buffers keep their values then.
    Thread     any.  Before DistributedOptimizer() is made, or followed by its load_state_dict().
    Errors     NotFound: no file, or a name is missing.  Mismatch: another shape.  Corrupt.  The module is unchanged then.
               Store: `penstock export` cannot read the snapshot: its sentence.
    Cost       one read; a snapshot is written to a temporary file first.
    """
    wanted = {n: t for n, t in module.state_dict().items() if isinstance(t, torch.Tensor)}
    with torch.no_grad():
        if not os.path.isdir(path):
            _read(path, wanted)
            return
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "snapshot.safetensors")
            words = ["penstock", "export", "--store", os.fspath(path), "--step", str(step), "--out", out]
            try:
                done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            except FileNotFoundError:
                raise NotFound("load_into(): the command penstock reads snapshots, and is not in PATH") from None
            if done.returncode != 0:
                raise Store(f"load_into(): {done.stderr.strip() or words}")
            buffers = {name for name, _ in module.named_buffers()}
            _read(out, {name: tensor for name, tensor in wanted.items() if name not in buffers})


def from_module(module: torch.nn.Module, path: Path, *, dtype: Optional[torch.dtype] = None) -> None:
    """Writes a module's parameters and buffers to a safetensors file, under their names.

    Programs in C begin with it by pen_import(), and Context.load(); `penstock import` makes a snapshot of it.

    Shape      dtype: of floating-point values in the file; None keeps each tensor's.
    Thread     any; one rank is enough.
    Errors     InvalidArgument: a type that the format does not have.  Store: path and cause; an older file is kept then.
    Cost       one write.
    """
    header: Dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts = []
    at = 0
    for name, tensor in module.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            continue
        dense = tensor.detach().to("cpu", dtype if dtype and tensor.is_floating_point() else None).contiguous()
        if dense.dtype not in _NAMES:
            raise InvalidArgument(f"from_module(): '{name}' is of {dense.dtype}, which safetensors does not have")
        size = dense.numel() * dense.element_size()
        header[name] = {"dtype": _NAMES[dense.dtype], "shape": list(dense.shape), "data_offsets": [at, at + size]}
        parts.append(dense)
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    new = f"{os.fspath(path)}.part-{os.getpid()}"
    try:
        with open(new, "xb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for dense in parts:
                file.write(dense.reshape(-1).view(torch.uint8).numpy() if dense.numel() else b"")
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError as error:
        if os.path.exists(new):
            os.unlink(new)
        raise Store(f"from_module(): {error}") from None
