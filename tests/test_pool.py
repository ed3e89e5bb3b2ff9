"""The worker pool: parts, meetings, statuses, and what processes do to it: forks, exits, signals, few cores."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from poly.affine import var
from poly.codegen.host import host_machine
from poly.codegen.jit import Linked, compile_object, link
from poly.codegen.kernel import Kernel
from poly.codegen.pool import pool
from poly.codegen.pool_ir import BOX, BOX_AUTO, MAX_THREADS, pool_ir
from poly.codegen.team_ir import TAKE
from poly.errors import PolyError
from poly.expr import Cast, Const, IndexValue, Read, apply
from poly.loops import Alloc, LoopTree, Sync
from tests.loop_trees import at, compute, loop, tensor

ROOT = Path(__file__).resolve().parent.parent
HOST = host_machine()
RUN = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads need futexes")

ENTRIES = """
define i64 @count(ptr %args, i64 %part, i64 %parts, ptr %team) { ; args[part] += 1
  %at = getelementptr i64, ptr %args, i64 %part
  %old = load i64, ptr %at
  %new = add i64 %old, 1
  store i64 %new, ptr %at
  ret i64 0
}
define i64 @fail(ptr %args, i64 %part, i64 %parts, ptr %team) { ; 100 - part
  %status = sub i64 100, %part
  ret i64 %status
}
define i64 @rounds(ptr %args, i64 %part, i64 %parts, ptr %team) { ; each part adds to what the one before has, in turn
entry:
  %alone = icmp eq i64 %parts, 1
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %met]
  %turn = urem i64 %k, %parts
  %mine = icmp eq i64 %turn, %part
  br i1 %mine, label %add, label %done
add:
  %old = load i64, ptr %args
  %new = add i64 %old, 1
  store i64 %new, ptr %args
  br label %done
done:
  br i1 %alone, label %met, label %meet
meet:
  %f = load ptr, ptr %team
  %s = call i64 %f(i64 0, i64 %parts)
  br label %met
met:
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, 600
  br i1 %more, label %next, label %end
end:
  ret i64 0
}
define i64 @early(ptr %args, i64 %part, i64 %parts, ptr %team) { ; the last part fails in round 3, all stop there
entry:
  %last = sub i64 %parts, 1
  %bad = icmp eq i64 %part, %last
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %fine]
  %third = icmp eq i64 %k, 3
  %now = and i1 %bad, %third
  %status = select i1 %now, i64 7, i64 0
  %f = load ptr, ptr %team
  %s = call i64 %f(i64 %status, i64 %parts)
  %ok = icmp eq i64 %s, 0
  br i1 %ok, label %fine, label %stop
fine:
  %k1 = add i64 %k, 1
  br label %next
