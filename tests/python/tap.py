"""tap.py - runs the functions test_* of a test program, and prints TAP; starts jobs for them.

A test program ends with tap.main().  Started by itself, it reads BUILD/env (BUILD: build), as a user would.  A test that
cannot run calls tap.skip(why).  With a build of sanitizers, Python is started with their run-times before all else.
"""
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("BUILD", os.path.join(ROOT, "build")))


class Skipped(Exception):
    pass


def skip(why):
    raise Skipped(why)


def sanitizers():
    """Names of the run-times of the build's sanitizers."""
    with open(os.path.join(BUILD, "CMakeCache.txt")) as cache:
        kinds = re.search("^PENSTOCK_SANITIZE.*=(.*)$", cache.read(), re.MULTILINE)[1]
    return ["lib" + {"address": "a", "thread": "t", "undefined": "ub"}[k] + "san.so" for k in kinds.split(",") if k]


def interpreter():
    """This one; or a script that starts it with the run-time of the sanitizers, also as python3 in PATH."""
    names = sanitizers()
    if not names:
        return sys.executable
    found = [subprocess.check_output(["gcc", "-print-file-name=" + name], text=True).strip() for name in names]
    path = os.path.join(tempfile.mkdtemp(), "python3")
    with open(path, "w") as file:
        options = "detect_leaks=0:abort_on_error=0"  # Python frees little at its end
        file.write(f'#!/bin/sh\nASAN_OPTIONS={options} LD_PRELOAD="{" ".join(found)}" exec {sys.executable} "$@"\n')
    os.chmod(path, 0o755)
    return path


def run_all(tests):
    """Returns how many failed."""
    print(f"1..{len(tests)}")
    failed = 0
    for i, (name, function) in enumerate(tests, 1):
        words = name[len("test_") :].replace("_", " ")
        try:
            function()
            print(f"ok {i} - {words}", flush=True)
        except Skipped as why:
            print(f"ok {i} - {words} # skip {why}", flush=True)
        except Exception:
            failed += 1
            print(f"not ok {i} - {words}")
            print(textwrap.indent(traceback.format_exc(), "# "), flush=True)
    return failed


def main():
    """Runs the tests of the calling program, or those whose names contain its first argument."""
    if "TAP_ENV" not in os.environ:
        os.environ["TAP_PYTHON"] = python = interpreter()
        first = "" if python == sys.executable else 'PATH="$(dirname "$1"):$PATH" '
        read = f'. "$0"; {first}TAP_ENV=1 exec "$@"'
        words = ["sh", "-c", read, os.path.join(BUILD, "env"), python] + sys.argv
        os.execvp("sh", words)
    sys.executable = os.environ.get("TAP_PYTHON", sys.executable)
    program = sys.modules["__main__"]
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    tests = [(n, f) for n, f in vars(program).items() if n.startswith("test_") and wanted in n]
    with tempfile.TemporaryDirectory() as tempfile.tempdir:  # what this process writes
        failed = run_all(tests)
    sys.exit(1 if failed else 0)


class Outcome:
    def __init__(self, code, out, seconds):
        self.code, self.out, self.seconds = code, out, seconds
        self.lines = out.splitlines()

    def __repr__(self):
        return f"exit {self.code} after {self.seconds:.1f} s:\n{self.out}"


def script(text, folder=None):
    """Writes a program, and returns its path."""
    path = os.path.join(folder or tempfile.mkdtemp(), "program.py")
    with open(path, "w") as file:
        file.write("import sys, os, time\nimport numpy as np\nimport penstock\n" + textwrap.dedent(text))
    return path


def run(words, timeout=120, **more):
    """Runs a command to its end; its output is that of both streams."""
    started = time.monotonic()
    done = subprocess.run(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        env=dict(os.environ, **more),
    )
    return Outcome(done.returncode, done.stdout, time.monotonic() - started)


def alone(text, timeout=120, **more):
    """A program outside of any job."""
    return run([sys.executable, script(text)], timeout, **more)


def job(text, workers=2, flags=(), timeout=120, **more):
    """A program in a job of `penstock run`, with this interpreter."""
    words = ["penstock", "run", "--nproc-per-node", str(workers)] + list(flags)
    return run(words + [sys.executable, script(text)], timeout, **more)


def passes(outcome):
    assert outcome.code == 0, outcome
    return outcome


def raises(kind, sentence, function, *arguments, **named):
    """The call raises this exception, and its text contains the sentence."""
    try:
        function(*arguments, **named)
    except kind as error:
        assert sentence in str(error), f"'{sentence}' is not in '{error}'"
        return error
    raise AssertionError(f"no {kind.__name__} was raised")
