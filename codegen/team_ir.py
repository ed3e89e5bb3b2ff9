"""What the parts of a job call, as IR text: ranges of iterations, meetings, lists of entries.

Iterations of a parallel loop are handed out in ranges (`take`). Each part starts with an even share, always the same
one, and takes from its front; who is done takes from the ends of the others' shares (Blumofe and Leiserson, JACM 1999,
steal so). A share is one word, first and last iteration or -1 before anybody took of it; the last to arrive at a
meeting sets all of them to -1, when nobody looks at them. Loops between which parts do not meet have a word each, of
`SLOTS` that a part has.
"""

from __future__ import annotations

from typing import Final

from poly.loops import MOST_NOWAIT

SHARE: Final = 128  # bytes from one part's shares to the next: what two threads write is on lines of its own
SLOTS: Final = MOST_NOWAIT  # shares of a part, side by side on a line
TAKE: Final = 8  # offset in the block of the function that hands out iterations, behind the one of meetings

SEQUENCE: Final = 3
"""Words of a step of a sequence. Its args: number of steps, where the step that failed is written, then for each step
its entry, its args, and 1 where its parts may be run by several threads."""

PLACES: Final = 3
PLACE: Final = 3
"""Words before the places of a `placed` sequence: its args, its parts, the number of places. Words of a place: its
address, which of the pointers of the call goes there, and what is added to it."""

# A quarter of what is left at a time of one's own, half of what another one has: so a part that is slowed down loses
# little of its share too late. Numbers are 31 bits each: more iterations than that go in blocks of a power of two.
TAKE_TEXT: Final = """
define internal {i64, i64} @take(i64 %part, i64 %parts, i64 %count, i64 %slot) nounwind { ; equal ends: nothing is left
entry:
  %high = lshr i64 %count, 30
  %zeros = call i64 @llvm.ctlz.i64(i64 %high, i1 false)
  %shift = sub i64 64, %zeros
  %unit = shl i64 1, %shift
  %above = sub i64 %unit, 1
  %raised = add i64 %count, %above
  %units = lshr i64 %raised, %shift
  br label %look
look:
  %k = phi i64 [0, %entry], [%k1, %next]
  %sum = add i64 %part, %k
  %wraps = icmp uge i64 %sum, %parts
  %less = sub i64 %sum, %parts
  %of = select i1 %wraps, i64 %less, i64 %sum
  %offset = mul i64 %of, $SHARE
  %shares = getelementptr i8, ptr @polyloom.shares, i64 %offset
  %at = getelementptr i64, ptr %shares, i64 %slot
  %now = load atomic i64, ptr %at acquire, align 8
  br label %try
try:
  %word = phi i64 [%now, %look], [%found, %offer]
  %fresh = icmp eq i64 %word, -1
  br i1 %fresh, label %whole, label %rest
whole:
  %low1 = mul i64 %units, %of
  %low2 = udiv i64 %low1, %parts
  %end1 = add i64 %low1, %units
  %end2 = udiv i64 %end1, %parts
  br label %some
rest:
  %low3 = lshr i64 %word, 32
  %end3 = and i64 %word, 4294967295
  br label %some
some:
  %low = phi i64 [%low2, %whole], [%low3, %rest]
  %end = phi i64 [%end2, %whole], [%end3, %rest]
  %left = sub i64 %end, %low
  %none = icmp eq i64 %left, 0
  br i1 %none, label %next, label %offer
offer:
  %own = icmp eq i64 %k, 0
  %left3 = add i64 %left, 3
  %quarter = lshr i64 %left3, 2
  %left1 = add i64 %left, 1
  %half = lshr i64 %left1, 1
  %front = add i64 %low, %quarter
  %back = sub i64 %end, %half
  %first = select i1 %own, i64 %low, i64 %back
  %last = select i1 %own, i64 %front, i64 %end
  %low4 = select i1 %own, i64 %front, i64 %low
  %end4 = select i1 %own, i64 %end, i64 %back
  %low5 = shl i64 %low4, 32
  %new = or i64 %low5, %end4
  %pair = cmpxchg ptr %at, i64 %word, i64 %new acq_rel acquire
  %found = extractvalue {i64, i1} %pair, 0
  %mine = extractvalue {i64, i1} %pair, 1
  br i1 %mine, label %got, label %try
got:
  %begin = shl i64 %first, %shift
  %stop = shl i64 %last, %shift
  %most = call i64 @llvm.umin.i64(i64 %stop, i64 %count)
  %r1 = insertvalue {i64, i64} poison, i64 %begin, 0
  %r2 = insertvalue {i64, i64} %r1, i64 %most, 1
  ret {i64, i64} %r2
next:
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, %parts
  br i1 %more, label %look, label %nothing
nothing:
  ret {i64, i64} zeroinitializer
}

define internal void @renew(i64 %parts) nounwind { ; every share is whole again
entry:
  br label %one
one:
  %k = phi i64 [0, %entry], [%k1, %one]
  %offset = mul i64 %k, $SHARE
  %at = getelementptr i8, ptr @polyloom.shares, i64 %offset
  store <$SLOTS x i64> splat (i64 -1), ptr %at, align 64
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, %parts
  br i1 %more, label %one, label %done
done:
  ret void
}
"""

