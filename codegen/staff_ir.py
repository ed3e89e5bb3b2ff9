"""The pool's workers as IR text: started where they miss, and bound to cores. `poly.codegen.pool_ir` has the offsets.

A worker that the caller gave no core is bound to one of its own where there are as many threads as cores, so that none
of them wakes up on another's; else the system places it. `NOBODY_TEXT` is for systems without futex: no workers.
"""

from __future__ import annotations

from typing import Final

STAFF_TEXT: Final = """
define internal i64 @core_of(ptr %box, i64 %wanted) nounwind { ; core + 1, 0: any
  %set = call i64 @field(ptr %box, i64 $BOX_CORE)
  %unset = icmp eq i64 %set, -1
  br i1 %unset, label %auto, label %given
given:
  ret i64 %set
auto: ; one thread a core
  %cores32 = load i32, ptr $CORES, align 4
  %cores = zext i32 %cores32 to i64
  %threads = add i64 %wanted, 1
  %full = icmp eq i64 %threads, %cores
  br i1 %full, label %choose, label %any
choose:
  %own = call i64 @field(ptr %box, i64 $BOX_AUTO)
  ret i64 %own
any:
  ret i64 0
}

define internal void @bind(ptr %box, i64 %core1) nounwind { ; to a core, or to those of the caller
  %one = alloca [16 x i64], align 16
  call void @put(ptr %box, i64 $BOX_BOUND, i64 %core1)
  %free = icmp eq i64 %core1, 0
  br i1 %free, label %set, label %single
single:
  call void @llvm.memset.p0.i64(ptr align 16 %one, i8 0, i64 128, i1 false)
  %core = sub i64 %core1, 1
  %wordno = lshr i64 %core, 6
  %word = getelementptr i64, ptr %one, i64 %wordno
  %bitno = and i64 %core, 63
  %bit = shl i64 1, %bitno
  store i64 %bit, ptr %word, align 8
  br label %set
set:
  %cores = phi ptr [@mask, %0], [%one, %single]
  %handle = call i64 @field(ptr %box, i64 $BOX_THREAD)
  %c = call i32 @pthread_setaffinity_np(i64 %handle, i64 128, ptr %cores)
  ret void
}

define internal void @part() nounwind { ; the caller and a worker that has its core: the worker gets the free one
entry:
  %callers = call i32 @sched_getcpu()
  %callers1 = add i32 %callers, 1
  %here = zext i32 %callers1 to i64
  %home = load i64, ptr $HOME, align 8
  %apart = icmp eq i64 %here, %home
  br i1 %apart, label %end, label %search
search:
  %cores32 = load i32, ptr $CORES, align 4
  %all = zext i32 %cores32 to i64
  %cores = call i64 @llvm.umin.i64(i64 %all, i64 $LIMIT)
  %there32 = load i32, ptr $WORKERS, align 4
  %there = zext i32 %there32 to i64
  br label %next
next:
  %k = phi i64 [0, %search], [%k1, %other]
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, %cores
  br i1 %more, label %look, label %end
look:
  %offset = mul i64 %k, $BOX
  %box = getelementptr i8, ptr @polyloom.boxes, i64 %offset
  %own = call i64 @field(ptr %box, i64 $BOX_AUTO)
  %clash = icmp eq i64 %own, %here
  br i1 %clash, label %change, label %other
other:
  br label %next
change:
  call void @put(ptr %box, i64 $BOX_AUTO, i64 %home)
  store i64 %here, ptr $HOME, align 8
  %set = call i64 @field(ptr %box, i64 $BOX_CORE)
  %bound = call i64 @field(ptr %box, i64 $BOX_BOUND)
  %unset = icmp eq i64 %set, -1
  %same = icmp eq i64 %bound, %here
  %moves = and i1 %unset, %same
  %started = icmp ult i64 %k, %there
  %both = and i1 %moves, %started
  br i1 %both, label %move, label %end
move:
  call void @bind(ptr %box, i64 %home)
  br label %end
end:
  ret void
}

define internal void @look() nounwind { ; at the cores that the caller may run on: which, and how many, may have changed
entry:
  %new = alloca [16 x i64], align 16
  call void @llvm.memset.p0.i64(ptr align 16 %new, i8 0, i64 128, i1 false)
  %r = call i32 @sched_getaffinity(i32 0, i64 128, ptr %new)
  %known = icmp sge i32 %r, 0
  br i1 %known, label %compare, label %end
compare:
  %k = phi i64 [0, %entry], [%k1, %compare]
  %differs = phi i64 [0, %entry], [%differs1, %compare]
  %count = phi i64 [0, %entry], [%count1, %compare]
  %word = call i64 @word(ptr %new, i64 %k)
  %was = call i64 @word(ptr @mask, i64 %k)
  store i64 %word, ptr %was.at, align 8
  %other = xor i64 %word, %was
  %differs1 = or i64 %differs, %other
  %bits = call i64 @llvm.ctpop.i64(i64 %word)
  %count1 = add i64 %count, %bits
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, 16
  br i1 %more, label %compare, label %compared
compared:
  %changed = icmp ne i64 %differs1, 0
  br i1 %changed, label %note, label %end
note:
  %count32 = trunc i64 %count1 to i32
  store i32 %count32, ptr $CORES, align 4
  br label %share
share: ; the cores to the workers, in turn
  %w = phi i64 [0, %note], [%w1, %found]
  %from = phi i64 [1023, %note], [%b, %found]
  %top = phi i64 [0, %note], [%top1, %found]
  br label %seek
seek:
  %before = phi i64 [%from, %share], [%b, %seek]
  %next = add i64 %before, 1
  %b = and i64 %next, 1023
  %at = lshr i64 %b, 6
  %part = call i64 @word(ptr @mask, i64 %at)
  %shift = and i64 %b, 63
  %shifted = lshr i64 %part, %shift
  %hit = trunc i64 %shifted to i1
  br i1 %hit, label %found, label %seek
found:
  %core1 = add i64 %b, 1
  %offset = mul i64 %w, $BOX
  %box = getelementptr i8, ptr @polyloom.boxes, i64 %offset
  call void @put(ptr %box, i64 $BOX_AUTO, i64 %core1)
  %top1 = call i64 @llvm.umax.i64(i64 %top, i64 %core1)
  %w1 = add i64 %w, 1
  %on = icmp ult i64 %w1, $LIMIT
  br i1 %on, label %share, label %shared
shared:
  store i64 %top1, ptr $HOME, align 8
  %there32 = load i32, ptr $WORKERS, align 4
  %there = zext i32 %there32 to i64
  br label %each
each:
  %e = phi i64 [0, %shared], [%e1, %one]
  %left = icmp ult i64 %e, %there
  br i1 %left, label %one, label %end
one:
  %place = mul i64 %e, $BOX
  %its = getelementptr i8, ptr @polyloom.boxes, i64 %place
  %chosen = call i64 @core_of(ptr %its, i64 %there)
  call void @bind(ptr %its, i64 %chosen)
  %e1 = add i64 %e, 1
  br label %each
end:
  ret void
}

define internal i64 @start(i64 %k, i64 %wanted) nounwind { ; worker k; 1 where that worked
  %old = alloca [16 x i64], align 16
  %offset = mul i64 %k, $BOX
  %box = getelementptr i8, ptr @polyloom.boxes, i64 %offset
  store i64 0, ptr %box, align 8
  call void @put(ptr %box, i64 $BOX_SPIN, i64 0)
  %thread = getelementptr i8, ptr %box, i64 $BOX_THREAD
  %number = add i64 %k, 1
  call void @put(ptr %box, i64 $BOX_NUMBER, i64 %number)
  %a = call i32 @pthread_sigmask(i32 2, ptr @signals, ptr %old)
  %failed = call i32 @pthread_create(ptr %thread, ptr null, ptr @worker, ptr %box)
  %b = call i32 @pthread_sigmask(i32 2, ptr %old, ptr null)
  %works = icmp eq i32 %failed, 0
  br i1 %works, label %pin, label %no
pin:
  %core1 = call i64 @core_of(ptr %box, i64 %wanted)
  call void @bind(ptr %box, i64 %core1)
  ret i64 1
no:
  ret i64 0
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define internal i64 @staff(i64 %wanted) nounwind { ; workers there are, after starting those that miss
entry:
  %closed = load i32, ptr $CLOSED, align 4
  %open = icmp eq i32 %closed, 0
  %most = call i64 @llvm.umin.i64(i64 %wanted, i64 $LIMIT)
  br i1 %open, label %count, label %none
count:
  %have32 = load i32, ptr $WORKERS, align 4
  %have = zext i32 %have32 to i64
  %enough = icmp uge i64 %have, %most
  br i1 %enough, label %end, label %more
more:
  call void @look()
  %started = call i64 @start(i64 %have, i64 %most)
  %works = icmp eq i64 %started, 1
  br i1 %works, label %one, label %end
one:
  %now = add i32 %have32, 1
  store i32 %now, ptr $WORKERS, align 4
  br label %count
end:
  %n = call i64 @llvm.umin.i64(i64 %have, i64 %most)
  ret i64 %n
none:
  ret i64 0
}
"""

NOBODY_TEXT: Final = """
define internal void @part() nounwind {
  ret void
}

define internal void @look() nounwind {
  ret void
}

define internal i64 @staff(i64 %wanted) nounwind {
  ret i64 0
}
"""
