"""The arrays of a call, as IR text: whether results lie apart from operands, and fresh ones.

See `poly.codegen.call_ir`. Words of records and offsets in objects are named there.
"""

from __future__ import annotations

from typing import Final

APART_TEXT: Final = """
define internal ptr @spec(ptr %rec, i64 %number) nounwind {
  %specs = call ptr @link(ptr %rec, i64 $ARRAYS)
  %first = mul i64 %number, $ARRAY
  %spec = getelementptr i64, ptr %specs, i64 %first
  ret ptr %spec
}

define internal i1 @apart(ptr %rec, ptr %given, i64 %number) nounwind { ; from all before it, but where it starts from
entry:
  %spec = call ptr @spec(ptr %rec, i64 %number)
  %bytes = call i64 @word(ptr %spec, i64 $BYTES)
  %source = call i64 @word(ptr %spec, i64 $SOURCE)
  %start = call i64 @word(ptr %given, i64 %number)
  %end = add i64 %start, %bytes
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %fine]
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k, %number
  br i1 %more, label %one, label %yes
one:
  %other = call ptr @spec(ptr %rec, i64 %k)
  %otherbytes = call i64 @word(ptr %other, i64 $BYTES)
  %otherstart = call i64 @word(ptr %given, i64 %k)
  %otherend = add i64 %otherstart, %otherbytes
  %before = icmp ule i64 %end, %otherstart
  %behind = icmp ule i64 %otherend, %start
  %disjoint = or i1 %before, %behind
  %its = icmp eq i64 %source, %k1
  %equal = icmp eq i64 %start, %otherstart
  %itself = and i1 %its, %equal
  %ok = or i1 %disjoint, %itself
  br i1 %ok, label %fine, label %no
fine:
  br label %next
yes:
  ret i1 true
no:
  ret i1 false
}

define internal void @begin(ptr %rec, ptr %given, i64 %inputs, i64 %outputs, i1 %fresh) nounwind {
entry: ; what outputs start as
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %done]
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k, %outputs
  br i1 %more, label %one, label %end
one:
  %number = add i64 %inputs, %k
  %spec = call ptr @spec(ptr %rec, i64 %number)
  %source = call i64 @word(ptr %spec, i64 $SOURCE)
  %none = icmp eq i64 %source, 0
  br i1 %none, label %own, label %copy
own:
  %zero = call i64 @word(ptr %spec, i64 $ZERO)
  %asis = icmp eq i64 %zero, 0
  %ready = or i1 %fresh, %asis
  br i1 %ready, label %done, label %clear
clear:
  %all = call i64 @word(ptr %spec, i64 $BYTES)
  %old = call ptr @link(ptr %given, i64 %number)
  call void @llvm.memset.p0.i64(ptr align 1 %old, i8 0, i64 %all, i1 false)
  br label %done
copy:
  %input = sub i64 %source, 1
  %from = call ptr @link(ptr %given, i64 %input)
  %to = call ptr @link(ptr %given, i64 %number)
  %same = icmp eq ptr %from, %to
  br i1 %same, label %done, label %move
move:
  %bytes = call i64 @word(ptr %spec, i64 $BYTES)
  call void @llvm.memcpy.p0.p0.i64(ptr align 1 %to, ptr align 1 %from, i64 %bytes, i1 false)
  br label %done
done:
  br label %next
end:
  ret void
}
"""

