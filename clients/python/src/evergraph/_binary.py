"""Where the program `evergraph` is."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path


def find_binary(binary: str | os.PathLike[str] | None = None) -> str:
    """The program: the argument, else `EVERGRAPH_BIN`, else beside the interpreter's scripts, else on `PATH`.

    Raises:
        FileNotFoundError: It is at none of these places.
    """
    named = os.fspath(binary) if binary is not None else os.environ.get("EVERGRAPH_BIN")
    if named:
        found = shutil.which(named)
        if found is None:
            origin = "the argument `binary`" if binary is not None else "EVERGRAPH_BIN"
            raise FileNotFoundError(f"{origin} names {named!r}, which is no program")
        return found
    beside = Path(sysconfig.get_path("scripts")) / "evergraph"
    found = shutil.which(str(beside)) or shutil.which("evergraph")
    if found is None:
        raise FileNotFoundError(
            f"the program evergraph is neither {beside} nor on PATH; install it, or name it in EVERGRAPH_BIN"
        )
    return found
