"""Asking for memory ahead of its use, as marks of loops say (`poly.scheduling.marks.prefetch`, `prefetch_copy`)."""

from __future__ import annotations

from collections.abc import Sequence

from poly.affine import Affine, var
from poly.codegen.addresses import Address
from poly.codegen.places import address_at, joined_address, pointer_to
from poly.codegen.state import State
from poly.dtypes import size_bytes
from poly.program import Access, Tensor

FIRST, SECOND = 3, 2  # localities of `llvm.prefetch`: into the first cache, into the second


def ask_of_load(s: State, tensor: Tensor, subscripts: Sequence[Affine], now: Address | None) -> None:
    """Ask for each vector: where a line is asked for twice, it is less often missed."""
    stride = None if now is None else now.lane_stride
    if s.ahead is None or now is None or stride is None or (stride == 0 and tensor.scope):
        return
    _ask(s, tensor, subscripts, now, *s.ahead, _side_by_side(s, stride))


def ask_of_store(s: State, tensor: Tensor, subscripts: Sequence[Affine], now: Address | None) -> None:
    """Ask once for a line, whatever vectors it has; not where stores go past the caches, so only for memory that is not
    aligned in a loop with such stores.
    """
    if s.ahead is None or now is None or not now.lane_stride or tensor.scope:
        return
    elements = _side_by_side(s, now.lane_stride)
    stored, line = elements * size_bytes(tensor.dtype), s.target.line
    _ask(s, tensor, subscripts, now, *s.ahead, elements if stored > line else 0, unaligned=s.past, whole=stored == line)


def _ask(
    s: State, tensor: Tensor, subscripts: Sequence[Affine], now: Address, loop: str, ahead: int, elements: int,
    *, unaligned: bool = False, whole: bool = False,
) -> None:  # fmt: skip
    """Ask for what is touched some iterations of a loop later, if that moves with the loop: once for all of a body that
    lies in so many elements (0: in a line), and each line of them where they are longer than one. The last element
    counts: where memory starts inside a line, it is in the next; of a store of a line's length the last that is stored
    (`whole`), where the iteration before asked for what lies before it.
    Past the loop's end that is what lies there in memory. An element that all lanes share and that stays in its line
    for several iterations is no stream: the mark asks for nothing there.
    """
    if not any(loop in c.names for c in subscripts):
        return
    line, step = s.target.line // size_bytes(tensor.dtype), s.indices.step(now, loop)
    if step is None:
        later = [c.substitute({loop: var(loop) + ahead}) for c in subscripts]
        address = address_at(s, tensor, later, 0)
    elif not now.lane and abs(step) < line:
        return
    else:
        address = now.at(0)._replace(constant=now.constant + ahead * step)
    apart = min(elements or line, line)
    behind = whole and step == line
    first = address.constant + line - 1 if behind else address.constant // apart * apart + apart - 1
    for place in range(first, first + max(elements, 1), line):
        pointer = pointer_to(s, tensor, address._replace(constant=place))
        if f"ask {pointer}" not in s.writer.local:
            s.writer.local[f"ask {pointer}"] = pointer
            _prefetch(s, pointer, FIRST, unaligned)


def ask_for(s: State, access: Access) -> None:
    """Ask for the line of an element, as `For.asks` says. Digits of a number that are side by side in memory are that
    number again: divisions of each iteration less.
    """
    tensor = s.tensors[access.tensor]
    _prefetch(s, pointer_to(s, tensor, joined_address(s, tensor, access.affine_index)), SECOND)


def _prefetch(s: State, pointer: str, locality: int, unaligned: bool = False) -> None:
    s.writer.declare("void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    call = f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 {locality}, i32 1)"
    s.writer.emit(f"; {call}" if unaligned else call)
    if unaligned:
        s.unaligned[s.writer.lines[-1]] = f"  {call}"


def _side_by_side(s: State, stride: int) -> int:
    """How many elements lanes that lie so far apart touch side by side, 0 where they do not."""
    return s.lanes.width if s.lanes is not None and stride == 1 else 0
