"""_library.py - finds libpenstock, and gives its functions the types of _c.py."""
import ctypes
import os
from typing import Any, List

from . import _c

_NAME = f"libpenstock.so.{_c.PEN_VERSION_MAJOR}"


def _places() -> List[str]:
    """Where the library may lie: in a wheel, beside an installation; last what the dynamic loader finds by its name."""
    package = os.path.dirname(os.path.abspath(__file__))
    places = [os.path.join(package, "lib", _NAME)]
    above = os.path.dirname(package)
    while os.path.basename(above) not in ("lib", "") and above != os.path.dirname(above):
        above = os.path.dirname(above)
    if os.path.basename(above) == "lib":
        places.append(os.path.join(above, _NAME))
    return places


def _load() -> Any:
    for place in _places():
        if os.path.exists(place):
            return ctypes.CDLL(place)
    try:
        return ctypes.CDLL(_NAME)
    except OSError as error:
        raise ImportError(
            f"penstock: {_NAME} was not found: looked at {', '.join(_places())} and where the dynamic loader looks "
            f"({error}). Install it with `make install` or the package libpenstock1, in a built tree run `. build/env`, "
            f"or put its folder into LD_LIBRARY_PATH"
        ) from None


def _declared(library: Any) -> Any:
    for name, (result, arguments) in _c.FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(
                f"penstock: {library._name} has no {name}: it is older than this package; update it"
            ) from None
        function.restype, function.argtypes = result, arguments
    found = library.pen_version()
    if found >> 16 != _c.PEN_VERSION_MAJOR:
        raise ImportError(
            f"penstock: {library._name} has version {found >> 16}.{found >> 8 & 255}, and this package needs "
            f"{_c.PEN_VERSION_MAJOR}.{_c.PEN_VERSION_MINOR}"
        )
    return library


lib = _declared(_load())
