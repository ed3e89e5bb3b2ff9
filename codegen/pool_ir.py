"""The worker pool's code, as IR text. See `poly.codegen.pool` for what it does.

One block of memory holds the pool's state, every field that several threads write on a cache line of its own; each
worker has a box with the word it waits at. Whoever holds `BUSY` may write the job and the boxes. Waiting is always for
a 32-bit word to change (`wait`): looks for a bounded time, then a futex; who changes the word wakes those asleep, and
since both sides use sequentially consistent operations on (word, asleep), one of them sees the other.

How workers are started and bound to cores is in `poly.codegen.staff_ir`; what the parts of a job call, to share out
iterations and to meet, in `poly.codegen.team_ir`.
"""

from __future__ import annotations

from typing import Final

from poly.codegen import team_ir
from poly.codegen.host import is_arm, is_x86
from poly.codegen.ir_text import expanded, numbers_of
from poly.codegen.staff_ir import NOBODY_TEXT, STAFF_TEXT
from poly.codegen.team_ir import MEET_TEXT, PLACED_TEXT, SEQUENCE_TEXT, SHARE, TAKE_TEXT

MAX_THREADS: Final = 256
BOX: Final = 128  # bytes of a worker's box

# Offsets in a box, whose word is at 0: BOX_CORE is the core + 1, or 0: any, or -1: as in BOX_AUTO. Then the job, and
# the core that the worker is bound to. HOME is the one core that is in no worker's BOX_AUTO: the caller's.
BOX_ASLEEP, BOX_THREAD, BOX_CORE, BOX_NUMBER = 4, 8, 16, 24
BOX_ENTRY, BOX_ARGS, BOX_PARTS, BOX_SPIN, BOX_AUTO, BOX_BOUND = 32, 40, 48, 56, 64, 72

# Offsets in the block.
BUSY, CLOSED, WORKERS, CORES, SPIN, HOME = 64, 68, 72, 76, 80, 88
JOB_SPIN = 128
DONE, CALLER_ASLEEP = 256, 260
ARRIVED = 384
MEETING, MEETING_ASLEEP = 512, 516
STATUS, AGREED = 640, 648
_BYTES = 768
_BLOCK = (
    "BUSY", "CLOSED", "WORKERS", "CORES", "SPIN", "HOME", "JOB_SPIN", "DONE", "CALLER_ASLEEP", "ARRIVED",
    "MEETING", "MEETING_ASLEEP", "STATUS", "AGREED",
)  # fmt: skip


def pool_ir(triple: str, futex: int) -> str:
    """The module for a system with this number of the futex call; 0: there is none, and every job runs alone."""
    pause, declared = "", ""
    if is_x86(triple):
        pause, declared = "call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()\n"
    elif is_arm(triple):
        pause, declared = "call void @llvm.aarch64.hint(i32 1)", "declare void @llvm.aarch64.hint(i32)\n"
    text = declared + _STATE + _WAIT + TAKE_TEXT + MEET_TEXT + _WORKER + (STAFF_TEXT if futex else NOBODY_TEXT)
    text += _RUN + SEQUENCE_TEXT + PLACED_TEXT
    numbers = numbers_of(vars(team_ir)) | numbers_of(globals())
    block = {name: f"getelementptr (i8, ptr @polyloom.block, i64 {numbers[name]})" for name in _BLOCK}
    sizes = {"BYTES": str(_BYTES), "BOXES": str(MAX_THREADS * BOX), "LIMIT": str(MAX_THREADS - 1)}
    sizes["SHARES"] = str(MAX_THREADS * SHARE)
    return expanded(text, {**numbers, **block, **sizes, "FUTEX": str(futex), "PAUSE": pause})


_STATE = """\
@polyloom.block = global [$BYTES x i8] zeroinitializer, align 128
@polyloom.boxes = global [$BOXES x i8] zeroinitializer, align 128
@polyloom.shares = internal global [$SHARES x i8] zeroinitializer, align 128
@mask = internal global [16 x i64] zeroinitializer, align 16 ; the cores that a caller may run on
@signals = internal constant [16 x i64] [i64 -1273, i64 -1, i64 -1, i64 -1, i64 -1, i64 -1, i64 -1, i64 -1, i64 -1,
  i64 -1, i64 -1, i64 -1, i64 -1, i64 -1, i64 -1, i64 -1], align 16 ; all but ILL TRAP ABRT BUS FPE SEGV

declare i64 @syscall(i64, ...)
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_yield()
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @pthread_setaffinity_np(i64, i64, ptr)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.ctlz.i64(i64, i1)
declare i64 @llvm.ctpop.i64(i64)

define void @polyloom.forked() nounwind { ; also the first initialisation
  store ptr @meet, ptr @polyloom.block, align 8
  store ptr @take, ptr getelementptr (i8, ptr @polyloom.block, i64 $TAKE), align 8
  store i32 0, ptr $WORKERS, align 4
  store i32 0, ptr $DONE, align 4
  store i32 0, ptr $CALLER_ASLEEP, align 4
  store i32 0, ptr $ARRIVED, align 4
  store i32 0, ptr $MEETING_ASLEEP, align 4
  store atomic i32 0, ptr $BUSY seq_cst, align 4
  ret void
}
"""

