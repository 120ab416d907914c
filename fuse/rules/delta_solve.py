"""A triangular system solved in place: row i of a matrix is written from the rows above it.

What exporters write for `for i in 1..L: T[i, :i] += T[i, :i] @ T[:i, :i]`, every row unrolled.
"""

from __future__ import annotations

from fuse.attributes import attribute
from fuse.ir import Graph, Op

#: More rows than this are no chunk.
MOST_ROWS = 512


class Solve:
    """A solve being read, from the matrix it starts from on; `ops` are those it is made of."""

    def __init__(self, graph: Graph, start: str) -> None:
        self.graph, self.start, self.result = graph, start, start
        self.ops: list[Op] = []
        dims = graph.dims(start)
        self.rows = dims[-1] if dims and isinstance(dims[-1], int) and dims[-1] == dims[-2] else 0
        #: The first row that is not written as the solve wants, and the value where that stands.
        self.fault: tuple[int, str] | None = None

    def read(self) -> bool:
        """Follow the rows as far as they go; whether one of the first two was solved at all."""
        if not 1 < self.rows <= MOST_ROWS:
            return False
        for row in range(1, self.rows):
            writer = self._writer(self.result)
            before = len(self.ops)
            if writer is None or not self._written(writer, row):
                del self.ops[before:]
                if writer is None or (row == 2 and self.fault is not None):
                    self.fault = self.fault or (row, self.result)
                    return row > 2 or (row == 2 and self.fault[0] == 2)
                self.fault = self.fault or (row, writer.outputs[0])
                self.ops.append(writer)
            self.result = writer.outputs[0]
        return True

    def _writer(self, matrix: str) -> Op | None:
        for slot in self.graph.readers(matrix):
            op = self.graph.slots[slot]
            if op is not None and op.kind == "ScatterElements" and op.inputs[0] == matrix:
                return op
        return None

    def _take(self, value: str, *kinds: str) -> Op | None:
        op = self.graph.producer(value)
        if op is None or op.kind not in kinds:
            return None
        self.ops.append(op)
        return op

    def _written(self, writer: Op, row: int) -> bool:
        """Whether an op puts row `row`, solved, into the matrix."""
        graph, matrix = self.graph, self.result
        axis = from_end(graph, matrix, writer.attrs.get("axis", 0))
        if axis != -2 or writer.attrs.get("reduction", "none") != "none":
            return False
        self.ops.append(writer)
        if self._index(writer.inputs[1]) != row:
            return False
        spread = self._take(writer.inputs[2], "Unsqueeze", "Reshape")
        if spread is None or not inserted(graph, spread, -2):
            return False
        return self._row(spread.inputs[0], matrix, row)

    def _index(self, value: str) -> int | None:
        """The one number that indices repeat."""
        op = self._take(value, "Expand")
        return repeated(self.graph, op.inputs[0] if op is not None else value)

    def _row(self, value: str, matrix: str, row: int) -> bool:
        """Whether a value is the row with its first `row` elements solved."""
        back = self._take(value, "Transpose")
        write = self._take(back.inputs[0], "ScatterND") if back is not None else None
        if back is None or write is None or write.attrs.get("reduction", "none") != "none":
            return False
        old, new = (self._take(write.inputs[at], "Transpose") for at in (0, 2))
        if old is None or new is None or not counts(self.graph, write.inputs[1], row):
            return False
        perms = {tuple(op.attrs.get("perm", ())) for op in (back, old, new)}
        if len(perms) != 1 or not _swaps_ends(perms.pop()):
            return False
        return self._is_row(old.inputs[0], matrix, row) and self._solved(new.inputs[0], matrix, row)

    def _is_row(self, value: str, matrix: str, row: int) -> bool:
        op = self._take(value, "Gather")
        return (
            op is not None
            and op.inputs[0] == matrix
            and from_end(self.graph, matrix, op.attrs.get("axis", 0)) == -2
            and self.graph.scalar(op.inputs[1]) == row
        )

    def _solved(self, value: str, matrix: str, row: int) -> bool:
        """The row's head plus the head times the block above it."""
        graph = self.graph
        total = self._take(value, "Add")
        if total is None:
            return False
        heads = [v for v in total.inputs if _sliced(graph, v, -1, row)]
        if len(heads) != 1:
            return False
        head = heads[0]
        cut = self._take(head, "Slice")
        if cut is None or not self._is_row(cut.inputs[0], matrix, row):
            return False
        product = total.inputs[1 - total.inputs.index(head)]
        summed = self._take(product, "ReduceSum")
        if summed is None or not _sums_rows(graph, summed):
            return False
        each = self._take(summed.inputs[0], "Mul")
        return each is not None and any(
            self._column(each.inputs[at], head) and self._block(each.inputs[1 - at], matrix, row)
            for at in (0, 1)
        )

    def _column(self, value: str, head: str) -> bool:
        op = self.graph.producer(value)
        dims = self.graph.dims(value)
        if op is None or op.kind not in ("Unsqueeze", "Reshape") or op.inputs[0] != head:
            return False
        self.ops.append(op)
        inner = self.graph.dims(head)
        return dims is not None and inner is not None and dims == (*inner, 1)

    def _block(self, value: str, matrix: str, row: int) -> bool:
        """The first rows and columns of the matrix, cut in either order."""
        axes: list[int] = []
        for _ in range(2):
            axis = next((a for a in (-1, -2) if _sliced(self.graph, value, a, row)), None)
            op = self._take(value, "Slice") if axis is not None else None
            if op is None or axis is None:
                return False
            axes.append(axis)
            value = op.inputs[0]
        return value == matrix and sorted(axes) == [-2, -1]


