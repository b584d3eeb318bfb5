"""Publishes what `scripts/gpu-check.sh` left: results and log under docs/benchmarks/gpu, the fingerprints of verified
kernels in kernels/verified.json, the page, and the lines about the GPU in README. Standard library only. The list of
verified kernels is written from the fingerprints by `UPDATE=1 cargo test --test it gpu_verified`.

    publish.py OUT        takes OUT/gpu-check.json and OUT/gpu-check.log
    publish.py            writes page and lines anew from the published results
    publish.py --check    only reports whether they are up to date

Results are named after GPU and date. A later run of the same day takes their place if it has run all their steps, and
with --replace in any case. A bundle of files that no commit has is published with --replace only. verified.json holds for each file of kernels and each architecture of GPUs the fingerprint
when all parity tests passed last, and where that was.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import report
import targets

ROOT = Path(__file__).resolve().parent.parent.parent
BEGIN, END = "<!-- gpu: written by benches/gpu/publish.py -->", "<!-- gpu: end -->"

PAGE = """# On a GPU

<!-- Written by benches/gpu/publish.py from the results beside it: change those, not this. -->

`make gpu DATA=FOLDER` builds a bundle; `gpu-check.sh` in it checks and measures on a machine with an NVIDIA GPU, its
driver, NVRTC and Python, in five groups of at most eight minutes each. The head of `scripts/gpu-check.sh` lists them.
`python3 benches/gpu/publish.py OUT` publishes what it leaves. Which kernels have been verified since they last changed
is in [kernels.md](kernels.md).

"""
NONE = "No run on a GPU has been published yet: every target below is open.\n\n"


def name_of(document):
    gpu = document["machine"]["gpu"].get("name") or "unknown"
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") + "-" + document["measured"]


def published(folder):
    """All results, the newest first."""
    found = [json.loads(path.read_text()) for path in folder.glob("*-20*.json")]
    return sorted(found, key=lambda document: (document["measured"], name_of(document)), reverse=True)


def counts(judged):
    verdicts = [each["verdict"] for each in judged]
    return ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in (targets.MET, targets.MISSED,
                                                                          targets.UNKNOWN))


def target_rows(judged):
    lines = ["| | target | measured | |", "| --- | --- | --- | --- |"]
    return lines + [f"| {each['what']} | {each['target']} | {each['measured'] or '-'} | {each['verdict']} |"
                    for each in judged]


def section(document):
    """One run: the machine, every target, and what was not measured."""
    gpu, name = document["machine"]["gpu"], name_of(document)
    lines = [f"## {gpu.get('name')}, {document['measured']}", "",
             f"Driver {gpu.get('driver_version')}, {gpu.get('memory.total')}; {document['machine']['cores']} cores of "
             f"{document['machine']['cpu']}; Evergraph {document['version']}, events of {document['events']}. "
             f"[Results]({name}.json), [log]({name}.log). Targets: {counts(document['targets'])}.", ""]
    return lines + target_rows(document["targets"]) + ["", "```text", report.table(document), "```", ""]


def page(documents):
    if not documents:
        return PAGE + NONE + "\n".join(target_rows(targets.verdicts({}))) + "\n"
    return PAGE + "\n".join("\n".join(section(document)) for document in documents)


def readme_lines(documents):
    link = "[docs/benchmarks/gpu](docs/benchmarks/gpu/README.md)"
    if not documents:
        return f"Evergraph has not run on a GPU yet; `make gpu` builds the check that will show it: {link}."
    newest = documents[0]
    return (f"On one {newest['machine']['gpu'].get('name')} ({newest['measured']}): targets "
            f"{counts(newest['targets'])}. {link}.")


def with_lines(text, lines):
    """The text with `lines` between the two marks, which have to be there."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + lines + "\n" + END + rest.split(END)[1]


def ran(document):
    """Steps that ran to their end; tests run apart only after a failure."""
    return {step["step"] for step in document.get("steps", []) if "ok" in step} - {"tests-apart"}


def take(out, folder, kernels, replace):
    """Copies the results of a run, and notes what it verified."""
    document = report.read(out / "gpu-check.json")
    if not document:
        sys.exit(f"{out / 'gpu-check.json'} is missing or not whole")
    if document["quick"]:
        sys.exit("a quick run measures nothing and is not published")
    if document["version"].endswith("-dirty") and not replace:
        sys.exit(f"the bundle was built from files that no commit has ({document['version']}): commit, build it again, "
                 "or publish with --replace")
    path = folder / f"{name_of(document)}.json"
    lost = sorted(ran(report.read(path)) - ran(document))
    if lost and not replace:
        sys.exit(f"{path.name} of an earlier run has steps that {out / 'gpu-check.json'} lacks: {', '.join(lost)}. Run "
                 "gpu-check.sh with the parts of that run (PARTS), or publish with --replace")
    folder.mkdir(parents=True, exist_ok=True)
    for end in ("json", "log"):
        shutil.copy(out / f"gpu-check.{end}", folder / f"{name_of(document)}.{end}")
    gpu, path = document["machine"]["gpu"], kernels / "verified.json"
    facts = {"gpu": gpu.get("name"), "driver": gpu.get("driver_version"), "date": document["measured"]}
    print("the list of verified kernels changes: UPDATE=1 cargo test --test it gpu_verified", file=sys.stderr)
    verified = report.read(path)
    for file, fingerprint in document["verified"].items():
        verified.setdefault(file, {})[document["architecture"]] = {"fingerprint": fingerprint} | facts
    path.write_text(json.dumps(verified, indent=1, sort_keys=True) + "\n")


def files(root):
    """Page and README as they should be."""
    documents = published(root / "docs" / "benchmarks" / "gpu")
    readme = root / "README.md"
    return [(root / "docs" / "benchmarks" / "gpu" / "README.md", page(documents)),
            (readme, with_lines(readme.read_text(), readme_lines(documents)))]


def main(root, arguments):
    check = "--check" in arguments
    for out in (Path(argument) for argument in arguments if not argument.startswith("--")):
        take(out, root / "docs" / "benchmarks" / "gpu", root / "kernels", "--replace" in arguments)
    for path, text in files(root):
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path.relative_to(root)} is not what benches/gpu/publish.py makes of the results: run it")


if __name__ == "__main__":
    main(ROOT, sys.argv[1:])
