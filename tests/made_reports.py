"""A small graph and records made by hand, for the tests of reports."""

from __future__ import annotations

from fuse.engine.record import Miss, Outcome, Record
from fuse.ir import Graph, Model, Op, leaves, make_base
from fuse.report import Decision, Report, build
from fuse.shim import Limit
from fuse.types import Dim, Type, symbol

LAYERS = 4
STEPS = ("rms_norm", "attention", "add_norm", "gelu")
_CHAIN = (("Pow", "square"), ("ReduceMean", "mean"), ("Sqrt", "root"), ("Div", "norm"))


def graph(layers: int = LAYERS, rows: Dim = 8, name: str = "m") -> Graph:
    """Layers of an addition and a norm of four ops, [rows, 64] in f32; the sum is read on."""
    ops, types = [], {"x": Type("f32", (rows, 64))}
    before = "x"
    for n in range(layers):
        folder = f"/model/layers.{n}"
        total = f"sum{n}"
        ops.append(Op("Add", (before, "x"), (total,), {}, (), f"{folder}/Add"))
        inputs: tuple[str, ...] = (total,)
        for kind, value in _CHAIN:
            out = f"{value}{n}"
            if kind == "Div":
                inputs = (total, *inputs)
            ops.append(Op(kind, inputs, (out,), {}, (), f"{folder}/norm/{kind}"))
            inputs = (out,)
        types |= {v: Type("f32", (rows, 64)) for v in (total, f"square{n}", f"norm{n}")}
        types |= {v: Type("f32", (rows, 1)) for v in (f"mean{n}", f"root{n}")}
        before = f"norm{n}"
    model = Model(name, "ab" * 32, {"": 17}, 8, len(ops), lifting={"Identity": 2})
    base = make_base(
        model=model,
        prefix="",
        inputs=["x"],
        outputs=[before],
        ops=ops,
        types=types,
        contents={},
        constants={},
    )
    return Graph(base)


class Maker:
    """Records over a graph, numbered as they are made; firings and refusals change the graph."""

    def __init__(self, start: Graph) -> None:
        self.before, self.graph = start, start.copy()
        self.records: list[Record] = []

    def op(self, value: str) -> Op:
        found = self.graph.producer(value)
        assert found is not None
        return found

    def norm(self, n: int) -> list[Op]:
        return [self.op(f"{value}{n}") for _, value in _CHAIN]

    def fuse(
        self,
        rule: str,
        parts: list[Op],
        outputs: tuple[str, ...],
        *,
        builds: str = "",
        outcome: Outcome = "fired",
        limits: tuple[Limit, ...] = (),
        fires: bool = True,
        realizes: tuple[str, ...] = (),
    ) -> Record:
        """A fused op over parts, in the slot of the last, written down with its outcome."""
        made = {v for part in parts for v in part.outputs}
        reads = dict.fromkeys(v for part in parts for v in part.inputs if v not in made)
        kind = builds or rule
        op = Op(kind, tuple(reads), outputs, {}, tuple(parts))
        op = self.graph.replace(op, max(part.slot for part in parts))
        record = Record(
            outcome,
            rule,
            kind,
            outputs[0],
            tuple(sorted(leaves(op), key=lambda leaf: leaf.slot)),
            "",
            len(self.records),
            op=op,
            limits=limits,
            fires=fires,
            kernel=f"kernel of {kind}",
            evidence="ran",
            realizes=realizes,
        )
        self.records.append(record)
        return record

    def miss(self, rule: str, ops: list[Op], root: str, miss: Miss) -> None:
        self.records.append(
            Record("near_miss", rule, rule, root, tuple(ops), "", len(self.records), miss=miss)
        )

    def report(self, **more: object) -> Report:
        given: dict[str, object] = {"chip_name": "m3", "chip_sha256": "cd" * 32, "held": (), "steps": STEPS}
        given |= {"made_by": "fuse 0.1.0"} | more
        return build(self.records, self.before, self.graph, **given)  # type: ignore[arg-type]


WIDE = Limit("chip:width", "last axis at most 32", "64", "split the hidden axis")
TYPED = Limit("chip:dtypes", "element type one of f16", "x is f32")
READ = Miss("read_elsewhere", "root3", "read only inside the match", "also read by /l/Add_7", 4, 4, "0.1")


def mixed(rows: Dim = 8) -> Maker:
    """A norm of each outcome: layer 0 fired and was taken in, 1 fired, 2 was refused, 3 nearly matched."""
    made = Maker(graph(rows=rows))
    made.fuse("rms_norm", made.norm(0), ("norm0",))
    made.fuse("rms_norm", made.norm(1), ("norm1",))
    refused = made.fuse("rms_norm", made.norm(2), ("norm2",), outcome="refused", limits=(WIDE, TYPED))
    made.miss("rms_norm", made.norm(3), "norm3", READ)
    made.fuse(
        "add_norm",
        [made.op("sum0"), made.op("norm0")],
        ("norm0", "sum0"),
        realizes=("add_norm", "rms_norm"),
    )
    assert refused.op is not None
    made.graph.dissolve(refused.op)
    return made


def symbolic() -> Maker:
    """The same with a batch of unknown size."""
    return mixed(symbol("batch"))


def by_root(report: Report, rule: str, root: str) -> Decision:
    return next(row for row in report.decisions if (row.rule, row.root) == (rule, root))