def from_end(graph: Graph, value: str, axis: object) -> int | None:
    dims = graph.dims(value)
    if not isinstance(axis, int) or dims is None:
        return None
    return axis if axis < 0 else axis - len(dims)


def inserted(graph: Graph, op: Op, axis: int) -> bool:
    """Whether an op puts one axis of one in, which is `axis` (from the end) of its result."""
    inner, dims = graph.dims(op.inputs[0]), graph.dims(op.outputs[0])
    if inner is None or dims is None or len(dims) != len(inner) + 1:
        return False
    at = len(dims) + axis
    return dims == (*inner[:at], 1, *inner[at:])


def _swaps_ends(perm: tuple[int, ...]) -> bool:
    """Whether a transpose exchanges the first and the last axis only: then it is its own inverse."""
    last = len(perm) - 1
    return last > 0 and perm == (last, *range(1, last), 0)


def _sums_rows(graph: Graph, op: Op) -> bool:
    axis = from_end(graph, op.inputs[0], attribute(graph, op, "axes"))
    return axis == -2 and op.attrs.get("keepdims", 1) == 0


def integers(graph: Graph, value: str) -> tuple[int, ...] | None:
    """The elements of a small constant of integers."""
    content = graph.content(value)
    if content is not None:
        known = tuple(e for e in content if isinstance(e, int))
        return known if len(known) == len(content) else None
    tensor = graph.constant(value)
    array = None if tensor is None else tensor.small()
    return None if array is None else tuple(int(e) for e in array.reshape(-1))


def repeated(graph: Graph, value: str) -> int | None:
    """The one whole number that every element of a constant is."""
    content = graph.content(value)
    alike = content is not None and len(set(content)) == 1
    return content[0] if alike and content is not None and isinstance(content[0], int) else None


def _sliced(graph: Graph, value: str, axis: int, stop: int) -> bool:
    """Whether a value is the first `stop` elements of another along one axis from the end."""
    op = graph.producer(value)
    if op is None or op.kind != "Slice" or len(op.inputs) < 4:
        return False
    begin, end, axes = (integers(graph, op.inputs[at]) for at in (1, 2, 3))
    step = integers(graph, op.inputs[4]) if len(op.inputs) > 4 else (1,)
    if begin != (0,) or end != (stop,) or step != (1,) or axes is None or len(axes) != 1:
        return False
    return from_end(graph, op.inputs[0], axes[0]) == axis


def counts(graph: Graph, value: str, number: int) -> bool:
    """Whether the elements of a value are 0, 1, ... number - 1."""
    for _ in range(6):
        known = integers(graph, value)
        if known is not None:
            return known == tuple(range(number))
        op = graph.producer(value)
        if op is None:
            return False
        if op.kind == "Range":
            return tuple(graph.scalar(v) for v in op.inputs) == (0, number, 1)
        if op.kind in ("Unsqueeze", "Reshape", "Cast", "Squeeze"):
            value = op.inputs[0]
        elif op.kind == "Slice" and _sliced(graph, value, -1, number):
            inner = graph.producer(op.inputs[0])
            if inner is None or inner.kind != "Range":
                return False
            begin, end, step = (graph.scalar(v) for v in inner.inputs)
            return begin == 0 and step == 1 and isinstance(end, int) and end >= number
        else:
            return False
    return False


def index_ops(graph: Graph, ops: list[Op]) -> list[Op]:
    """The operators that make the indices of a solve and that nothing else reads."""
    own = {op.slot for op in ops}
    found: list[Op] = []
    todo = [op.inputs[1] for op in ops if op.kind == "ScatterND"]
    while todo:
        value = todo.pop()
        op = graph.producer(value)
        if op is None or op.slot in own or op.kind not in ("Unsqueeze", "Reshape", "Cast", "Slice", "Range"):
            continue
        if graph.is_output(value) or any(slot not in own for slot in graph.readers(value)):
            continue
        own.add(op.slot)
        found.append(op)
        todo += op.inputs[:1]
    return found
