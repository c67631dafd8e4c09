"""Which local variables a suspended function may still read: the others cannot tell two positions apart.

The usual backward pass over the instructions, exceptions' ways included. What is not understood counts as read.
"""

from __future__ import annotations

import dis
from functools import cache
from types import CodeType
from typing import Any

_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
_ALWAYS_JUMPS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP")


def live_after(code: CodeType, place: int) -> frozenset[str]:
    """The plain locals that may be read after the instruction at `place` (`f_lasti`)."""
    return _live(code)[place]


@cache
def _live(code: CodeType) -> dict[int, frozenset[str]]:
    instructions = list(dis.get_instructions(code))
    follows = _follows(code, instructions)
    entering: dict[int, frozenset[str]] = {one.offset: frozenset() for one in instructions}
    leaving = dict(entering)
    changed = True
    while changed:
        changed = False
        for one in reversed(instructions):
            after = frozenset[str]().union(*(entering[offset] for offset in follows[one.offset]))
            read, written = _touches(code, one)
            before = (after - written) | read
            changed |= (before, after) != (entering[one.offset], leaving[one.offset])
            entering[one.offset], leaving[one.offset] = before, after
    return leaving


def _follows(code: CodeType, instructions: list[dis.Instruction]) -> dict[int, list[int]]:
    """Where each instruction may go on: the next, a jump's target, the handler of what it raises."""
    follows: dict[int, list[int]] = {}
    offsets = [one.offset for one in instructions]
    for one, after in zip(instructions, [*offsets[1:], None], strict=True):
        ways: list[int] = []
        if after is not None and one.opname not in (*_ENDS, *_ALWAYS_JUMPS):
            ways.append(after)
        if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
            ways.append(one.argval)
        follows[one.offset] = ways
    bytecode: Any = dis.Bytecode(code)  # whose type does not tell of its exception table
    for entry in bytecode.exception_entries:
        for offset in offsets:
            if entry.start <= offset < entry.end:
                follows[offset].append(entry.target)
    return follows


def _touches(code: CodeType, one: dis.Instruction) -> tuple[frozenset[str], frozenset[str]]:
    """What an instruction reads and what it overwrites."""
    nothing: frozenset[str] = frozenset()
    if "FAST" not in one.opname:
        return nothing, nothing
    argument: Any = one.argval
    names: frozenset[str] = frozenset({argument} if isinstance(argument, str) else argument)
    match one.opname:
        case "LOAD_FAST" | "LOAD_FAST_CHECK" | "LOAD_FAST_LOAD_FAST" | "LOAD_FAST_BORROW":
            return names, nothing
        case "STORE_FAST" | "DELETE_FAST" | "STORE_FAST_STORE_FAST":
            return nothing, names
        case _:
            return frozenset(code.co_varnames), nothing
