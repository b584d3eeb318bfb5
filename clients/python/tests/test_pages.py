"""The notebook of examples and the code of the front page and of docs/python.md run as they stand."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from evergraph import Client
from evergraph._binary import find_binary

HERE = Path(__file__).parent
ROOT = HERE.parent.parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "python.md")
DEMO = re.compile(r"http://(127\.0\.0\.1|localhost):8080")

matplotlib.use("Agg")


def test_the_notebook_shows_a_model_that_learns() -> None:
    notebook = json.loads((HERE.parent / "examples" / "live.ipynb").read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    names: dict[str, Any] = {"__name__": "notebook"}
    try:
        for place, cell in enumerate(code):
            exec(compile("".join(cell["source"]), f"cell {place}", "exec"), names)  # noqa: S102 (our own notebook)
        from matplotlib import pyplot

        pyplot.close("all")
    finally:
        if "daemon" in names:
            names["client"].close()
            names["daemon"].stop()
    assert names["quality"][-1] > names["quality"][0], "the model learns"
    assert names["quality"][-1] > names["baseline"][-1], "and knows more than pairs that met"
    assert names["likely"][0].ranked_by == "model"
    kinds = [int(str(node).removeprefix("item-")) % names["KINDS"] for node in names["likely"][0].nodes]
    assert kinds == [names["kind_of_user"][0]] * 5, "what is likely is what the user likes"
    assert names["places"].shape == (100, 2)


def blocks(page: Path) -> list[tuple[int, str, bool]]:
    """Blocks of Python of a page: line, text, whether it runs."""
    lines = page.read_text().splitlines()
    found = []
    for start, line in enumerate(lines):
        if line == "```python":
            end = lines.index("```", start)
            runs = not lines[start - 1].startswith("<!-- not run: ")
            found.append((start + 2, "\n".join(lines[start + 1 : end]), runs))
    return found


def demo(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """`evergraph demo`, and its address once it has events."""
    command = [find_binary(), "demo", "--listen", "127.0.0.1:0", "--data", str(folder), "--seconds", "60"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("API http"):
            return process, line.split()[1]
    raise AssertionError("the demo ended")


@pytest.mark.parametrize(("page", "least"), [(PAGES[0], 1), (PAGES[1], 5)], ids=["README", "python"])
def test_the_code_of_a_page_runs_against_the_demo(
    page: Path, least: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    process, url = demo(tmp_path / "demo")
    names: dict[str, Any] = {"__name__": "page"}
    try:
        count = 0
        for line, text, runs in blocks(page):
            placed = "\n" * (line - 1) + DEMO.sub(url, text)
            code = compile(placed, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if not runs else 0)
            if runs:
                exec(code, names)  # noqa: S102 (our own page)
                count += 1
        assert count >= least
        assert "Freshness(" in capsys.readouterr().out
    finally:
        # A page shows how to ask, not how to end.
        for left in names.values():
            if isinstance(left, Client):
                left.close()
        process.terminate()
        process.communicate()
