"""Installs packages that this Python lacks, from wheels that the bundle carries.

    unpack_wheels.py WHEELS SITE

A wheel whose packages are there already is left alone, and so is one for another Python. SITE belongs on PYTHONPATH
then.
"""

import importlib.util
import sys
import zipfile
from pathlib import Path


def suits(name):
    """Whether a wheel is for this Python, by its file's name."""
    python, abi = name.removesuffix(".whl").split("-")[-3:-1]
    here = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return "py3" in python.split(".") or abi == "abi3" or python == here


def lacking(wheel):
    """Whether a package of the wheel cannot be imported here."""
    tops = {name.split("/")[0] for name in wheel.namelist() if "/" in name}
    packages = {top for top in tops if not top.endswith((".dist-info", ".data", ".libs"))}
    return any(importlib.util.find_spec(package) is None for package in packages)


def main(wheels, site):
    for path in sorted(Path(wheels).glob("*.whl")):
        with zipfile.ZipFile(path) as wheel:
            if suits(path.name) and lacking(wheel):
                wheel.extractall(site)
                print(f"unpacked {path.name}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
