"""Models of recurrences as exporters write them: in chunks, row by row, in a Scan or a Loop."""

from __future__ import annotations

from typing import Any

import numpy as np
from building import ELEMENTS, Building
from onnx import ModelProto, helper

B, C, H, K, S, V = 2, 6, 3, 4, 5, 5
INTERIOR = 9223372036854775807


class Chunked(Building):
    """The gated delta rule over `rows` rows in chunks, its triangular solve written row by row.

    changed: what is written otherwise, by name (see the uses).
    """

    def __init__(
        self, chunk: int = 4, chunks: int = 2, rows: int | str = 7, changed: str = "", **options: Any
    ) -> None:
        super().__init__(**options)
        self.chunk, self.chunks, self.rows, self.changed = chunk, chunks, rows, changed
        self.root = self.state = ""

    def scalar(self, number: int) -> str:
        return self.constant(np.array(number, np.int64))

    def part(self, x: str, begin: int, end: int, axis: int) -> str:
        return str(self.op("Slice", x, *(self.ints(i) for i in (begin, end, axis, 1))))

    def padded(self, x: str, rank: int) -> str:
        behind = (self.chunk * self.chunks - self.rows) if isinstance(self.rows, int) else 1
        amounts = [0] * (2 * rank)
        amounts[2 * rank - (2 if rank == 4 else 1)] = behind
        if self.changed == "pads before" and rank == 4:
            amounts = [0, 0, behind, 0, 0, 0, 0, 0]
        value = [self.constant(1.0)] if self.changed == "pads with ones" else []
        return str(self.op("Pad", x, self.ints(*amounts), *value))

    def cut(self, x: str, width: int = 0) -> str:
        return str(self.op("Reshape", x, self.ints(B, H, -1, self.chunk, *([width] if width else []))))

    def triangle(self, upper: int, dtype: Any) -> np.ndarray:
        return np.triu(np.ones((self.chunk, self.chunk)), upper).astype(dtype)

    def build(self) -> ModelProto:
        changed, later = self.changed, self.constant(self.triangle(1, bool))
        q, k = (self.input(name, B, H, self.rows, K) for name in "qk")
        v = self.input("v", B, H, self.rows, V)
        decay, beta = (self.input(name, B, H, self.rows) for name in ("decay", "beta"))
        q, k = self.op("Mul", q, self.constant(0.5)), self.op("Mul", k, self.constant(0.25))
        decay, beta = self.op("Neg", self.op("Abs", decay)), self.op("Sigmoid", beta)
        padded = {name: self.padded(x, 4) for name, x in (("q", q), ("k", k), ("v", v))}
        rate = self.op("Unsqueeze", self.padded(beta, 3), self.ints(-1))
        v_rated, k_rated = (
            self.cut(self.op("Mul", padded[name], rate), width) for name, width in (("v", V), ("k", K))
        )
        q_rows, k_rows = self.cut(padded["q"], K), self.cut(padded["k"], K)
        axis = 2 if changed == "sum axis" else 3
        left = self.op("CumSum", self.cut(self.padded(decay, 3)), self.scalar(axis))
        apart = self.op(
            "Sub", self.op("Unsqueeze", left, self.ints(4)), self.op("Unsqueeze", left, self.ints(3))
        )
        if changed == "later":
            later = self.constant(self.triangle(0, bool))
        minus = self.constant(-np.inf)
        between = self.op("Exp", self.op("Where", later, minus, apart))
        columns = self.op("Transpose", k_rows, perm=[0, 1, 2, 4, 3])
        likeness = self.op("Mul", self.op("MatMul", k_rated, columns), between)
        below = self.scalar(0 if changed == "diagonal" else -1)
        solved = self.solve(self.op("Neg", self.op("Trilu", likeness, below, upper=0)))
        one = np.eye(self.chunk, dtype=self.dtype) * (2 if changed == "two" else 1)
        inverse = self.op("Add", solved, self.constant(one))
        shares = self.op("Unsqueeze", self.op("Exp", left), self.ints(-1))
        values = self.op("MatMul", inverse, v_rated)
        keys = self.op("MatMul", inverse, self.op("Mul", k_rated, shares))
        scores = self.op("Mul", self.op("MatMul", q_rows, columns), between)
        if changed == "q scaled once":
            q_rows = self.cut(self.op("Mul", padded["q"], self.constant(2.0)), K)
        asked = self.op("Mul", q_rows, shares)
        self.run_chunks(values, keys, scores, asked, k_rows, left)
        results = [self.root, self.state] if changed in ("state out", "last row") else [self.root]
        return self.model(*(self.op("Identity", result) for result in results))

    def solve(self, matrix: str) -> str:
        """For each row i: T[i, :i] += T[i, :i] @ T[:i, :i]."""
        last = self.chunk - 1 if self.changed == "a row less" else self.chunk
        for i in range(1, last):
            row = self.op("Gather", matrix, self.scalar(i), axis=3)
            head = self.part(row, 0, i, 3)
            wrong = int(self.changed == "another block" and i == 2)
            block = self.part(self.part(matrix, wrong, i + wrong, 3), 0, i, 4)
            product = self.op("Mul", self.op("Unsqueeze", head, self.ints(-1)), block)
            new = self.op("Add", head, self.op("ReduceSum", product, self.ints(-2), keepdims=0))
            counted = self.op("Range", *(self.scalar(n) for n in (0, self.chunk, 1)))
            index = self.op("Unsqueeze", self.part(counted, 0, i, 0), self.ints(-1))
            turned = [self.op("Transpose", x, perm=[3, 1, 2, 0]) for x in (row, new)]
            written = self.op("ScatterND", turned[0], index, turned[1])
            back = self.op("Transpose", written, perm=[3, 1, 2, 0])
            spread = self.op("Unsqueeze", back, self.ints(3))
            where = self.op("Expand", self.scalar(i), self.op("Shape", spread))
            matrix = self.op("ScatterElements", matrix, where, spread, axis=3)
        return matrix

    def run_chunks(self, values: str, keys: str, scores: str, asked: str, k_rows: str, left: str) -> None:
        state = self.op("Expand", self.constant(0.0), self.ints(B, H, K, V))
        self.root = self.op("Expand", self.constant(0.0), self.op("Shape", values))
        for i in range(self.chunks):
            value, key, score, ask, k, sum_ = (
                self.op("Gather", x, self.scalar(i), axis=2)
                for x in (values, keys, scores, asked, k_rows, left)
            )
            fresh = self.op("Sub", value, self.op("MatMul", key, state))
            rows = self.op("Add", self.op("MatMul", ask, state), self.op("MatMul", score, fresh))
            spread = self.op("Unsqueeze", rows, self.ints(2))
            place = 0 if self.changed == "same place" else i
            where = self.op("Expand", self.scalar(place), self.op("Shape", spread))
            self.root = self.op("ScatterElements", self.root, where, spread, axis=2)
            all_left = self.op("Gather", sum_, self.scalar(-2 if self.changed == "last row" else -1), axis=2)
            decayed = self.op("Exp", self.op("Unsqueeze", all_left, self.ints(-1)))
            decayed = self.op("Unsqueeze", decayed, self.ints(-1))
            shares = self.op("Exp", self.op("Sub", self.op("Unsqueeze", all_left, self.ints(-1)), sum_))
            brought = self.op("Mul", k, self.op("Unsqueeze", shares, self.ints(-1)))
            brought = self.op("MatMul", self.op("Transpose", brought, perm=[0, 1, 3, 2]), fresh)
            if self.changed != "state forgotten":
                state = self.op("Add", self.op("Mul", state, decayed), brought)
        self.state = state


