"""Programs, graphs and loop trees as text: they print, and what is printed parses back to the same."""

from hypothesis import given, settings

from poly.program import Program
from poly.text import parse_program, print_program
from tests.strategies import programs


def same(p: Program) -> Program:
    again = parse_program(print_program(p))
    assert print_program(again) == print_program(p)
    assert again == p
    return again


@settings(derandomize=True, max_examples=150, deadline=None)
@given(programs())
def test_random_programs_come_back(p: Program) -> None:
    same(p)
