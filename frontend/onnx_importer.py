"""An import in one pass over the nodes in their order.

Every node in turn is folded where its outputs are known, written down by its row of the operator table, or kept as an
external statement. Shapes are literal from the inputs on, so shape subgraphs fold away as they are met.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from poly.affine import Affine
from poly.dtypes import Array, dtype_name, numpy_dtype
from poly.errors import OnnxError
from poly.expr import Const
from poly.frontend.onnx_contrib import CONTRIB_ROWS, is_contrib
from poly.frontend.onnx_control import CONTROL, graph_of
from poly.frontend.onnx_counted import ROWS as COUNTED
from poly.frontend.onnx_fold import WITHOUT_CONTENT, Imported, fold, fold_batch_norm, live
from poly.frontend.onnx_functions import function_body, has_function_body
from poly.frontend.onnx_model import Schemas, inferred_outputs, input_shapes, tensor_array
from poly.frontend.onnx_notation import CONTRIB, Call, NeedsValue, NoCompiledForm, Notation
from poly.frontend.onnx_operators import MOVES, OPERATORS
from poly.frontend.onnx_qdq import on_codes
from poly.frontend.onnx_reference import captured_names, make_external
from poly.frontend.onnx_terms import (
    Names,
    Shape,
    Value,
    format_dtype,
    is_format,
    storage,
)
from poly.frontend.onnx_turns import MOST_ELEMENTS, Border, border_of, nodes_of_turns, turns_of
from poly.frontend.onnx_values import Values, literal_shape
from poly.graph import Graph, Node
from poly.program import Access, Statement, Tensor, box_domain

if TYPE_CHECKING:
    import onnx

_CHECKER: Final = "onnx.checker.check_model(path, full_check=True) may say more"
Outcome = Literal["compiled", "expanded", "folded", "inlined", "fallback"]  # of a node that was imported


class Interrupted(Exception):
    """An import by stages stops before a node. `value`: whose content it needs; None: it has no static form at all."""

    def __init__(self, reason: str, value: Value | None = None) -> None:
        super().__init__(reason)
        self.reason, self.value = reason, value


class Importer:
    """The state of one import: the table of its values, and the nodes so far.

    `staged`: what only the run can tell raises `Interrupted`, instead of an error or an external statement. `sized`: of
    several imports of one model at different sizes, which share the arrays of initialisers that they have `read`.
    `counting`: staged, nodes with as many results as the data say are imported, too (`onnx_counted`).
    """

    def __init__(
        self, model: onnx.ModelProto, *, staged: bool = False, sized: bool = False,
        read: dict[str, Array] | None = None, counting: bool = True,
    ) -> None:  # fmt: skip
        self._read = {} if read is None else read
        self._model = model
        self._staged, self._sized, self._counting = staged, sized, staged and counting
        self._seen: dict[tuple[object, ...], tuple[str, ...]] = {}
        self._merged_away: set[tuple[str, ...]] = set()
        self._schemas = Schemas(model.opset_import, model.ir_version)
        self.values = Values(model.graph)
        self._nodes: list[Imported] = []
        self._outputs = [o.name for o in model.graph.output]
        self._serial = 0
        self.cuts: dict[str, str] = {}  # results with as many slices as another tensor says; no node may read them

    # -- what goes in ------------------------------------------------------------------------------------------------

    def declare_inputs(
        self,
        shapes: Mapping[str, tuple[int, ...] | int],
        constants: Mapping[str, Array],
        without: Container[str] = (),
    ) -> None:
        """Declare all inputs but those of `without`, and the initialisers."""
        graph = self._model.graph
        if graph.sparse_initializer:
            raise OnnxError("sparse initialisers have no compiled form", where=f"model {graph.name!r}")
        overridden = {n for n in (*shapes, *constants) if n in constants or not isinstance(shapes[n], int)}
        initialisers = {i.name for i in graph.initializer} - overridden
        wanted = [i for i in graph.input if i.name not in initialisers and i.name not in without]
        unknown = sorted(set(constants) - {i.name for i in wanted})
        if unknown:
            raise OnnxError(f"no input {unknown[0]!r}", hint=f"inputs: {', '.join(i.name for i in wanted)}")
        for info, (shape, dtype) in zip(wanted, input_shapes(wanted, shapes, constants), strict=True):
            if info.name in constants:
                self.values.constant(info.name, _checked(info.name, np.asarray(constants[info.name]), shape, dtype))
            else:
                self.values.own_input(info.name, shape, dtype)
        for initialiser in graph.initializer:
            if initialiser.name in initialisers:
                if initialiser.name not in self._read:
                    self._read[initialiser.name] = tensor_array(initialiser, f"initialiser {initialiser.name!r}")
                self.values.constant(initialiser.name, self._read[initialiser.name])

    # -- nodes -------------------------------------------------------------------------------------------------------

    def walk(self, nodes: Iterable[onnx.NodeProto]) -> None:
        for proto in nodes:
            self.node(proto)

    def node(self, proto: onnx.NodeProto) -> Outcome:
        """Import one node: what becomes of it. Raises `OnnxError`; staged: `Interrupted`."""
        fate = self._node(proto)
        self._serial += 1
        return fate

    def without_cut(self) -> tuple[str, ...]:
        """Forget the results whose length only the run can tell; their names."""
        found = tuple(self.cuts)
        self.cuts.clear()
        for name in found:
            del self.values.by_name[name]
        return found

    def give_up(self, proto: onnx.NodeProto) -> tuple[str, ...]:
        """Declare the outputs of a refused node as inputs; the names of those whose shapes are not known."""
        try:
            outputs = inferred_outputs(self._call(proto), proto, self._schemas, NoCompiledForm(""))
        except OnnxError:
            outputs = {}
        self._serial += 1
        for position, (shape, dtype) in outputs.items():
            self.values.input(proto.output[position], shape, dtype)
        return tuple(name for k, name in enumerate(proto.output) if k not in outputs)

    def has_form(self, proto: onnx.NodeProto) -> bool:
        """Whether the operator may be compiled once its operands are known, or its bodies."""
        if is_contrib(proto.op_type, proto.domain):
            return True
        if proto.domain:
            return False
        if any(proto.op_type in known for known in (OPERATORS, CONTROL, WITHOUT_CONTENT)):
            return True
        schema = self._schemas.schema(proto.op_type, "", proto.name)
        return has_function_body(schema) and not any(a.HasField("g") for a in proto.attribute)

    def foreign_outputs(self, proto: onnx.NodeProto, foreign: Container[str]) -> list[str]:
        """The outputs of a node that are no tensors of numbers, where those inputs are none."""
        return self._schemas.foreign_outputs(proto, foreign)

    @property
    def reason(self) -> tuple[str, str]:
        """Why the node that was added last has no compiled form, if so, and what to change."""
        last = self._nodes[-1].node
        return last.reason, last.hint

    def opset(self, domain: str) -> int:
        """The version of a domain that the model imports, 0 where it imports none."""
        return self._schemas.versions.get(domain, 0)

    def _node(self, proto: onnx.NodeProto) -> Outcome:
        try:
            call = self._call(proto)
        except OnnxError as error:
            raise OnnxError(error.message, where=error.where, hint=error.hint or _CHECKER) from error
        try:
            fate = self._import(call, proto)
            self.values.trace(call.inputs, call.outputs)
            return fate
        except OnnxError as error:
            told = error.where is not None and error.where.startswith(("node ", "model ", "tensor "))
            if told and error.hint is not None:
                raise
            known = f"{call.operator!r}, {call.opset}, {call.domain!r}"
            hint = error.hint or f"what it takes is in onnx.defs.get_schema({known}).doc"
            raise OnnxError(error.message, where=error.where if told else call.where, hint=hint) from error
        except AssertionError as error:  # ours, but no reason to end a program that only asked
            hint = "the fault is Polyloom's, not the model's: please report it, with the model"
            broken = f"an invariant of the import does not hold: {error}"
            raise OnnxError(broken, where=call.where, hint=hint) from error
        except (ValueError, TypeError, ArithmeticError, LookupError, MemoryError) as error:
            # what a row did not foresee is an error of this node all the same
            words = str(error).partition("\n")[0] or ("no memory" if isinstance(error, MemoryError) else "operands")
            raise OnnxError(f"cannot be written down: {words}", where=call.where, hint=_CHECKER) from error

    def _import(self, call: Call, proto: onnx.NodeProto) -> Outcome:
        self._schemas.check(call)
        twice = [name for name in call.outputs if name and name in self.values]
        if twice:
            raise OnnxError(f"output {twice[0]!r} is the name of an earlier value", where=call.where)
        if call.operator == "If" and not call.domain:
            self._inline_if(call, proto)
            return "inlined"
        if call.operator in ("Loop", "Scan") and not call.domain and self._compile_turns(call, proto):
            return "compiled"
        folded = fold(call, proto, sized=self._sized)
        if folded is not None:
            for name, array in zip(call.outputs, folded, strict=False):
                if name:
                    self.values.constant(name, array)
            return "folded"
        key = self._key(call, proto)
        if (first := self._seen.get(key)) is not None and first not in self._merged_away:
            return self._repeated(call, first)
        for merged in (self._on_codes, self._normalised):
            call = merged(call) or call
        fate = self._notate(call, proto)
        if fate != "fallback":  # a random one is not the same twice
            self._seen[key] = call.outputs
        return fate

    def _key(self, call: Call, proto: onnx.NodeProto) -> tuple[object, ...]:
        """What two nodes have in common that compute the same."""
        attributes = sorted(a.SerializeToString(deterministic=True) for a in proto.attribute)
        inputs = tuple("" if v is None else v.name for v in call.inputs)
        return (call.operator, call.domain, call.opset, inputs, *attributes, *(bool(name) for name in call.outputs))

    def _repeated(self, call: Call, first: tuple[str, ...]) -> Outcome:
        """A common subexpression: the outputs are those of the node that was first."""
        for name, known in zip(call.outputs, first, strict=True):
            if name:
                self.values.bind(name, self.values[known])
                self.values.uses[known] += 1
        return "folded"

    def _call(self, proto: onnx.NodeProto) -> Call:
        name = proto.name or (proto.output[0] if proto.output else f"#{self._serial}")
        where = f"node {name!r} ({proto.op_type}, opset {self._schemas.versions.get(proto.domain, 'unknown')})"
        inputs: list[Value | None] = []
        for wanted in proto.input:
            if wanted and wanted not in self.values:
                raise OnnxError(f"input {wanted!r} is not defined before this node", where=where, hint="sort the nodes")
            inputs.append(self.values[wanted] if wanted else None)
        while inputs and inputs[-1] is None:
            inputs.pop()
        opset = self._schemas.opset(proto.domain, where)
        attributes = self._schemas.attributes(proto, where)
        return Call(
            name, proto.op_type, proto.domain, opset, attributes, tuple(inputs), tuple(proto.output), self._serial
        )

    def _inline_if(self, call: Call, proto: onnx.NodeProto) -> None:
        condition = call.inputs[0] if call.inputs else None
        if condition is None or condition.array is None:
            if self._staged:
                raise Interrupted("the condition is only known at run time", condition)
            raise OnnxError(
                "the condition is only known at run time",
                where=call.where,
                hint="poly.compile(model) compiles at the first run; or bind it: from_onnx(..., constants={...})",
            )
        wanted = "then_branch" if bool(condition.array.reshape(-1)[0]) else "else_branch"
        branch = next(a.g for a in proto.attribute if a.name == wanted)
        with self._all_or_none():
            for initialiser in branch.initializer:
                self.values.constant(initialiser.name, tensor_array(initialiser, call.where))
            for inner in branch.node:
                self._node(inner)
        for name, result in zip(proto.output, branch.output, strict=True):
            self.values.bind(name, self.values[result.name])

    def _compile_turns(self, call: Call, proto: onnx.NodeProto) -> bool:
        """Whether a Loop or Scan has become one loop over its turns."""
        seen, names = self._seen.copy(), self.values.by_name.copy()
        try:
            with self._all_or_none():
                results = self._turns(call, proto)
        except (OnnxError, NoCompiledForm):
            return False
        except Interrupted as found:
            if not self._staged or found.value is None or found.value is not call.inputs[0]:
                return False
            raise
        self._seen, self.values.by_name = seen, names
        for name, value in zip(call.outputs, results, strict=False):
            if name:
                self.values.define(name, value)
        self.values.trace([*call.inputs, *(names[n] for n in captured_names(proto))], call.outputs)
        return True

    def _turns(self, call: Call, proto: onnx.NodeProto) -> list[Value]:
        """Add the nodes of a Loop or Scan; its outputs."""
        graph, before = graph_of(proto), {id(n) for n in self._nodes}
        border = border_of(call, proto, graph)
        inner = self._begin_turn(call, graph, border)
        for node in graph.node:
            self._node(node)
        outputs = [self.values[o.name] for o in graph.output]
        if border.numbered:
            if (further := outputs.pop(0).array) is None or not further.all():
                raise NoCompiledForm("a turn may be the last")
            if border.count is None:
                raise Interrupted("the number of turns is only known at run time", call.inputs[0])
        if not 0 < (count := border.count or 0) <= MOST_ELEMENTS:
            raise NoCompiledForm("there is no turn, or very many")
        within = [n for n in self._nodes if id(n) not in before]
        own = Counter(v.name for n in within for v in n.results)
        taken = Counter(v.name for v in outputs)
        alone = [own[v.name] == taken[v.name] == 1 for v in outputs]
        copied = [v if alone[k] else self._copy(v, f"{v.name}/{k}") for k, v in enumerate(outputs)]
        within = [n for n in self._nodes if id(n) not in before]
        turns = turns_of(call, border, count, inner, copied, self._numbers(count) if border.numbered else None)
        nodes, found = nodes_of_turns(turns, within, self.values.names)
        self._nodes = [*(n for n in self._nodes if id(n) in before), *nodes]
        return [found[v.name] for v in copied]

    def _begin_turn(self, call: Call, graph: onnx.GraphProto, border: Border) -> list[Value]:
        """Declare what a body reads: values of one turn, the first of which may be its number."""
        names = [i.name for i in graph.input]
        if border.numbered:
            self.values.constant(names.pop(1), np.array(True))
        inner: list[Value] = []
        for name, (shape, dtype) in zip(names, border.inner, strict=True):
            inner.append(Value(self.values.names.fresh(name, len(shape)), shape, dtype))
            self.values.bind(name, inner[-1])
        for initialiser in graph.initializer:
            self.values.constant(initialiser.name, tensor_array(initialiser, call.where))
        return inner

    def _numbers(self, count: int) -> Value:
        return self.values.unnamed_constant("turns", np.arange(count))

    def _copy(self, value: Value, name: str) -> Value:
        """A value of its own, of this name, that has the same elements."""
        call = Call(name, "Identity", "", 1, {}, (value,), (name,), self._serial)
        self._serial += 1
        notation = Notation(call, self.values.names)
        copy = notation.map(lambda v: v, value)
        self._add(call, notation)
        return copy

    @contextmanager
    def _all_or_none(self) -> Generator[None]:
        """Several nodes in the place of one: where this raises, none of them was there.

        Their names stay taken and keep their origins: the reason of an `Interrupted` is asked for them.
        """
        nodes, seen, away = self._nodes.copy(), self._seen.copy(), self._merged_away.copy()
        values = self.values.moment()
        try:
            yield
        except (OnnxError, Interrupted, NoCompiledForm):
            self._nodes, self._seen, self._merged_away = nodes, seen, away
            self.values.back_to(values)
            raise

    def _on_codes(self, call: Call) -> Call | None:
        """What a quantisation ends, on codes; None where it ends nothing that can be."""
        if call.operator != "QuantizeLinear" or call.domain:
            return None
        return on_codes(call, self._made_by, self._made_for_one, self.values.unnamed_constant)

    def _normalised(self, call: Call) -> Call | None:
        """A convolution with this batch normalisation inside it; None where the node does not come down to one."""
        if call.operator != "BatchNormalization" or call.domain:
            return None
        conv = self._made_for_one(call.inputs[0])
        if conv is None or conv.operator != "Conv" or conv.domain:
            return None
        merged = fold_batch_norm(call, conv, self.values.unnamed_constant)
        if merged is not None:
            position = next(k for k, node in enumerate(self._nodes) if node.call is conv)
            self.values.names.release(s.name for s in self._nodes[position].node.statements)
            del self._nodes[position]
            self._merged_away.add(conv.outputs)
        return merged

    def _made_by(self, value: Value | None) -> Call | None:
        """The node that makes a value."""
        name = None if value is None else value.name
        return next((n.call for n in reversed(self._nodes) if name in n.node.outputs), None)

    def _made_for_one(self, value: Value | None) -> Call | None:
        """The node that makes a value which is read once."""
        return None if value is None or self.values.readers(value) != 1 else self._made_by(value)

    def _notate(self, call: Call, proto: onnx.NodeProto) -> Outcome:
        notation = Notation(call, self.values.names)
        row = (CONTRIB_ROWS if call.domain == CONTRIB else {} if call.domain else OPERATORS).get(call.operator)
        try:
            if row is None:
                raise NoCompiledForm("the operator is not in the table")
            if call.operator not in MOVES and any(v is not None and is_format(v.dtype) for v in call.inputs):
                raise NoCompiledForm("only casts and moves of a format below 8 bits have a compiled form")
            row(notation)
        except NoCompiledForm as reason:
            if self._staged and isinstance(reason, NeedsValue):
                raise Interrupted(reason.message, reason.value) from None
            if self._expanded(call, proto):
                return "expanded"
            if self._counting and self._counted(call):
                return "compiled"
            self._external(call, proto, reason)
            return "fallback"
        self._add(call, notation)
        return "compiled"

    def _counted(self, call: Call) -> bool:
        """Import a node that has as many results as the data say: all that there can be, to be cut behind the run."""
        row, notation = None if call.domain else COUNTED.get(call.operator), Notation(call, self.values.names)
        try:
            if row is None:
                return False
            row(notation)
        except NeedsValue as reason:
            raise Interrupted(reason.message, reason.value) from None
        except NoCompiledForm:
            return False
        assert notation.count is not None
        self._add(call, notation)
        name = self.values.names.fresh(f"{call.outputs[0]}_count")
        self.values.define(name, notation.count)
        self.cuts[call.outputs[0]] = name
        return True

    def _expanded(self, call: Call, proto: onnx.NodeProto) -> bool:
        """Import the operator's function body in its place, where ONNX has one and all of it has a compiled form."""
        outer = self._schemas
        try:
            found = function_body(call, proto, outer.schema(call.operator, call.domain, call.where))
        except NeedsValue as reason:
            if self._staged:
                raise Interrupted(reason.message, reason.value) from None
            raise OnnxError(reason.message, where=call.where, hint=reason.hint) from None
        if found is None:
            return False
        body, imports = found
        known = {name: self.values.by_name.get(name) for name in proto.output}
        own = {o.domain for o in imports}
        imports = [*imports, *(o for o in outer.imports if o.domain not in own)]
        self._schemas = Schemas(imports, outer.ir_version)
        try:
            with self._all_or_none():
                before = {id(n) for n in self._nodes}
                self.values.used_in(body)
                for node in body:
                    self._node(node)
                if any(n.node.external for n in self._nodes if id(n) not in before):
                    raise OnnxError("a part is left to the reference evaluator", where=call.where)
                if any(self.values.by_name.get(name) is known[name] for name in proto.output if name):
                    raise OnnxError("an output is computed by no part", where=call.where)
        except OnnxError as error:
            if is_contrib(call.operator, call.domain):  # nothing else knows it
                raise OnnxError(error.message, where=call.where, hint=error.hint) from error
            return False
        finally:
            self._schemas = outer
        return True

    def _add(self, call: Call, notation: Notation) -> None:
        self.values.arrays.update(notation.constants)
        for position, value in notation.results.items():
            if position < len(call.outputs) and call.outputs[position]:
                self.values.define(call.outputs[position], value)
        own = {t.name for t in notation.temporaries}
        given = {v.name for v in call.inputs if v is not None}
        declared = [v for v in notation.results.values() if v.name not in given]
        outputs = tuple(v.name for v in declared)
        if not declared:
            return
        reads = {r.tensor for s in notation.statements for r in s.reads}
        order = dict.fromkeys(v.name for v in call.inputs if v is not None)
        inputs = tuple(
            n for n in (*order, *sorted(reads - order.keys())) if n in reads and n not in own and n not in outputs
        )
        node = Node(call.name, call.operator, inputs, outputs, tuple(notation.statements), tuple(notation.temporaries))
        self._nodes.append(Imported(node, call, tuple(declared)))

    def _external(self, call: Call, proto: onnx.NodeProto, reason: NoCompiledForm) -> None:
        """An external statement of one instance that may touch all of its operands."""
        if any(a.HasField("g") or a.graphs for a in proto.attribute):
            if self._staged:
                raise Interrupted("an operator with a subgraph")
            if call.operator in CONTROL and not call.domain:
                text, hint = "the turns are only known at run time", "poly.compile(model) compiles at the first run"
                raise OnnxError(text, where=call.where, hint=hint)
            raise OnnxError(
                "operators with subgraphs have no compiled form", where=call.where, hint="unroll it in the exporter"
            )
        if any(v is not None and is_format(v.dtype) for v in call.inputs):
            if self._staged:
                raise Interrupted(reason.message)
            raise OnnxError(reason.message, where=call.where, hint="poly.compile(model) leaves it to the evaluator")
        notation = Notation(call, self.values.names)
        try:
            inferred = inferred_outputs(call, proto, self._schemas, reason)
        except OnnxError as error:
            if self._staged:
                raise Interrupted(reason.message) from error
            raise
        for position, (shape, dtype) in inferred.items():
            notation.output(shape, dtype, position)
        results = notation.results
        outputs = [results[k].name if name else "" for k, name in enumerate(call.outputs)]
        inputs = ["" if v is None else v.name for v in call.inputs]
        external = make_external(proto, call.opset, inputs, outputs)
        target = results[min(results)]
        label = self.values.names.fresh(f"{call.operator.lower()}{call.serial}_external")
        statement = Statement(
            label, (), box_domain(label, ()), Access(target.name, (Affine(),) * target.rank), (), Const(0),
            path=(0,), external=external,
        )  # fmt: skip
        for position, value in results.items():
            if call.outputs[position]:
                self.values.define(call.outputs[position], value)
        node = Node(
            call.name, call.operator, external.reads, external.writes, (statement,), reason=reason.message,
            hint=reason.hint or "",
        )  # fmt: skip
        self._nodes.append(Imported(node, call, tuple(results.values())))

    # -- what comes out ----------------------------------------------------------------------------------------------

    def graph(self, *, partial: bool = False, outputs: Sequence[str] | None = None) -> Graph:
        """The graph of all that was read; `partial`: without the outputs that nothing computes; `outputs`: other ones
        than the model's."""
        table = self.values
        self._outputs = list(outputs) if outputs is not None else self._outputs
        wanted = [name for name in self._outputs if not partial or name in self.values]
        results = [self._result(name) for name in wanted]
        names = {v.name for v in results}
        nodes = live(self._nodes, names)
        produced = {v.name: v for n in nodes for v in n.results}
        used = {name for n in nodes for name in n.node.inputs}
        inner = [v for v in produced.values() if v.name not in names]
        tensors = (
            *table.inputs,
            *(
                Tensor(n, literal_shape(a.shape), dtype_name(a.dtype), "constant")
                for n, a in table.arrays.items()
                if n in used
            ),
            *(Tensor(v.name, literal_shape(v.shape), storage(v.dtype)) for v in inner),
            *(Tensor(v.name, literal_shape(v.shape), storage(v.dtype), "output") for v in results),
        )
        constants = {n: a for n, a in table.arrays.items() if n in used}
        kept = {t.name for t in tensors}
        labels = {n: label for n, label in table.labels.items() if n in kept}
        name = Names().fresh(self._model.graph.name or "model", 1)
        border = {table.labels[name]: name for name in (*(t.name for t in table.inputs), *(v.name for v in results))}
        formats = {name: v.dtype for label, name in border.items() if is_format((v := table[label]).dtype)}
        return Graph(name, tensors, tuple(n.node for n in nodes), constants, labels=labels, formats=formats)

    def _result(self, name: str) -> Value:
        """The tensor of a model output: the one computed, or a copy of an input, a constant or another output."""
        value = self.values.by_name.get(name)
        if value is None:
            raise OnnxError(f"output {name!r} is computed by no node", where=f"model {self._model.graph.name!r}")
        inner = value.array is None and all(value.name != t.name for t in self.values.inputs)
        labels = self.values.labels
        if inner and (labels[value.name] == name or labels[value.name] not in self._outputs):
            labels[value.name] = name
            return value
        return self._copy(value, name)


def _checked(name: str, array: Array, shape: Shape, dtype: str) -> Array:
    wanted = format_dtype(dtype) if is_format(dtype) else numpy_dtype(dtype)
    if array.shape != shape or array.dtype != wanted:
        have, want = f"{array.dtype}{list(array.shape)}", f"{wanted}{list(shape)}"
        raise OnnxError(f"the constant given is {have}, the model wants {want}", where=f"input {name!r}")
    return array