stop:
  %at = getelementptr i64, ptr %args, i64 %part
  store i64 %k, ptr %at
  ret i64 %s
}
define i64 @ranges(ptr %args, i64 %part, i64 %parts, ptr %team) { ; args: count, done, who waits for it, one of each
entry:
  %count = load i64, ptr %args
  %doneat = getelementptr i64, ptr %args, i64 1
  %whoat = getelementptr i64, ptr %args, i64 2
  %who = load i64, ptr %whoat
  %takeat = getelementptr i8, ptr %team, i64 TAKE
  %take = load ptr, ptr %takeat
  %late = icmp eq i64 %who, %part
  br i1 %late, label %look, label %next
look:
  %done = load atomic i64, ptr %doneat acquire, align 8
  %all = icmp eq i64 %done, %count
  br i1 %all, label %next, label %look
next:
  %range = call {i64, i64} %take(i64 %part, i64 %parts, i64 %count, i64 0)
  %begin = extractvalue {i64, i64} %range, 0
  %end = extractvalue {i64, i64} %range, 1
  %some = icmp ult i64 %begin, %end
  br i1 %some, label %one, label %over
one:
  %i = phi i64 [%begin, %next], [%i1, %one]
  %place = urem i64 %i, 32
  %slot = add i64 %place, 8
  %at = getelementptr i64, ptr %args, i64 %slot
  %o1 = atomicrmw add ptr %at, i64 1 seq_cst
  %o2 = atomicrmw add ptr %doneat, i64 1 seq_cst
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %end
  br i1 %more, label %one, label %next
over:
  %f = load ptr, ptr %team
  %s = call i64 %f(i64 0, i64 %parts)
  %again = call {i64, i64} %take(i64 %part, i64 %parts, i64 %parts, i64 0)
  %b = extractvalue {i64, i64} %again, 0
  %e = extractvalue {i64, i64} %again, 1
  %n = sub i64 %e, %b
  %numberat = getelementptr i64, ptr %args, i64 3
  %o3 = atomicrmw add ptr %numberat, i64 %n seq_cst
  ret i64 0
}
define i64 @blocks(ptr %args, i64 %part, i64 %parts, ptr %team) { ; iterations of all ranges added up
entry:
  %count = load i64, ptr %args
  %sumat = getelementptr i64, ptr %args, i64 1
  %takeat = getelementptr i8, ptr %team, i64 TAKE
  %take = load ptr, ptr %takeat
  br label %next
next:
  %range = call {i64, i64} %take(i64 %part, i64 %parts, i64 %count, i64 0)
  %begin = extractvalue {i64, i64} %range, 0
  %end = extractvalue {i64, i64} %range, 1
  %n = sub i64 %end, %begin
  %o = atomicrmw add ptr %sumat, i64 %n seq_cst
  %some = icmp ne i64 %n, 0
  br i1 %some, label %next, label %over
over:
  ret i64 0
}
""".replace("TAKE", str(TAKE))


@pytest.fixture(scope="module")
def code() -> Linked:
    return link(compile_object(ENTRIES, HOST), ["count", "fail", "rounds", "early", "ranges", "blocks"])


def enter(code: Linked, name: str, words: ctypes.Array[ctypes.c_int64], parts: int, run: int = 0) -> int:
    return RUN(run or pool().run)(code.addresses[name], ctypes.addressof(words), parts)


def words() -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * 64)()


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_every_part_runs_once(code: Linked, parts: int) -> None:
    counts = words()
    for _ in range(200):
        assert enter(code, "count", counts, parts) == 0
    assert list(counts) == [200] * parts + [0] * (64 - parts)
    assert pool().threads >= parts and str(pool().threads) in repr(pool())


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_parts_meet(code: Linked, parts: int) -> None:
    total = words()
    assert enter(code, "rounds", total, parts) == 0
    assert total[0] == 600


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 32])
def test_iterations_are_handed_out_once(code: Linked, parts: int, count: int) -> None:
    for late in range(-1, parts if count else 0):  # who is late leaves all of its share to the others
        shared = words()
        shared[0], shared[2] = count, late
        assert enter(code, "ranges", shared, parts) == 0
        assert list(shared)[8:40] == [1] * count + [0] * (32 - count)
        assert shared[1] == count and shared[3] == parts


@pytest.mark.parametrize("count", [1_000_003, (1 << 30) - 1, (1 << 30) + 1, (1 << 40) + 12345, (1 << 62) + 7])
def test_many_iterations(code: Linked, count: int) -> None:
    for parts in (2, 3):
        shared = words()
        shared[0] = count
        assert enter(code, "blocks", shared, parts) == 0
        assert shared[1] == count


def test_statuses(code: Linked) -> None:
    assert [enter(code, "fail", words(), parts) for parts in (1, 2, 3)] == [100, 99, 98]
    for parts in (2, 3):
        rounds = words()
        assert enter(code, "early", rounds, parts) == 7
        assert list(rounds)[: parts + 1] == [3] * parts + [0]
    assert enter(code, "count", words(), 3) == 0


def test_stop_and_settings(code: Linked) -> None:
    mine = pool()
    spin, cores = mine.spin, mine.cores
    allowed = sorted(os.sched_getaffinity(0))
    try:
        for settings in ({"spin": 0.0}, {"spin": 20e-6}, {"cores": ()}, {"cores": allowed[:1]}, {"cores": allowed}):
            mine.configure(**settings)  # type: ignore[arg-type]
            assert mine.threads == 1
            counts = words()
            for _ in range(20):
                enter(code, "count", counts, 3)
            assert list(counts)[:4] == [20, 20, 20, 0] and mine.threads == 3
        mine.stop()
        assert mine.threads == 1
        beyond = {"cores": (max(os.cpu_count() or 1, allowed[-1] + 1),)}  # the environment's setting refuses it, too
        for bad in (
            {"spin": -1}, {"spin": 11}, {"spin": "x"}, {"cores": (-1,)}, {"cores": (5000,)}, beyond, {"cores": "ab"},
            {"cores": 0},
        ):  # fmt: skip
            with pytest.raises(PolyError):
                mine.configure(**bad)  # type: ignore[arg-type]
    finally:
        mine.configure(spin=spin)
        mine.cores = cores
        mine.configure()


def test_a_system_without_futexes_runs_alone(code: Linked) -> None:
    text = pool_ir(HOST.triple, 0)
    alone = link(compile_object(text, HOST), ["polyloom.run"])
    counts = words()
    assert enter(code, "count", counts, 4, alone.addresses["polyloom.run"]) == 0
    assert list(counts)[:2] == [1, 0]
    arm = pool_ir("aarch64-unknown-linux-gnu", 98)
    assert "llvm.aarch64.hint" in arm and "$" not in arm


def shifted(n: int, threads: int) -> Kernel:
    """P = 2 x, then y[i] = P[n - 1 - i]: two phases on all threads, one between them on one."""
    double = compute("double", at("P", "i"), [at("x", "i")], apply("mul", Read(0), Const(2)))
    one = compute("one", at("Q", 0), [], Const(1))
    turn = compute("turn", at("y", "i"), [at("P", n - 1 - var("i")), at("Q", 0)], apply("add", Read(0), Read(1)))
    shapes = (tensor("x", n, role="input"), tensor("y", n, role="output"), tensor("P", n), tensor("Q", 1))
    body = (loop("i", 0, n, double, kind="parallel"), one, loop("i", 0, n, turn, kind="parallel"))
    return Kernel(LoopTree("shifted", shapes, body), HOST, shapes[:1], shapes[1:2], threads=threads)


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 10_000])
def test_phases(threads: int) -> None:
    kernel = shifted(1000, threads)
    assert kernel.threads == min(threads, MAX_THREADS)
    if threads > MAX_THREADS:
        return
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    for _ in range(20):
        np.testing.assert_array_equal(kernel(x), 2 * x[::-1] + 1)


def repeated(n: int, steps: int, threads: int) -> Kernel:
    """`steps` times: a buffer P = x on all threads, one element of it on one, then x[i] = P[n - 1 - i] + t on all."""
    copy = compute("copy", at("P", "i"), [at("x", "i")], Read(0))
    one = compute("one", at("P", 0), [at("P", 0)], apply("add", Read(0), Const(1)))
    back = compute(
        "back", at("x", "i"), [at("P", n - 1 - var("i"))], apply("add", Read(0), Cast("f32", IndexValue(var("t"))))
    )
    inner = (loop("i", 0, n, copy, kind="parallel"), one, loop("i", 0, n, back, kind="parallel"))
    first = loop("t", 0, steps, Alloc(tensor("P", n), inner))
    last = loop("i", 0, n, compute("last", at("y", "i"), [at("x", "i")], Read(0)))
    shapes = (tensor("x", n, role="inout"), tensor("y", n, role="output"), tensor("P", n))
    return Kernel(LoopTree("repeated", shapes, (first, last)), HOST, shapes[:1], shapes[:2], threads=threads)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_parallel_loops_inside_of_a_serial_one_are_shared_out(threads: int) -> None:
    kernel = repeated(100, 7, threads)
    assert kernel.module.parallel == (True, False, True, False)
    want = np.arange(100, dtype=np.float32)
    for t in range(7):
        want[0] += 1
        want = want[::-1] + t
    for _ in range(20):
        x, y = kernel(np.arange(100, dtype=np.float32))
        np.testing.assert_array_equal(x, want)
        np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("threads", [1, 2])
def test_bounds_of_loops_that_all_threads_run(threads: int) -> None:
    """x[i] += 1 for i <= s + t, t <= s < t / 2 + 5: a free size, a step, floors, loops that do not run."""
    add = compute("add", at("x", "i"), [], Const(1), "+")
    inner = loop("i", 0, [var("s") + var("t") + 1, "N"], add, kind="parallel")
    nest = loop("t", 0, "N", loop("s", var("t"), var("t") // 2 + 5, inner), step=2)
    x = tensor("x", "N", role="inout")
    kernel = Kernel(LoopTree("triangle", (x,), (nest,), ("N",)), HOST, (x,), (x,), threads=threads)
    for n in (1, 4, 9, 30):
        want = np.zeros(n, np.float32)
        for t in range(0, n, 2):
            for s in range(t, t // 2 + 5):
                want[: min(s + t + 1, n)] += 1
        np.testing.assert_array_equal(kernel(np.zeros(n, np.float32)), want)


def test_python_threads_at_once() -> None:
    kernels = [shifted(n, threads) for n, threads in ((1000, 2), (30, 2), (200, 3), (30, 1))]
    failures: list[str] = []

    def work(kernel: Kernel) -> None:
        n = kernel.inputs[0].extents({})[0]
        x = np.arange(n, dtype=np.float32)
        for _ in range(200):
            if not np.array_equal(kernel(x), 2 * x[::-1] + 1):
                failures.append(str(n))

    threads = [threading.Thread(target=work, args=(k,)) for k in (*kernels, *kernels)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


START = """
import os, sys, signal, threading, time, atexit
import numpy as np, poly
from poly.codegen.pool import pool
a, b = np.ones((64, 64), "f4"), np.ones((64, 64), "f4")
kernel = poly.compile(poly.parse("C[i,k] += A[i,j] * B[j,k]", A=(64, 64), B=(64, 64)), threads=THREADS)
assert any(kernel.module.parallel), kernel.loops
def check():
    assert (kernel(a, b) == 64).all()
