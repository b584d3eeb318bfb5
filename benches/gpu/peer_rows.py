"""Torch's times of gathering the rows that `evergraph bench ops --device cuda:0` gathered: as many of as many bytes.

    peer_rows.py ROWS.json OUT.json

On the GPU by index_select; from the host by index_select on the CPU into pinned memory and a copy from there,
which is what a training loop without zero-copy does.
"""

import json
import sys

from torch_gpu import Clock, torch_on_gpu, write

# Bytes of a call from which on fewer calls are timed together.
MANY_BYTES = 1 << 26


class Rows:
    """Torch's times. The tables of all widths are views of one, since filling it takes seconds."""

    def __init__(self, torch, device, table_bytes):
        self.torch, self.device, self.clock = torch, device, Clock(torch, device)
        self.host = torch.empty(table_bytes // 4).uniform_()
        self.gpu = self.host.to(device)

    def seconds(self, width, rows, count):
        """On the GPU, and from the host by the CPU and a copy."""
        torch = self.torch
        host, gpu = (all_of[: rows * (width // 4)].view(rows, width // 4) for all_of in (self.host, self.gpu))
        index = torch.randint(rows, (count,), generator=torch.Generator().manual_seed(1))
        there = index.to(self.device)
        to = torch.empty((count, width // 4), device=self.device)
        staging = torch.empty((count, width // 4), pin_memory=self.device == "cuda")

        def from_host():
            torch.index_select(host, 0, index, out=staging)
            to.copy_(staging, non_blocking=True)
            # The staging memory is used again by the next call.
            if self.device == "cuda":
                torch.cuda.current_stream().synchronize()

        device = self.clock.timed(lambda: torch.index_select(gpu, 0, there, out=to))
        return device, self.clock.timed(from_host, 20 if count * width < MANY_BYTES else 3)


def main(rows_path, out_path, *more):
    torch, device = torch_on_gpu(any_device=bool(more))
    with open(rows_path, encoding="utf-8") as file:
        points = [row for row in json.load(file)["rows"] if row["op"] == "gather_rows"]
    rows = Rows(torch, device, max(point["table_rows"] * point["row_bytes"] for point in points))
    figures = []
    for point in points:
        on_gpu, from_host = rows.seconds(point["row_bytes"], point["table_rows"], point["rows"])
        figures.append({"row_bytes": point["row_bytes"], "rows": point["rows"], "device_seconds": on_gpu,
                        "host_seconds": from_host})
        write(out_path, {"peer": f"torch {torch.__version__}", "rows": figures})


if __name__ == "__main__":
    main(*sys.argv[1:])
