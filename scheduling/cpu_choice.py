"""The choices for one group on a core with vector registers: which kind of plan, from access maps alone."""

from __future__ import annotations

from poly.machine import Machine
from poly.program import Program
from poly.scheduling.cpu_contract import contraction_plan
from poly.scheduling.cpu_facts import Facts
from poly.scheduling.cpu_plan import Plan
from poly.scheduling.cpu_stream import scalar_plan, stream_plan
from poly.scheduling.groups import Group


def plan_of(program: Program, group: Group, machine: Machine, threads: int = 1) -> Plan:
    """The choices for one group whose parallel loops are a box of known size."""
    assert group.box is not None
    extents = [high - low + 1 for low, high in group.box]
    facts = Facts(program, group, machine, extents, threads)
    lanes = facts.lanes()
    if lanes is None:
        return scalar_plan(facts)
    return contraction_plan(facts, lanes) or stream_plan(facts, lanes)