check()
"""


def run(script: str, threads: int = 2, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore:threads=", "-c", START.replace("THREADS", str(threads)) + script],
        cwd=ROOT, capture_output=True, text=True, timeout=120, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, (done.returncode, done.stderr)
    return done.stdout


def test_a_pool_before_its_first_job_is_one_thread() -> None:
    script = "import poly; print(poly.pool())"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("<Pool of 1 thread, spin ")


def test_exit_with_spinning_workers() -> None:
    assert "3 threads, spin 5e+06 us" in run("check(); print(pool())", threads=3, POLYLOOM_SPIN="5000000")


def test_calls_while_the_interpreter_exits() -> None:
    out = run("""
atexit.register(lambda: (check(), print("at exit", pool().threads)))
class Late:
    def __del__(self):
        check()
        print("late")
keep = Late()
def work():
    while True:
        check()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
""")
    assert "at exit" in out


def test_forks() -> None:
    out = run("""
import multiprocessing
def child():
    assert pool().threads == 1
    for _ in range(20):
        check()
    assert pool().threads == 2
    poly.compile(poly.parse("C[i] = 2 * A[i]", A=(9,)), threads=2)(np.ones(9, "f4"))
stop = False
def busy():
    while not stop:
        check()
threads = [threading.Thread(target=busy) for _ in range(2)]
for t in threads:
    t.start()
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        child()
        os._exit(0)
    check()
    assert os.waitpid(pid, 0)[1] == 0
