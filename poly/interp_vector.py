"""The vectorised interpreter of programs."""

from __future__ import annotations


def run_vectorised(*_: object) -> bool:
    """Whether the program was run; False leaves it to the per-instance interpreter."""
    return False
