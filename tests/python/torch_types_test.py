#!/usr/bin/python3
"""torch_types_test.py - the type hints of the whole package, also of what it takes from PyTorch."""
import mypy.api

import tap


def test_type_hints_are_complete_and_right():
    # What mypy found in PyTorch's own files, over a minute's work, is kept beside the build.
    words = ["--strict", "--no-warn-unused-ignores", f"--cache-dir={tap.BUILD}/mypy", f"{tap.ROOT}/python/penstock"]
    out, _, code = mypy.api.run(words)
    assert code == 0, out


tap.main()
