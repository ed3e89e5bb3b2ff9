"""Calls of compiled code in native code, as IR text: `enter`, and the functions behind Python's calls.

A record says all about one way to call a kernel: for which arrays it is (dtype, shape, strides, flags), what its
argument block holds and which of its slots are filled at each call. Objects are read where CPython and numpy lay them
out (`poly.codegen.call` compares that with their own answers before any of this is used). A call that no record fits
goes to the object's method `_careful`, with the same arguments.
"""

from __future__ import annotations

from typing import Final

from poly.codegen import call_memory_ir as memory
from poly.codegen.call_arrays_ir import APART_TEXT, FRESH_TEXT
from poly.codegen.ir_text import expanded, numbers_of
from poly.pointers import ALIGN, BEHIND, LARGE, MAPPED

NO_MEMORY: Final = -2  # a status
MAX_GIVEN: Final = 64

# Words of a record. POSITIONS: for each given pointer its slot, -1: unused. MOVED: pairs (slot, offset in scratch).
NEXT, INPUTS, OUTPUTS, ENTRY, PARTS, RELEASE, SLOTS, TEMPLATE, POSITIONS, MOVES, MOVED, SCRATCH = range(12)
RUN, ARRAYS, SCALAR = range(12, 15)
RECORD: Final = 15
# Words of an array in a record. STRIDES 0: not asked. BYTES: from the first to behind the last element. ZERO: 1 where
# it has to be cleared. SOURCE: 1 + the input that it starts from, 0: none. MAKE: what to call for a fresh one,
# 0: numpy's constructor.
DESCR, RANK, FLAGS, DIMS, STRIDES, BYTES, ZERO, SOURCE, MAKE = range(9)
ARRAY: Final = 9

# Offsets in an ndarray, a tuple, and an object of our own.
ND_TYPE, ND_DATA, ND_RANK, ND_DIMS, ND_STRIDES, ND_DESCR, ND_FLAGS = 8, 16, 24, 32, 40, 56, 64
TUPLE_SIZE, TUPLE_ITEMS = 16, 24
OWN_CODE, OWN_RECORD = 16, 24

# Words of `polyloom.facts`.
NDARRAY, NONE, OUT, NEW_ARRAY, CAREFUL, SCALAR_OF, BYTE, SET_BASE = range(8)
CARRAY: Final = 0x1 | 0x100 | 0x400  # numpy's flags for memory that is given: C-contiguous, aligned, writeable


def call_ir() -> str:
    """The module."""
    starts = {"ALIGN": ALIGN, "BEHIND": BEHIND, "LARGE": LARGE, "LARGER": MAPPED - LARGE}
    numbers = numbers_of({**vars(memory), **globals(), **starts})
    return expanded(memory.KEPT_TEXT + _ENTER + _FITS + APART_TEXT + FRESH_TEXT + _CALL, numbers)