stop = True
for t in threads:
    t.join()
processes = [multiprocessing.get_context("fork").Process(target=child) for _ in range(2)]
for p in processes:
    p.start()
for p in processes:
    p.join()
    assert p.exitcode == 0
check()
print("done", pool().threads)
""")
    assert out.strip() == "done 2"


def test_forks_while_others_compile() -> None:
    out = run("""
stop = False
def compiling():
    k = 0
    while not stop:
        k += 1
        poly.compile(poly.parse(f"C[i] = {k} * A[i]", A=(9,)))
poly.compile(poly.parse("C[i] = A[i] - 3", A=(7,)))  # a module that is being imported is locked in the child
thread = threading.Thread(target=compiling)
thread.start()
for k in range(6):
    time.sleep(0.013 * k)
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        assert (poly.compile(poly.parse("C[i] = A[i] - 3", A=(7,)))(np.zeros(7, "f4")) == -3).all()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
stop = True
thread.join()
print("done")
""", POLYLOOM_CACHE="off")
    assert out.strip() == "done"


def test_signals() -> None:
    out = run("""
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append(threading.current_thread()))
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
end = time.monotonic() + 0.5
while time.monotonic() < end or len(seen) < 20:
    check()
    pool().configure(spin=0)  # so that all wait in the kernel's futex
