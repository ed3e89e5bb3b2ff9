"""The other end of `isl_worker`: starts the process, asks it, kills it when it takes too long."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import weakref
from functools import lru_cache
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import IO, Final

from poly.scheduling.isl_worker import Request

WORKER: Final = Path(__file__).with_name("isl_worker.py")
_START_SECONDS: Final = 20.0  # a process on a busy machine


class Worker:
    """One process, started on the first question and again after it has ended. Threads take turns."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[[subprocess.Popen[bytes]], Worker] | None = None

    def ask(self, request: Request) -> str | None:
        """isl's schedule tree as text; None where isl fails, or needs more time or memory than it gets.

        Waits at most twenty times the processor time of the request, and the time it takes to start.
        """
        with self._lock:
            try:
                process = self._running()
                assert process.stdin is not None and process.stdout is not None
                _write(process.stdin, json.dumps(request).encode() + b"\n")
                line = _read_line(process.stdout, 20 * request["seconds"] + _START_SECONDS)
            except (OSError, ValueError):
                line = None
            if line is None:
                self._stop()
                return None
        answer: dict[str, str] = json.loads(line)
        return answer.get("schedule")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._stop()
            # -P: a script's folder is not searched for modules, ours hides none of the standard library's
            command = [sys.executable, "-P", str(WORKER)]
            self._process = subprocess.Popen(
                command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )  # no buffer, or a forked child that drops the pipe would send what is left there
            self._end = weakref.finalize(self, _end, self._process)
        return self._process

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
        self._process = self._end = None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:  # what could not be written any more
                continue


def _write(pipe: IO[bytes], data: bytes) -> None:
    """All of the data, which an unbuffered pipe may take in pieces."""
    while data:
        data = data[pipe.write(data) :]


def _read_line(pipe: IO[bytes], seconds: float) -> bytes | None:
    """A line of the pipe; None where it ends or the time runs out."""
    deadline, parts = monotonic() + seconds, b""
    while not parts.endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], max(deadline - monotonic(), 0))
        data = os.read(pipe.fileno(), 1 << 16) if ready else b""
        if not data:
            return None
        parts += data
    return parts


@lru_cache(maxsize=1)
def _worker(_process: int) -> Worker:
    return Worker()


def shared_worker() -> Worker:
    """This process's worker; a forked child gets one of its own."""
    return _worker(os.getpid())
