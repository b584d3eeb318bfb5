"""Times PyG's TGN on a GPU where events arrive in rounds, by `peer_continual.py`, which takes further arguments.

    peer_rounds.py EVENTS.csv[.gz] FEATURES OUT.json [--rounds N] ... --device cuda|cpu
"""

import subprocess
import sys

from torch_gpu import pyg_command


def main(events, features, out_path, *more):
    command = pyg_command("peer_continual.py", any_device="cpu" in more)
    sys.exit(subprocess.run([*command, events, out_path, "--features", features, *more], check=False).returncode)


if __name__ == "__main__":
    main(*sys.argv[1:])
