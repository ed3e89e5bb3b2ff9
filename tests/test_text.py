"""Programs, graphs and loop trees as text: they print, and what is printed parses back to the same."""

import pytest
from hypothesis import given, settings
from tests.strategies import programs

from poly.affine import Affine
from poly.errors import ParseError, PolyError
from poly.program import Program
from poly.text import parse_program, print_program


def same(p: Program) -> Program:
    again = parse_program(print_program(p))
    assert print_program(again) == print_program(p)
    assert again == p
    return again


@settings(derandomize=True, max_examples=150, deadline=None)
@given(programs())
def test_random_programs_come_back(p: Program) -> None:
    same(p)