_ENTER = """\
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define i64 @polyloom.enter(ptr %rec, ptr %given) nounwind {
entry:
  %slots = call i64 @word(ptr %rec, i64 $SLOTS)
  %block = alloca i64, i64 %slots, align 16
  %template = call ptr @link(ptr %rec, i64 $TEMPLATE)
  %size = shl i64 %slots, 3
  call void @llvm.memcpy.p0.p0.i64(ptr align 16 %block, ptr align 8 %template, i64 %size, i1 false)
  %inputs = call i64 @word(ptr %rec, i64 $INPUTS)
  %outputs = call i64 @word(ptr %rec, i64 $OUTPUTS)
  %count = add i64 %inputs, %outputs
  %positions = call ptr @link(ptr %rec, i64 $POSITIONS)
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %done]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %filled
one:
  %slot = call i64 @word(ptr %positions, i64 %k)
  %unused = icmp slt i64 %slot, 0
  br i1 %unused, label %done, label %fill
fill:
  %value = call i64 @word(ptr %given, i64 %k)
  %at = getelementptr i64, ptr %block, i64 %slot
  store i64 %value, ptr %at, align 8
  br label %done
done:
  %k1 = add i64 %k, 1
  br label %next
filled:
  %scratch = call i64 @word(ptr %rec, i64 $SCRATCH)
  %plain = icmp eq i64 %scratch, 0
  br i1 %plain, label %run, label %buffers
buffers:
  %bytes = add i64 %scratch, $ALIGN
  %memory = call ptr @memory(i64 %bytes)
  %full = icmp eq ptr %memory, null
  br i1 %full, label %nomemory, label %align
align:
  %number = ptrtoint ptr %memory to i64
  %minus = sub i64 0, %number
  %pad = urem i64 %minus, $ALIGN
  %base = getelementptr i8, ptr %memory, i64 %pad
  %moves = call i64 @word(ptr %rec, i64 $MOVES)
  %moved = call ptr @link(ptr %rec, i64 $MOVED)
  br label %move
move:
  %m = phi i64 [0, %align], [%m1, %place]
  %left = icmp slt i64 %m, %moves
  br i1 %left, label %place, label %run
place:
  %pair = shl i64 %m, 1
  %pairat = getelementptr i64, ptr %moved, i64 %pair
  %mslot = load i64, ptr %pairat, align 8
  %offset = call i64 @word(ptr %pairat, i64 1)
  %where = getelementptr i8, ptr %base, i64 %offset
  %mat = getelementptr i64, ptr %block, i64 %mslot
  store ptr %where, ptr %mat, align 8
  %m1 = add i64 %m, 1
  br label %move
run:
  %owned = phi ptr [null, %filled], [%memory, %move]
  %entryat = call ptr @link(ptr %rec, i64 $ENTRY)
  %parts = call i64 @word(ptr %rec, i64 $PARTS)
  %single = icmp eq i64 %parts, 1
  br i1 %single, label %alone, label %team
alone:
  %s1 = call i64 %entryat(ptr %block, i64 0, i64 1, ptr null)
  br label %ran
team:
  %runner = call ptr @link(ptr %rec, i64 $RUN)
  %s2 = call i64 %runner(ptr %entryat, ptr %block, i64 %parts)
  br label %ran
ran:
  %status = phi i64 [%s1, %alone], [%s2, %team]
  %none = icmp eq ptr %owned, null
  br i1 %none, label %end, label %release
release:
  call void @done(ptr %owned)
  br label %end
end:
  ret i64 %status
nomemory:
  ret i64 $NO_MEMORY
}
"""

_FITS = """
@polyloom.facts = global [8 x ptr] zeroinitializer, align $ALIGN
@fail.name = internal constant [8 x i8] c"_failed\\00"
@fail.kinds = internal constant [3 x i8] c"KL\\00"
@PyTuple_Type = external global i8
@PyUnicode_Type = external global i8
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare ptr @PyObject_GetAttr(ptr, ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyObject_CallMethod(ptr, ptr, ptr, ...)
declare ptr @PyDict_GetItemWithError(ptr, ptr)

define internal i1 @same(ptr %a, ptr %b, i64 %count) nounwind {
entry:
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %one]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %yes
one:
  %x = call i64 @word(ptr %a, i64 %k)
  %y = call i64 @word(ptr %b, i64 %k)
  %eq = icmp eq i64 %x, %y
  %k1 = add i64 %k, 1
  br i1 %eq, label %next, label %no
yes:
  ret i1 true
no:
  ret i1 false
}

define internal i1 @fits(ptr %spec, ptr %array) nounwind { ; an ndarray of this dtype, shape, strides, flags
  %type = call ptr @field(ptr %array, i64 $ND_TYPE)
  %ndarray = call ptr @link(ptr @polyloom.facts, i64 $NDARRAY)
  %plain = icmp eq ptr %type, %ndarray
  br i1 %plain, label %dtype, label %no
dtype:
  %descr = call ptr @field(ptr %array, i64 $ND_DESCR)
  %wanted = call ptr @link(ptr %spec, i64 $DESCR)
  %typed = icmp eq ptr %descr, %wanted
  br i1 %typed, label %rank, label %no
rank:
  %rank32 = call i32 @field(ptr %array, i64 $ND_RANK)
  %rank64 = sext i32 %rank32 to i64
  %wantedrank = call i64 @word(ptr %spec, i64 $RANK)
  %ranked = icmp eq i64 %rank64, %wantedrank
  br i1 %ranked, label %flags, label %no
flags:
  %flags32 = call i32 @field(ptr %array, i64 $ND_FLAGS)
  %flags64 = zext i32 %flags32 to i64
  %needed = call i64 @word(ptr %spec, i64 $FLAGS)
  %there = and i64 %flags64, %needed
  %flagged = icmp eq i64 %there, %needed
  br i1 %flagged, label %shape, label %no
shape:
  %dims = call ptr @field(ptr %array, i64 $ND_DIMS)
  %wanteddims = call ptr @link(ptr %spec, i64 $DIMS)
  %shaped = call i1 @same(ptr %dims, ptr %wanteddims, i64 %rank64)
  br i1 %shaped, label %steps, label %no
steps:
  %wantedsteps = call ptr @link(ptr %spec, i64 $STRIDES)
  %any = icmp eq ptr %wantedsteps, null
  br i1 %any, label %yes, label %strides
strides:
  %stepsat = call ptr @field(ptr %array, i64 $ND_STRIDES)
  %stepped = call i1 @same(ptr %stepsat, ptr %wantedsteps, i64 %rank64)
  ret i1 %stepped
yes:
  ret i1 true
no:
  ret i1 false
}
"""