# ---- row by row ----------------------------------------------------------------------------------------
def step(
    g: Building, q: str, k: str, v: str, decay: str, beta: str, state: str, style: str
) -> tuple[str, str]:
    """One row: style sums (rows of rank 3) or products (rows are matrices of one row)."""
    unit = g.ints(-1)
    if style in ("sums", "decayed twice"):
        factor = g.op("Unsqueeze", g.op("Unsqueeze", g.op("Exp", decay), unit), unit)
        kept, column = g.op("Mul", state, factor), g.op("Unsqueeze", k, unit)
        seen = g.op("ReduceSum", g.op("Mul", kept, column), g.ints(-2), keepdims=0)
        added = g.op("Mul", g.op("Sub", v, seen), g.op("Unsqueeze", beta, unit))
        kept = g.op("Mul", kept, factor) if style == "decayed twice" else kept
        after = g.op("Add", kept, g.op("Mul", column, g.op("Unsqueeze", added, g.ints(-2))))
        y = g.op("ReduceSum", g.op("Mul", after, g.op("Unsqueeze", q, unit)), g.ints(-2), keepdims=0)
        return y, after
    kept = g.op("Mul", g.op("Exp", decay), state)
    added = g.op("Mul", g.op("Sub", v, g.op("MatMul", k, kept)), beta)
    after = g.op("Add", kept, g.op("MatMul", g.op("Transpose", k, perm=[0, 1, 3, 2]), added))
    return g.op("MatMul", q, after), after


