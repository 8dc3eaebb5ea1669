#!/usr/bin/python3
"""declarations_test.py - the package says the same as penstock.h."""
import ctypes
import os
import subprocess
import sys
import tempfile

import tap


def declared():
    from penstock import _c

    structs = [
        v
        for k, v in vars(_c).items()
        if k.startswith("pen_") and isinstance(v, type) and issubclass(v, ctypes.Structure)
    ]
    numbers = {k: v for k, v in vars(_c).items() if k.startswith("PEN_")}
    return structs, numbers


def test_every_size_offset_and_number_is_the_c_compilers():
    structs, numbers = declared()
    lines, expected = [], []
    for s in structs:
        lines.append(f'printf("%zu\\n", sizeof({s.__name__}));')
        expected.append(ctypes.sizeof(s))
        for field, kind in s._fields_:
            lines.append(f'printf("%zu\\n", offsetof({s.__name__}, {field}));')
            lines.append(f'printf("%zu\\n", sizeof((({s.__name__} *)0)->{field}));')
            expected += [getattr(s, field).offset, ctypes.sizeof(kind)]
    for name, value in numbers.items():
        lines.append(f'printf("%ld\\n", (long){name});')
        expected.append(value)
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "sizes.c"), os.path.join(folder, "sizes")
        with open(source, "w") as file:
            file.write(
                '#include "penstock.h"\n#include <stdio.h>\nint main(void)\n{\n' + "\n".join(lines) + "\nreturn 0;\n}\n"
            )
        subprocess.run(["cc", "-std=c99", f"-I{tap.ROOT}/include", "-o", program, source], check=True)
        found = [
            int(line) for line in subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
        ]
    assert len(structs) >= 17 and len(numbers) > 80
    assert found == expected, [(a, b) for a, b in zip(found, expected) if a != b]


def test_the_declarations_are_those_that_the_script_makes():
    made = subprocess.run(
        [sys.executable, f"{tap.ROOT}/scripts/python_declarations.py"], check=True, capture_output=True, text=True
    )
    with open(f"{tap.ROOT}/python/penstock/_c.py") as file:
        assert file.read() == made.stdout, "run: scripts/python_declarations.py > python/penstock/_c.py"


def test_every_function_of_the_header_is_declared():
    from penstock import _c

    exported = subprocess.run(
        ["nm", "-D", "--defined-only", f"{tap.BUILD}/lib/libpenstock.so"], check=True, capture_output=True, text=True
    )
    names = {line.split()[2].split("@")[0] for line in exported.stdout.splitlines()}
    ours = {name for name in names if name.startswith("pen_")}
    assert ours == set(_c.FUNCTIONS), ours ^ set(_c.FUNCTIONS)


def test_each_status_has_a_class_under_that_of_its_remedy():
    import penstock
    from penstock import _c
    from penstock._library import lib
    from penstock.errors import by_status

    remedies = {
        _c.PEN_ACT_DONE: penstock.DoneError,
        _c.PEN_ACT_WAIT: penstock.WaitError,
        _c.PEN_ACT_CALLER: penstock.CallerError,
        _c.PEN_ACT_RETRY: penstock.RetryError,
        _c.PEN_ACT_REJOIN: penstock.RejoinError,
        _c.PEN_ACT_OPERATOR: penstock.OperatorError,
        _c.PEN_ACT_STOP: penstock.StopError,
    }
    statuses = [
        v for k, v in vars(_c).items() if k in ("PEN_AGAIN", "PEN_END") or (k.startswith("PEN_") and -500 < v <= -100)
    ]
    assert len(statuses) == 20 and set(by_status) == set(statuses)
    for status, kind in by_status.items():
        row = lib.pen_status_info(status).contents
        assert issubclass(kind, remedies[row.remedy]), (kind, row.remedy)
        assert kind.__name__.upper() == row.name.decode().replace("_", "").upper(), (kind, row.name)


def test_without_the_library_import_says_where_it_looked_and_what_to_do():
    words = [sys.executable, "-c", "import penstock"]
    outcome = tap.run(words, LD_LIBRARY_PATH="")
    if outcome.code == 0:
        tap.skip("libpenstock is installed on this machine")
    assert "ImportError: penstock: libpenstock.so.1 was not found: looked at" in outcome.out, outcome
    assert "make install" in outcome.out and "build/env" in outcome.out, outcome


tap.main()