_CALL = """
define internal ptr @careful(ptr %self, ptr %args, i64 %counted, ptr %names) nounwind {
  %name = call ptr @link(ptr @polyloom.facts, i64 $CAREFUL)
  %method = call ptr @PyObject_GetAttr(ptr %self, ptr %name)
  %missing = icmp eq ptr %method, null
  br i1 %missing, label %no, label %call
call:
  %r = call ptr @PyObject_Vectorcall(ptr %method, ptr %args, i64 %counted, ptr %names)
  call void @Py_DecRef(ptr %method)
  ret ptr %r
no:
  ret ptr null
}

define internal i1 @inputs_fit(ptr %rec, ptr %args, i64 %count, ptr %given) nounwind { ; and their addresses to `given`
entry:
  %inputs = call i64 @word(ptr %rec, i64 $INPUTS)
  %counted = icmp eq i64 %count, %inputs
  br i1 %counted, label %next, label %no
next:
  %k = phi i64 [0, %entry], [%k1, %take]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %yes
one:
  %array = call ptr @link(ptr %args, i64 %k)
  %spec = call ptr @spec(ptr %rec, i64 %k)
  %ok = call i1 @fits(ptr %spec, ptr %array)
  br i1 %ok, label %take, label %no
take:
  %data = call ptr @field(ptr %array, i64 $ND_DATA)
  %at = getelementptr ptr, ptr %given, i64 %k
  store ptr %data, ptr %at, align 8
  %k1 = add i64 %k, 1
  br label %next
yes:
  ret i1 true
no:
  ret i1 false
}

define internal i1 @outputs_fit(ptr %rec, ptr %out, i64 %inputs, i64 %outputs, ptr %given) nounwind {
entry:
  %slot = alloca ptr, align 8
  store ptr %out, ptr %slot, align 8
  %one = icmp eq i64 %outputs, 1
  br i1 %one, label %next, label %several
several:
  %type = call ptr @field(ptr %out, i64 $ND_TYPE)
  %tuple = icmp eq ptr %type, @PyTuple_Type
  br i1 %tuple, label %sized, label %no
sized:
  %size = call i64 @field(ptr %out, i64 $TUPLE_SIZE)
  %items = getelementptr i8, ptr %out, i64 $TUPLE_ITEMS
  %counted = icmp eq i64 %size, %outputs
  br i1 %counted, label %next, label %no
next:
  %k = phi i64 [0, %entry], [0, %sized], [%k1, %fine]
  %from = phi ptr [%slot, %entry], [%items, %sized], [%from, %fine]
  %more = icmp slt i64 %k, %outputs
  br i1 %more, label %each, label %yes
each:
  %array = call ptr @link(ptr %from, i64 %k)
  %number = add i64 %inputs, %k
  %spec = call ptr @spec(ptr %rec, i64 %number)
  %ok = call i1 @fits(ptr %spec, ptr %array)
  br i1 %ok, label %take, label %no
take:
  %data = call ptr @field(ptr %array, i64 $ND_DATA)
  %at = getelementptr ptr, ptr %given, i64 %number
  store ptr %data, ptr %at, align 8
  %apart = call i1 @apart(ptr %rec, ptr %given, i64 %number)
  br i1 %apart, label %fine, label %no
fine:
  %k1 = add i64 %k, 1
  br label %next
yes:
  ret i1 true
no:
  ret i1 false
}

define ptr @polyloom.call(ptr %self, ptr %args, i64 %counted, ptr %names) nounwind {
entry:
  %given = alloca [$MAX_GIVEN x ptr], align 16
  %count = and i64 %counted, 9223372036854775807
  %none = call ptr @link(ptr @polyloom.facts, i64 $NONE)
  %plain = icmp eq ptr %names, null
  br i1 %plain, label %search, label %keywords
keywords:
  %size = call ptr @field(ptr %names, i64 $TUPLE_SIZE)
  %single = icmp eq ptr %size, inttoptr (i64 1 to ptr)
  br i1 %single, label %keyword, label %slow
keyword:
  %key = call ptr @field(ptr %names, i64 $TUPLE_ITEMS)
  %known = call ptr @link(ptr @polyloom.facts, i64 $OUT)
  %isout = icmp eq ptr %key, %known
  %value = call ptr @link(ptr %args, i64 %count)
  br i1 %isout, label %search, label %slow
search:
  %out = phi ptr [%none, %entry], [%value, %keyword]
  %first = call ptr @field(ptr %self, i64 $OWN_RECORD)
  br label %next
next:
  %rec = phi ptr [%first, %search], [%following, %other]
  %unknown = icmp eq ptr %rec, null
  br i1 %unknown, label %slow, label %try
try:
  %ok = call i1 @inputs_fit(ptr %rec, ptr %args, i64 %count, ptr %given)
  br i1 %ok, label %result, label %other
other:
  %following = call ptr @link(ptr %rec, i64 $NEXT)
  br label %next
result:
  %outputs = call i64 @word(ptr %rec, i64 $OUTPUTS)
  %make = icmp eq ptr %out, %none
  br i1 %make, label %new, label %old
old:
  %usable = call i1 @outputs_fit(ptr %rec, ptr %out, i64 %count, i64 %outputs, ptr %given)
  br i1 %usable, label %kept, label %slow
kept:
  call void @Py_IncRef(ptr %out)
  br label %run
new:
  %fresh = call ptr @results(ptr %rec, ptr %given, i64 %count, i64 %outputs)
  %missing = icmp eq ptr %fresh, null
  br i1 %missing, label %error, label %run
run:
  %found = phi ptr [%out, %kept], [%fresh, %new]
  %release = call i64 @word(ptr %rec, i64 $RELEASE)
  %brief = icmp eq i64 %release, 0
  br i1 %brief, label %hold, label %let
hold:
  call void @begin(ptr %rec, ptr %given, i64 %count, i64 %outputs, i1 %make)
  %s1 = call i64 @polyloom.enter(ptr %rec, ptr %given)
  br label %ran
let:
  %thread = call ptr @PyEval_SaveThread()
  call void @begin(ptr %rec, ptr %given, i64 %count, i64 %outputs, i1 %make)
  %s2 = call i64 @polyloom.enter(ptr %rec, ptr %given)
  call void @PyEval_RestoreThread(ptr %thread)
  br label %ran
ran:
  %status = phi i64 [%s1, %hold], [%s2, %let]
  %fine = icmp eq i64 %status, 0
  br i1 %fine, label %end, label %failed
end:
  %scalar = call i64 @word(ptr %rec, i64 $SCALAR)
  %wanted = icmp ne i64 %scalar, 0
  %number = and i1 %wanted, %make
  br i1 %number, label %unpack, label %return
return:
  ret ptr %found
unpack:
  %scalarof = call ptr @link(ptr @polyloom.facts, i64 $SCALAR_OF)
  %v = call ptr %scalarof(ptr %found)
  ret ptr %v
failed:
  call void @Py_DecRef(ptr %found)
  %which = ptrtoint ptr %rec to i64
  %r = call ptr (ptr, ptr, ptr, ...) @PyObject_CallMethod(
    ptr %self, ptr @fail.name, ptr @fail.kinds, i64 %which, i64 %status)
  ret ptr %r
error:
  ret ptr null
slow:
  %s = call ptr @careful(ptr %self, ptr %args, i64 %counted, ptr %names)
  ret ptr %s
}

define ptr @polyloom.dispatch(ptr %self, ptr %args, i64 %counted, ptr %names) nounwind { ; by the first argument, a str
  %count = and i64 %counted, 9223372036854775807
  %empty = icmp eq i64 %count, 0
  br i1 %empty, label %slow, label %some
some:
  %key = load ptr, ptr %args, align 8
  %type = call ptr @field(ptr %key, i64 $ND_TYPE)
  %text = icmp eq ptr %type, @PyUnicode_Type
  br i1 %text, label %look, label %slow
look:
  %table = call ptr @field(ptr %self, i64 $OWN_RECORD)
  %found = call ptr @PyDict_GetItemWithError(ptr %table, ptr %key)
  %absent = icmp eq ptr %found, null
  br i1 %absent, label %slow, label %go
go:
  %rest = getelementptr ptr, ptr %args, i64 1
  %fewer = sub i64 %count, 1
  %r = call ptr @polyloom.call(ptr %found, ptr %rest, i64 %fewer, ptr %names)
  ret ptr %r
slow:
  %s = call ptr @careful(ptr %self, ptr %args, i64 %counted, ptr %names)
  ret ptr %s
}
"""
