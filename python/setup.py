"""setup.py - a wheel that carries libpenstock:  pip install --no-build-isolation ./python

The library is that of LIBPENSTOCK_DIR, of the tree's build/lib, or of an installation that pkg-config finds.
"""
import os
import shutil
import subprocess

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

NAME = "libpenstock.so.1"


def library():
    here = os.path.dirname(os.path.abspath(__file__))
    asked = subprocess.run(["pkg-config", "--variable=libdir", "penstock"], capture_output=True, text=True)
    places = [os.environ.get("LIBPENSTOCK_DIR"), os.path.join(here, "..", "build", "lib"), asked.stdout.strip()]
    for place in places:
        if place and os.path.exists(os.path.join(place, NAME)):
            return os.path.join(place, NAME)
    raise SystemExit(f"setup.py: {NAME} is in none of {', '.join(p for p in places if p)}: run `make` first")


class WithLibrary(build_py):
    def run(self):
        super().run()
        folder = os.path.join(self.build_lib, "penstock", "lib")
        os.makedirs(folder, exist_ok=True)
        shutil.copy(library(), os.path.join(folder, NAME))


class OfOnePlatform(Distribution):
    def has_ext_modules(self):
        return True


options = {}
try:
    from wheel.bdist_wheel import bdist_wheel

    class OfAnyPython(bdist_wheel):
        def get_tag(self):
            return "py3", "none", super().get_tag()[2]

    options["bdist_wheel"] = OfAnyPython
except ImportError:
    pass

setup(cmdclass={"build_py": WithLibrary, **options}, distclass=OfOnePlatform)