signal.setitimer(signal.ITIMER_REAL, 0)
assert set(seen) == {threading.main_thread()}
print("done")
""")
    assert out.strip() == "done"


def test_one_core_and_more_threads_than_cores() -> None:
    for threads in (2, 5):
        out = run("""
for _ in range(30):
    check()
print(len(os.sched_getaffinity(0)), pool().threads)
""", threads)
        assert out.split()[1] == str(threads)
    alone = START.replace("import numpy", "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nimport numpy", 1)
    script = alone.replace("THREADS", "3") + "\nfor _ in range(30):\n    check()\nprint(pool().threads)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "3", done.stderr


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_cores_that_a_caller_gets_or_loses_later() -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    out = run(f"""
from ctypes import c_int32
from poly.codegen.pool_ir import CORES

def look(cores):
    os.sched_setaffinity(0, cores)
    for _ in range(100):
        check()
    threads = [int(n) for n in os.listdir("/proc/self/task") if int(n) != os.getpid()]
    bound = [c for n in threads for c in os.sched_getaffinity(n) if len(os.sched_getaffinity(n)) == 1]
    print(c_int32.from_address(pool()._block + CORES).value, bound in ([{first}], [{second}]))

pool().configure(spin=0)  # so that all sleep, and look
for cores in ({{{first}}}, {{{first}, {second}}}, {{{second}}}, {{{first}, {second}}}):
    look(cores)
""", threads=2)
    assert out.split() == ["1", "True", "2", "True", "1", "True", "2", "True"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_a_caller_on_its_workers_core() -> None:
    out = run("""
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])

def worker():
    threads = [int(n) for n in os.listdir("/proc/self/task") if int(n) != os.getpid()]
    return next(c for n in threads if len(c := os.sched_getaffinity(n)) == 1)

both = os.sched_getaffinity(0)
pool().configure(spin=0)
check()
for _ in range(3):
    its = worker()
    for attempt in range(20): # the system may move the caller before the call
        os.sched_setaffinity(0, its)
        os.sched_setaffinity(0, both)
        check()
        if worker() != its:
            break
    print(worker() == both - its)
""", threads=2)
    assert out.split() == ["True"] * 3


def test_settings_from_the_environment() -> None:
    core = min(os.sched_getaffinity(0))
    out = run("print(pool().spin, pool().cores)", POLYLOOM_SPIN="7", POLYLOOM_CORES=f"{core},{core}-{core}")
    assert out.split() == ["7e-06", f"({core},", f"{core})"]
    assert run("print(pool().cores)", POLYLOOM_CORES="any").strip() == "()"
    for name, text in (("POLYLOOM_SPIN", "soon"), ("POLYLOOM_CORES", "1;2"), ("POLYLOOM_SPIN", "-3")):
        done = subprocess.run(
            [sys.executable, "-c", "from poly.codegen.pool import pool; pool()"],
            cwd=ROOT, capture_output=True, text=True, timeout=120, env={**os.environ, name: text},
        )  # fmt: skip
        assert "PolyError" in done.stderr


def test_same_bits_from_run_to_run() -> None:
    import poly

    random = np.random.default_rng(3)
    a, b = random.standard_normal((37, 65)).astype(np.float32), random.standard_normal((65, 41)).astype(np.float32)
    program = poly.parse("C[i,k] += A[i,j] * B[j,k]", A=a.shape, B=b.shape)
    for threads in (1, 2, 3):
        kernel = poly.compile(program, threads=threads)
        first = np.array(kernel(a, b))
        for _ in range(20):
            np.testing.assert_array_equal(kernel(a, b), first)


def test_a_worker_is_never_bound_to_a_core_that_the_set_has_no_bit_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: {3, 1024, 5000})
        pool().configure()
        boxes = pool()._boxes
        words = [ctypes.c_int64.from_address(boxes + k * BOX + BOX_AUTO).value for k in range(6)]
    pool().configure()
    assert words == [4, 0, 0, 4, 0, 0]


def test_meetings_without_work() -> None:
    tree = LoopTree("idle", (), (loop("i", 0, 3, Sync()), loop("j", 0, 3, loop("k", 0, 3, Sync()))))
    assert Kernel(tree, host_machine(), [], [])() == ()
