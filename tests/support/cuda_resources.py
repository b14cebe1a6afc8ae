"""Registers and spills of every CUDA kernel, held against a committed table: `make cuda-check`.

python -m tests.support.cuda_resources LOG [--write]

LOG is what a build with -Xptxas=-v printed. A kernel that takes more registers than the table says, or
spills more, fails, and so does one that the table does not know or that is gone. --write makes the table
anew: say in the commit why a figure grew. Counts are one compiler's: with another release nothing is
compared.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.support.cxx import ROOT

TABLE = ROOT / "tests/engine_ext/cuda/resources.json"

# An argument of a template: a number, a type by its mangled name, or a class of the kernels' own namespace.
_PLAIN = r"L[a-z]\d+E|13__nv_bfloat16|[hf]"
_OWN = r"NS0_\d+[A-Z][a-z]+(?:[A-Z][a-z]+)*?(?:I(?:Li\d+E)+E)?E"
_KERNEL = re.compile(
    rf"_GLOBAL__N__[0-9a-f]+_\d+_(\w+?)_cu_[0-9a-f]{{8}}\d+([a-z]\w*?)(?:I((?:{_PLAIN}|{_OWN})+)E)?E"
)
_ARGUMENT = re.compile(rf"({_OWN})|L[a-z](\d+)E|(13__nv_bfloat16|[hf])")
_CLASS = re.compile(r"NS0_\d+((?:[A-Z][a-z]+)+?)(?:I((?:Li\d+E)+)E)?E")
_TYPES = {"13__nv_bfloat16": "bf16", "h": "uint8", "f": "float32"}
_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores")
_REGISTERS = re.compile(r"Used (\d+) registers")


class Resources(NamedTuple):
    """Of one thread: registers, and bytes that go to memory for want of them."""

    registers: int
    spilled: int


def kernel_name(mangled: str) -> str:
    """Give `file/kernel<arguments>` for a kernel of an unnamed namespace; ValueError for anything else."""
    match = _KERNEL.search(mangled)
    if match is None:
        raise ValueError(f"not a kernel's name: {mangled}")
    file, kernel, arguments = match.groups()
    values = [
        _class_name(own) if own else value or _TYPES[kind]
        for own, value, kind in _ARGUMENT.findall(arguments or "")
    ]
    return f"{file}/{kernel}" + (f"<{', '.join(values)}>" if values else "")


def _class_name(mangled: str) -> str:
    match = _CLASS.fullmatch(mangled)
    if match is None:
        raise ValueError(f"not a class's name: {mangled}")
    name, numbers = str(match[1]), re.findall(r"Li(\d+)E", match[2] or "")
    return name + (f"<{', '.join(numbers)}>" if numbers else "")


def parsed(log: str) -> dict[str, Resources]:
    """Read what ptxas said, by `file/kernel<arguments> sm_XX`."""
    found: dict[str, Resources] = {}
    name, spilled = "", 0
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            name = f"{kernel_name(entry[1])} {entry[2]}"
        elif spills := _SPILLS.search(line):
            spilled = int(spills[1])
        elif name and (registers := _REGISTERS.search(line)):
            found[name] = Resources(int(registers[1]), spilled)
            name = ""
    return found


def complaints(found: dict[str, Resources], table: dict[str, Resources]) -> list[str]:
    """Say what grew, what is new and what is gone."""
    grown = [
        f"{name}: {found[name].registers} registers, {found[name].spilled} bytes spilled; the table has "
        f"{table[name].registers} and {table[name].spilled}"
        for name in sorted(found.keys() & table.keys())
        if found[name].registers > table[name].registers or found[name].spilled > table[name].spilled
    ]
    new = [f"{name}: not in the table" for name in sorted(found.keys() - table.keys())]
    gone = [f"{name}: in the table, not in the build" for name in sorted(table.keys() - found.keys())]
    return grown + new + gone


def release() -> str:
    """Name nvcc's release, "13.0"."""
    said = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"release (\d+\.\d+)", said)[0]


def main() -> int:
    log, *flags = sys.argv[1:]
    found = parsed(Path(log).read_text())
    if "--write" in flags:
        lines = (f"{json.dumps(name)}: {list(found[name])}" for name in sorted(found))
        kernels = ",\n    ".join(lines)
        TABLE.write_text(f'{{\n  "nvcc": "{release()}",\n  "kernels": {{\n    {kernels}\n  }}\n}}\n')
        return 0
    table = json.loads(TABLE.read_text())
    if table["nvcc"] != (here := release()):
        print(f"cuda-check: registers not compared, the table is of nvcc {table['nvcc']} and this is {here}")
        return 0
    grew = complaints(found, {name: Resources(*values) for name, values in table["kernels"].items()})
    print("\n".join(grew) or f"cuda-check: {len(found)} kernels within the table of registers and spills")
    return 1 if grew else 0


if __name__ == "__main__":
    sys.exit(main())