_WAIT = """
define internal i64 @now() nounwind {
  %t = alloca [2 x i64], align 16
  %r = call i32 @clock_gettime(i32 1, ptr %t)
  %s = load i64, ptr %t, align 8
  %p = getelementptr i64, ptr %t, i64 1
  %n = load i64, ptr %p, align 8
  %m = mul i64 %s, 1000000000
  %a = add i64 %m, %n
  ret i64 %a
}

define internal void @wake(ptr %word) nounwind {
  %r = call i64 (i64, ...) @syscall(i64 $FUTEX, ptr %word, i32 129, i32 2147483647, ptr null, ptr null, i32 0)
  ret void
}

define internal i1 @wait(ptr %word, i32 %seen, ptr %asleep, i64 %spin) nounwind { ; whether it slept
entry:
  br label %looks
looks:
  %start = phi i64 [0, %entry], [%first, %enough]
  br label %look
look:
  %k = phi i32 [0, %looks], [%k1, %pause]
  %v = load atomic i32, ptr %word acquire, align 4
  %same = icmp eq i32 %v, %seen
  br i1 %same, label %pause, label %changed
pause:
  $PAUSE
  %k1 = add i32 %k, 1
  %more = icmp slt i32 %k1, 64
  br i1 %more, label %look, label %clock
clock:
  %brief = icmp eq i64 %spin, 0
  br i1 %brief, label %sleep, label %enough
enough:
  %now = call i64 @now()
  %none = icmp eq i64 %start, 0
  %first = select i1 %none, i64 %now, i64 %start
  %spent = sub i64 %now, %first
  %again = icmp slt i64 %spent, %spin
  br i1 %again, label %looks, label %sleep
sleep:
  %a = atomicrmw add ptr %asleep, i32 1 seq_cst
  %w = load atomic i32, ptr %word seq_cst, align 4
  %still = icmp eq i32 %w, %seen
  br i1 %still, label %futex, label %up
futex:
  %r = call i64 (i64, ...) @syscall(i64 $FUTEX, ptr %word, i32 128, i32 %seen, ptr null, ptr null, i32 0)
  br label %up
up:
  %b = atomicrmw sub ptr %asleep, i32 1 seq_cst
  %x = load atomic i32, ptr %word acquire, align 4
  %spurious = icmp eq i32 %x, %seen
  br i1 %spurious, label %sleep, label %slept
changed:
  ret i1 false
slept:
  ret i1 true
}
"""

_WORKER = """
define internal ptr @worker(ptr %box) nounwind {
entry:
  %asleep = getelementptr i8, ptr %box, i64 $BOX_ASLEEP
  %number = call i64 @field(ptr %box, i64 $BOX_NUMBER)
  %spinat = getelementptr i8, ptr %box, i64 $BOX_SPIN
  br label %idle
idle:
  %seen = phi i32 [0, %entry], [%now, %next]
  %spin = load atomic i64, ptr %spinat monotonic, align 8
  %s = call i1 @wait(ptr %box, i32 %seen, ptr %asleep, i64 %spin)
  %now = load atomic i32, ptr %box acquire, align 4
  %f = call ptr @field(ptr %box, i64 $BOX_ENTRY)
  %stop = icmp eq ptr %f, null
  br i1 %stop, label %end, label %work
work:
  %args = call ptr @field(ptr %box, i64 $BOX_ARGS)
  %parts = call i64 @field(ptr %box, i64 $BOX_PARTS)
  %status = call i64 %f(ptr %args, i64 %number, i64 %parts, ptr @polyloom.block)
  call void @note(i64 %status)
  %left = atomicrmw sub ptr $DONE, i32 1 seq_cst
  %last = icmp eq i32 %left, 1
  br i1 %last, label %tell, label %next
tell:
  %sleeping = load atomic i32, ptr $CALLER_ASLEEP seq_cst, align 4
  %none = icmp eq i32 %sleeping, 0
  br i1 %none, label %next, label %up
up:
  call void @wake(ptr $DONE)
  br label %next
next:
  br label %idle
end:
  ret ptr null
}

define internal void @call_workers(i64 %count, ptr %job, ptr %args, i64 %parts, i64 %spin) nounwind { ; 0 .. count - 1
entry:
  %none = icmp eq i64 %count, 0
  br i1 %none, label %end, label %post
post:
  %k = phi i64 [0, %entry], [%k1, %post]
  %offset = mul i64 %k, $BOX
  %box = getelementptr i8, ptr @polyloom.boxes, i64 %offset
  call void @put(ptr %box, i64 $BOX_ENTRY, ptr %job)
  call void @put(ptr %box, i64 $BOX_ARGS, ptr %args)
  call void @put(ptr %box, i64 $BOX_PARTS, i64 %parts)
  %spinat = getelementptr i8, ptr %box, i64 $BOX_SPIN
  store atomic i64 %spin, ptr %spinat monotonic, align 8
  %old = load i32, ptr %box, align 4
  %new = add i32 %old, 1
  store atomic i32 %new, ptr %box release, align 4
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, %count
  br i1 %more, label %post, label %posted
posted:
  fence seq_cst
  br label %check
check:
  %i = phi i64 [0, %posted], [%i1, %checked]
  %where = mul i64 %i, $BOX
  %word = getelementptr i8, ptr @polyloom.boxes, i64 %where
  %asleepat = getelementptr i8, ptr %word, i64 $BOX_ASLEEP
  %asleep = load atomic i32, ptr %asleepat seq_cst, align 4
  %awake = icmp eq i32 %asleep, 0
  br i1 %awake, label %checked, label %up
up:
  call void @wake(ptr %word)
  call void @look()
  br label %checked
checked:
  %i1 = add i64 %i, 1
  %on = icmp ult i64 %i1, %count
  br i1 %on, label %check, label %end
end:
  ret void
}
"""

