"""Runs a command behind the system-call rules of a service unit, as systemd would set them.

    behind_filter.py UNIT... -- COMMAND...

Applies SystemCallFilter=, SystemCallErrorNumber=EPERM, MemoryDenyWriteExecute= and NoNewPrivileges= of the units,
later ones (drop-ins) on top of earlier ones; nothing else of them. What the names and sets of SystemCallFilter=
stand for is asked of `systemd-analyze syscall-filter`, the numbers are those of the kernel's headers. x86-64 only.
Exit code 3 and a word on standard error where that cannot be had.
"""

import ctypes
import os
import platform
import re
import struct
import subprocess
import sys

HEADER = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"
AUDIT_ARCH_X86_64 = 0xC000003E
LOAD, JUMP_EQUAL, JUMP_ANY_BIT, AND, RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000
NUMBER, ARCH, THIRD_ARGUMENT = 0, 4, 32
PROT_WRITE_EXEC, PROT_EXEC = 6, 4


def cannot(why):
    print(why, file=sys.stderr)
    sys.exit(3)


def settings(units):
    for path in units:
        with open(path, encoding="utf-8") as unit:
            for line in unit:
                key, equals, value = line.strip().partition("=")
                if equals and not key.startswith("#"):
                    yield key, value


def members(name):
    """The system calls of a set, or a call itself."""
    if not name.startswith("@"):
        return {name}
    told = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager", name], capture_output=True, text=True)
    if told.returncode != 0:
        cannot(f"systemd-analyze does not know {name}: {told.stderr}")
    words = [line.split("#")[0].strip() for line in told.stdout.splitlines()[1:]]
    return set().union(*(members(word) for word in words if word))


def allowed(lines):
    """What an allow list holds after all its lines: a line adds, one that begins with ~ takes away."""
    calls = set()
    for value in lines:
        taken = value.startswith("~")
        for name in value.lstrip("~").split():
            calls = calls - members(name) if taken else calls | members(name)
    return calls


def program(calls, numbers, deny_write_execute):
    def instruction(code, operand, if_true=0, if_false=0):
        return struct.pack("HBBI", code, if_true, if_false, operand)

    code = [instruction(LOAD, ARCH), instruction(JUMP_EQUAL, AUDIT_ARCH_X86_64, 1, 0), instruction(RETURN, KILL)]
    code.append(instruction(LOAD, NUMBER))
    if deny_write_execute:
        code += [
            # mmap: not both bits; mprotect: no execution. Each block ends with the number loaded again.
            instruction(JUMP_EQUAL, numbers["mmap"], 0, 5),
            instruction(LOAD, THIRD_ARGUMENT),
            instruction(AND, PROT_WRITE_EXEC),
            instruction(JUMP_EQUAL, PROT_WRITE_EXEC, 0, 1),
            instruction(RETURN, REFUSE),
            instruction(LOAD, NUMBER),
        ]
        for name in ("mprotect", "pkey_mprotect"):
            code += [
                instruction(JUMP_EQUAL, numbers[name], 0, 4),
                instruction(LOAD, THIRD_ARGUMENT),
                instruction(JUMP_ANY_BIT, PROT_EXEC, 0, 1),
                instruction(RETURN, REFUSE),
                instruction(LOAD, NUMBER),
            ]
    for call in sorted(calls & numbers.keys()):
        code += [instruction(JUMP_EQUAL, numbers[call], 0, 1), instruction(RETURN, ALLOW)]
    code.append(instruction(RETURN, REFUSE))
    return b"".join(code)


def confine(code):
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(code)
    header = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    no_new_privileges, seccomp, by_filter = 38, 22, 2
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) != 0 or libc.prctl(seccomp, by_filter, header, 0, 0) != 0:
        cannot(f"the kernel takes no filter: {os.strerror(ctypes.get_errno())}")


def main():
    split = sys.argv.index("--")
    units, command = sys.argv[1:split], sys.argv[split + 1:]
    if platform.machine() != "x86_64" or not os.path.exists(HEADER):
        cannot("system calls are known here by number for x86-64 with the kernel's headers only")
    with open(HEADER, encoding="utf-8") as header:
        numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", header.read())}
    said = list(settings(units))
    calls = allowed([value for key, value in said if key == "SystemCallFilter"])
    denies = dict(said).get("MemoryDenyWriteExecute") == "yes"
    confine(program(calls, numbers, denies))
    os.execvp(command[0], command)


main()