def row(style: str = "sums", **options: Any) -> ModelProto:
    """A decode step: one row and the state that the caller keeps."""
    g = Building(**options)
    unit, ones = ([1], [1, 1]) if style == "products" else ([], [])
    q, k = (g.input(name, B, H, *unit, K) for name in "qk")
    v, state = g.input("v", B, H, *unit, V), g.input("state", B, H, K, V)
    decay, beta = (g.input(name, B, H, *ones) for name in ("decay", "beta"))
    decay, beta = g.op("Neg", g.op("Abs", decay)), g.op("Sigmoid", beta)
    y, after = step(g, g.op("Mul", q, g.constant(0.5)), k, v, decay, beta, state, style)
    return g.model(g.op("Identity", y), g.op("Identity", after))


def repeated(kind: str = "Scan", axis: int = 2, rows: int = 4, dtype: Any = np.float32) -> ModelProto:
    """The rows in a Scan (cut along an axis) or a Loop (gathered by its count)."""
    g, body = Building(dtype), Building(dtype)
    body.constants = g.constants
    sizes = {"q": (B, H, K), "k": (B, H, K), "v": (B, H, V), "decay": (B, H), "beta": (B, H)}
    outer = {n: g.input(n, *(*dims[:axis], rows, *dims[axis:])) for n, dims in sizes.items()}
    state = g.input("state", B, H, K, V)
    inner = {n: f"{n}_row" for n in sizes}
    if kind == "Loop":
        inner = {n: body.op("Gather", outer[n], "count", axis=axis) for n in sizes}
    y, after = step(
        body, inner["q"], inner["k"], inner["v"], inner["decay"], inner["beta"], "state_row", "sums"
    )
    element = ELEMENTS[dtype]

    def info(name: str, *dims: int) -> Any:
        return helper.make_tensor_value_info(name, element, dims)

    ends = [info(after, B, H, K, V), info(y, B, H, V)]
    begins = [info("state_row", B, H, K, V)]
    if kind == "Scan":
        begins += [info(inner[n], *dims) for n, dims in sizes.items()]
        graph = helper.make_graph(body.nodes, "body", begins, ends)
        node = helper.make_node(
            "Scan", [state, *outer.values()], ["after", "y"], body=graph, num_scan_inputs=5,
            scan_input_axes=[axis] * 5, scan_output_axes=[axis],
        )  # fmt: skip
    else:
        going = helper.make_tensor_value_info("going", 9, ())
        begins = [helper.make_tensor_value_info("count", 7, ()), going, *begins]
        graph = helper.make_graph(body.nodes, "body", begins, [going, *ends])
        trips = g.constant(np.array(rows, np.int64))
        node = helper.make_node("Loop", [trips, "", state], ["after", "y"], body=graph)
    g.nodes.append(node)
    return g.model("y", "after")