_RUN = """
define i64 @polyloom.run(ptr %entry, ptr %args, i64 %parts) nounwind {
  %one = icmp sle i64 %parts, 1
  br i1 %one, label %alone, label %lock
lock:
  %taken = cmpxchg ptr $BUSY, i32 0, i32 1 seq_cst seq_cst
  %mine = extractvalue {i32, i1} %taken, 1
  br i1 %mine, label %prepare, label %alone
prepare:
  %wanted = sub i64 %parts, 1
  %workers = call i64 @staff(i64 %wanted)
  %cores32 = load i32, ptr $CORES, align 4
  %cores = zext i32 %cores32 to i64
  %crowded = icmp ugt i64 %parts, %cores
  %setting = load i64, ptr $SPIN, align 8
  %spin = select i1 %crowded, i64 0, i64 %setting
  store atomic i64 %spin, ptr $JOB_SPIN monotonic, align 8
  %nobody = icmp eq i64 %workers, 0
  br i1 %nobody, label %give_up, label %publish
give_up:
  store atomic i32 0, ptr $BUSY release, align 4
  br label %alone
publish:
  call void @part()
  %team = add i64 %workers, 1
  store atomic i64 -1, ptr $STATUS monotonic, align 8
  %count = trunc i64 %workers to i32
  store atomic i32 %count, ptr $DONE monotonic, align 4
  call void @renew(i64 %team)
  call void @call_workers(i64 %workers, ptr %entry, ptr %args, i64 %team, i64 %spin)
  %own = call i64 %entry(ptr %args, i64 0, i64 %team, ptr @polyloom.block)
  call void @note(i64 %own)
  br label %join
join:
  %left = load atomic i32, ptr $DONE acquire, align 4
  %done = icmp eq i32 %left, 0
  br i1 %done, label %end, label %linger
linger:
  %slept = call i1 @wait(ptr $DONE, i32 %left, ptr $CALLER_ASLEEP, i64 %spin)
  br i1 %slept, label %look, label %join
look:
  call void @look()
  br label %join
end:
  %found = load atomic i64, ptr $STATUS acquire, align 8
  store atomic i32 0, ptr $BUSY release, align 4
  %r = call i64 @agreed(i64 %found)
  ret i64 %r
alone:
  %s = call i64 %entry(ptr %args, i64 0, i64 1, ptr null)
  ret i64 %s
}

define void @polyloom.stop(i32 %closed) nounwind {
entry:
  br label %try
try:
  %taken = cmpxchg ptr $BUSY, i32 0, i32 1 seq_cst seq_cst
  %mine = extractvalue {i32, i1} %taken, 1
  br i1 %mine, label %stop, label %yield
yield:
  %y = call i32 @sched_yield()
  br label %try
stop:
  %was = load i32, ptr $CLOSED, align 4
  %now = or i32 %was, %closed
  store i32 %now, ptr $CLOSED, align 4
  %count32 = load i32, ptr $WORKERS, align 4
  %count = zext i32 %count32 to i64
  call void @call_workers(i64 %count, ptr null, ptr null, i64 0, i64 0)
  br label %next
next:
  %k = phi i64 [0, %stop], [%k1, %join]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %join, label %end
join:
  %offset = mul i64 %k, $BOX
  %box = getelementptr i8, ptr @polyloom.boxes, i64 %offset
  %handle = call i64 @field(ptr %box, i64 $BOX_THREAD)
  %r = call i32 @pthread_join(i64 %handle, ptr null)
  %k1 = add i64 %k, 1
  br label %next
end:
  store i32 0, ptr $WORKERS, align 4
  store atomic i32 0, ptr $BUSY release, align 4
  ret void
}
"""
