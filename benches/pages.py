"""Pages and plots that are made of figures: written, or with `--check` only compared with what lies there; a folder as
argument stands in for docs/benchmarks. Standard library only."""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent / "docs" / "benchmarks"


def digits(number):
    """Three digits that count, and no exponent."""
    return f"{float(f'{number:.3g}'):,.10g}"


def write(files):
    """`files` are pairs of a path and its text."""
    for target, made in files:
        target.write_text(made)


def main(name, files):
    """`files(folder)` makes the pages of what is measured in a folder; `name` is whose they are, in words for people."""
    folders = [Path(word) for word in sys.argv[1:] if not word.startswith("--")]
    made = files(folders[0] if folders else BENCHMARKS)
    if "--check" not in sys.argv:
        return write(made)
    for target, text in made:
        if not target.exists() or target.read_text() != text:
            sys.exit(f"{target.name} is not what {name} makes of its figures: run it")
