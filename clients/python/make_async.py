"""Makes `async_client.py` from `client.py`, so that the two never differ: `python make_async.py`, or with `--check`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parent / "src" / "evergraph"

PATTERNS = (
    (
        r'^""".*"""$',
        '"""The client for asyncio. Made from `client.py` by `make_async.py`; do not change it by hand."""',
    ),
    (r"^import time$", "import asyncio"),
    (r"Iterable, Iterator, Mapping", "AsyncIterator, Iterable, Mapping"),
    (r"\bIterator\[", "AsyncIterator["),
    (r"\bclass Client\b", "class AsyncClient"),
    (r"-> Client:", "-> AsyncClient:"),
    (r'f"Client\(', 'f"AsyncClient('),
    (r"httpx2\.Client\(", "httpx2.AsyncClient("),
    (r"\bdef (?!__init__|__repr__)", "async def "),
    (r"__enter__", "__aenter__"),
    (r"__exit__", "__aexit__"),
    (r"self\._http\.close\(", "await self._http.aclose("),
    (r"(?<!await )self\.(_run|_perform|close|_http\.request)\(", r"await self.\1("),
    (r"time\.sleep\(", "await asyncio.sleep("),
    (r"^from contextlib import nullcontext\n", ""),
    (
        r"nullcontext\(\)  # one large computation at a time",
        "asyncio.Lock()  # of large computations, which run one at a time in threads",
    ),
    (r"with self\._turn:", "async with self._turn:"),
    (r"\bstep\.run\(\)", "await asyncio.to_thread(step.run)"),
    (
        r"Safe to use from several threads; close it, or use it in a `with` statement\.",
        "It belongs to one event loop; close it, or use it in `async with`.\n\n"
        "    Large requests are made, and large responses read, in a thread, so that other tasks go on meanwhile.",
    ),
)


def made() -> str:
    """The text of `async_client.py`."""
    text = (SOURCES / "client.py").read_text()
    for pattern, replacement in PATTERNS:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE, count=1 if pattern.startswith('^"') else 0)
    head, rest = text.split("import asyncio\n", 1)
    text = head.replace("import os\n", "import asyncio\nimport os\n") + rest
    formatter = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(SOURCES / "async_client.py"), "-"]
    return subprocess.run(formatter, input=text, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Writes the file, or with `--check` only compares."""
    target = SOURCES / "async_client.py"
    if sys.argv[1:] != ["--check"]:
        target.write_text(made())
    elif target.read_text() != made():
        sys.exit("async_client.py is not what client.py gives: run make_async.py")


if __name__ == "__main__":
    main()