FRESH_TEXT: Final = """
define internal ptr @array(ptr %spec, ptr %data, i32 %flags) nounwind { ; in memory of its own where `data` is null
  %type = call ptr @link(ptr @polyloom.facts, i64 $NDARRAY)
  %make = call ptr @link(ptr @polyloom.facts, i64 $NEW_ARRAY)
  %descr = call ptr @link(ptr %spec, i64 $DESCR)
  %rank64 = call i64 @word(ptr %spec, i64 $RANK)
  %rank = trunc i64 %rank64 to i32
  %dims = call ptr @link(ptr %spec, i64 $DIMS)
  %steps = call ptr @link(ptr %spec, i64 $STRIDES)
  call void @Py_IncRef(ptr %descr)
  %new = call ptr %make(ptr %type, ptr %descr, i32 %rank, ptr %dims, ptr %steps, ptr %data, i32 %flags, ptr null)
  ret ptr %new
}

define internal ptr @lined(ptr %spec, i64 %bytes) nounwind { ; in memory of another one, from a line on
entry:
  %room = alloca i64, align 8
  %size = add i64 %bytes, $BEHIND
  store i64 %size, ptr %room, align 8
  %type = call ptr @link(ptr @polyloom.facts, i64 $NDARRAY)
  %make = call ptr @link(ptr @polyloom.facts, i64 $NEW_ARRAY)
  %byte = call ptr @link(ptr @polyloom.facts, i64 $BYTE)
  call void @Py_IncRef(ptr %byte)
  %memory = call ptr %make(ptr %type, ptr %byte, i32 1, ptr %room, ptr null, ptr null, i32 0, ptr null)
  %full = icmp eq ptr %memory, null
  br i1 %full, label %no, label %place
place:
  %start = call i64 @field(ptr %memory, i64 $ND_DATA)
  %behind = add i64 %start, $BEHIND
  %line = and i64 %behind, -$ALIGN
  %data = inttoptr i64 %line to ptr
  %new = call ptr @array(ptr %spec, ptr %data, i32 $CARRAY)
  %failed = icmp eq ptr %new, null
  br i1 %failed, label %drop, label %keep
keep:
  %own = call ptr @link(ptr @polyloom.facts, i64 $SET_BASE)
  %ignored = call i32 %own(ptr %new, ptr %memory)
  ret ptr %new
drop:
  call void @Py_DecRef(ptr %memory)
  br label %no
no:
  ret ptr null
}

define internal ptr @fresh(ptr %spec) nounwind { ; a new array, or null with Python's error set
entry:
  %maker = call ptr @link(ptr %spec, i64 $MAKE)
  %usual = icmp eq ptr %maker, null
  br i1 %usual, label %plain, label %ask
ask:
  %asked = call ptr @PyObject_Vectorcall(ptr %maker, ptr null, i64 0, ptr null)
  ret ptr %asked
plain:
  %bytes = call i64 @word(ptr %spec, i64 $BYTES)
  %beyond = sub i64 %bytes, $LARGE
  %large = icmp ult i64 %beyond, $LARGER
  br i1 %large, label %lines, label %small
lines:
  %lined = call ptr @lined(ptr %spec, i64 %bytes)
  br label %made
small:
  %owned = call ptr @array(ptr %spec, ptr null, i32 0)
  br label %made
made:
  %new = phi ptr [%lined, %lines], [%owned, %small]
  %failed = icmp eq ptr %new, null
  %zero = call i64 @word(ptr %spec, i64 $ZERO)
  %asis = icmp eq i64 %zero, 0
  %ready = or i1 %failed, %asis
  br i1 %ready, label %end, label %clear
clear:
  %data = call ptr @field(ptr %new, i64 $ND_DATA)
  call void @llvm.memset.p0.i64(ptr align 1 %data, i8 0, i64 %bytes, i1 false)
  br label %end
end:
  ret ptr %new
}

define internal ptr @own(ptr %rec, ptr %given, i64 %number) nounwind { ; a fresh array in its place, or null
entry:
  %spec = call ptr @spec(ptr %rec, i64 %number)
  %array = call ptr @fresh(ptr %spec)
  %failed = icmp eq ptr %array, null
  br i1 %failed, label %end, label %note
note:
  %data = call ptr @field(ptr %array, i64 $ND_DATA)
  %at = getelementptr ptr, ptr %given, i64 %number
  store ptr %data, ptr %at, align 8
  br label %end
end:
  ret ptr %array
}

define internal ptr @results(ptr %rec, ptr %given, i64 %inputs, i64 %outputs) nounwind { ; fresh: an array, or a tuple
entry:
  %one = icmp eq i64 %outputs, 1
  br i1 %one, label %single, label %several
single:
  %array = call ptr @own(ptr %rec, ptr %given, i64 %inputs)
  ret ptr %array
several:
  %tuple = call ptr @PyTuple_New(i64 %outputs)
  %bad = icmp eq ptr %tuple, null
  br i1 %bad, label %no, label %next
next:
  %k = phi i64 [0, %several], [%k1, %keep]
  %more = icmp slt i64 %k, %outputs
  br i1 %more, label %make, label %all
make:
  %number = add i64 %inputs, %k
  %item = call ptr @own(ptr %rec, ptr %given, i64 %number)
  %missing = icmp eq ptr %item, null
  br i1 %missing, label %drop, label %keep
keep:
  %ignored = call i32 @PyTuple_SetItem(ptr %tuple, i64 %k, ptr %item)
  %k1 = add i64 %k, 1
  br label %next
drop:
  call void @Py_DecRef(ptr %tuple)
  br label %no
all:
  ret ptr %tuple
no:
  ret ptr null
}
"""
