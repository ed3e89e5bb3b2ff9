"""The memory of buffers of a call, as IR text. Large memory is kept for the next call, in one place for the process:
the system would clear it again. Who takes it leaves nothing there, so that several calls at once have one each.

See `poly.codegen.call_ir`.
"""

from __future__ import annotations

from typing import Final

HEAD: Final = 64  # bytes before memory: how many it has
LEAST_KEPT: Final = 1 << 20  # bytes; malloc keeps less by itself
HUGE: Final = 1 << 22  # bytes from which on the system is asked for large pages, as numpy does
PAGE: Final = 4096
WITHIN: Final = PAGE - 1
LARGE_PAGES: Final = 14  # MADV_HUGEPAGE

KEPT_TEXT: Final = """
@polyloom.most_kept = global i64 0 ; bytes
@kept = internal global i64 0, align $ALIGN
declare ptr @malloc(i64)
declare void @free(ptr)
declare i32 @madvise(ptr, i64, i32)

define internal ptr @memory(i64 %size) nounwind { ; with any content, or null
entry:
  %large = icmp uge i64 %size, $LEAST_KEPT
  br i1 %large, label %look, label %new
look:
  %word = atomicrmw xchg ptr @kept, i64 0 acq_rel
  %old = inttoptr i64 %word to ptr
  %none = icmp eq i64 %word, 0
  br i1 %none, label %new, label %one
one:
  %its = load i64, ptr %old, align 8
  %fits = icmp uge i64 %its, %size
  br i1 %fits, label %use, label %drop
use:
  %again = getelementptr i8, ptr %old, i64 $HEAD
  ret ptr %again
drop:
  call void @free(ptr %old)
  br label %new
new:
  %all = add i64 %size, $HEAD
  %memory = call ptr @malloc(i64 %all)
  %full = icmp eq ptr %memory, null
  br i1 %full, label %end, label %made
made:
  %huge = icmp uge i64 %size, $HUGE
  br i1 %huge, label %advise, label %note
advise:
  %start = ptrtoint ptr %memory to i64
  %beyond = add i64 %start, $WITHIN
  %page = and i64 %beyond, -$PAGE
  %skipped = sub i64 %page, %start
  %left = sub i64 %all, %skipped
  %first = inttoptr i64 %page to ptr
  %ignored = call i32 @madvise(ptr %first, i64 %left, i32 $LARGE_PAGES)
  br label %note
note:
  store i64 %size, ptr %memory, align 8
  %found = getelementptr i8, ptr %memory, i64 $HEAD
  ret ptr %found
end:
  ret ptr null
}

define internal void @done(ptr %found) nounwind {
  %memory = getelementptr i8, ptr %found, i64 -$HEAD
  %size = load i64, ptr %memory, align 8
  %small = icmp ult i64 %size, $LEAST_KEPT
  %most = load i64, ptr @polyloom.most_kept, align 8
  %much = icmp ugt i64 %size, %most
  %back = or i1 %small, %much
  br i1 %back, label %free, label %keep
keep:
  %word = ptrtoint ptr %memory to i64
  %other = atomicrmw xchg ptr @kept, i64 %word acq_rel
  %none = icmp eq i64 %other, 0
  br i1 %none, label %end, label %second
second:
  %old = inttoptr i64 %other to ptr
  call void @free(ptr %old)
  br label %end
free:
  call void @free(ptr %memory)
  br label %end
end:
  ret void
}
"""