# A part may note a status for the next meeting while others still leave this one: they read AGREED, which is written
# by the last to arrive and so not before everybody has left.
MEET_TEXT: Final = """
define internal void @note(i64 %status) nounwind {
  %fine = icmp eq i64 %status, 0
  br i1 %fine, label %end, label %bad
bad:
  %o = atomicrmw umin ptr $STATUS, i64 %status seq_cst
  br label %end
end:
  ret void
}

define internal i64 @agreed(i64 %status) nounwind {
  %fine = icmp eq i64 %status, -1
  %r = select i1 %fine, i64 0, i64 %status
  ret i64 %r
}

define internal i64 @meet(i64 %status, i64 %parts) nounwind {
  call void @note(i64 %status)
  %meeting = load atomic i32, ptr $MEETING acquire, align 4
  %before = atomicrmw add ptr $ARRIVED, i32 1 seq_cst
  %after = add i32 %before, 1
  %all = trunc i64 %parts to i32
  %last = icmp eq i32 %after, %all
  br i1 %last, label %open, label %stay
open:
  store atomic i32 0, ptr $ARRIVED monotonic, align 4
  call void @renew(i64 %parts)
  %s = load atomic i64, ptr $STATUS seq_cst, align 8
  store atomic i64 %s, ptr $AGREED monotonic, align 8
  %next = add i32 %meeting, 1
  store atomic i32 %next, ptr $MEETING seq_cst, align 4
  %sleepers = load atomic i32, ptr $MEETING_ASLEEP seq_cst, align 4
  %nobody = icmp eq i32 %sleepers, 0
  br i1 %nobody, label %go, label %up
up:
  call void @wake(ptr $MEETING)
  br label %go
stay:
  %spin = load i64, ptr $JOB_SPIN, align 8
  %slept = call i1 @wait(ptr $MEETING, i32 %meeting, ptr $MEETING_ASLEEP, i64 %spin)
  br label %go
go:
  %found = load atomic i64, ptr $AGREED acquire, align 8
  %r = call i64 @agreed(i64 %found)
  ret i64 %r
}
"""

# Every part walks the steps and meets the others after each; a step that is not shared is run by part 0, alone.
SEQUENCE_TEXT: Final = """
define i64 @polyloom.sequence(ptr %args, i64 %part, i64 %parts, ptr %team) nounwind {
entry:
  %count = load i64, ptr %args, align 8
  %failedat = getelementptr i64, ptr %args, i64 1
  %alone = icmp eq i64 %parts, 1
  %first = icmp eq i64 %part, 0
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %done]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %step, label %end
step:
  %words = mul i64 %k, $SEQUENCE
  %offset = add i64 %words, 2
  %at = getelementptr i64, ptr %args, i64 %offset
  %f = call ptr @link(ptr %at, i64 0)
  %fargs = call ptr @link(ptr %at, i64 1)
  %sharedword = call i64 @word(ptr %at, i64 2)
  %shared = icmp ne i64 %sharedword, 0
  br i1 %shared, label %together, label %single
together:
  %s1 = call i64 %f(ptr %fargs, i64 %part, i64 %parts, ptr %team)
  br label %ran
single:
  br i1 %first, label %mine, label %ran
mine:
  %s2 = call i64 %f(ptr %fargs, i64 0, i64 1, ptr null)
  br label %ran
ran:
  %status = phi i64 [%s1, %together], [%s2, %mine], [0, %single]
  br i1 %alone, label %check, label %wait
wait:
  %met = call i64 @meet(i64 %status, i64 %parts)
  br label %check
check:
  %all = phi i64 [%status, %ran], [%met, %wait]
  %fine = icmp eq i64 %all, 0
  br i1 %fine, label %done, label %failed
done:
  %k1 = add i64 %k, 1
  br label %next
failed:
  br i1 %first, label %tell, label %out
tell:
  store i64 %k, ptr %failedat, align 8
  br label %out
out:
  ret i64 %all
end:
  ret i64 0
}
"""

# Args: where the words above are, then the pointers of the call. The parts are those of the sequence, not of the entry.
PLACED_TEXT: Final = """
define i64 @polyloom.placed(ptr %args, i64 %part, i64 %parts, ptr %team) nounwind {
entry:
  %plan = call ptr @link(ptr %args, i64 0)
  %count = call i64 @word(ptr %plan, i64 2)
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %one]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %run
one:
  %words = mul i64 %k, $PLACE
  %offset = add i64 %words, $PLACES
  %at = getelementptr i64, ptr %plan, i64 %offset
  %place = call ptr @link(ptr %at, i64 0)
  %which = call i64 @word(ptr %at, i64 1)
  %shift = call i64 @word(ptr %at, i64 2)
  %slot = add i64 %which, 1
  %start = call i64 @word(ptr %args, i64 %slot)
  %value = add i64 %start, %shift
  store i64 %value, ptr %place, align 8
  %k1 = add i64 %k, 1
  br label %next
run:
  %steps = call ptr @link(ptr %plan, i64 0)
  %team_parts = call i64 @word(ptr %plan, i64 1)
  %status = call i64 @polyloom.run(ptr @polyloom.sequence, ptr %steps, i64 %team_parts)
  ret i64 %status
}
"""
