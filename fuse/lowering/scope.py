"""Names of values in the file that is written: paths lose the prefix of the graph that owns them."""

from __future__ import annotations

from collections.abc import Iterable

from fuse.ir import Graph


class Names:
    """Gives names that no value of the model has, in any of its graphs."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._taken: set[str] | None = None

    def fresh(self, wanted: str) -> str:
        """`wanted`, or `wanted_2`, `wanted_3` ... where that name is taken."""
        if self._taken is None:
            self._taken = self._collect()
        name, count = wanted, 1
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name

    def _collect(self) -> set[str]:
        """Every name a value has or can have: a path, and what follows each of its colons.

        Which colon ends a prefix does not matter here: too many taken names cost nothing.
        """
        taken: set[str] = set()
        for graph in (self._graph, *self._graph.bodies()):
            base = graph.base
            for table in (base.inputs, base.outputs, base.producer, base.constants):
                for path in table:
                    taken.add(path)
                    at = path.find(":")
                    while at >= 0:
                        taken.add(path[at + 1 :])
                        at = path.find(":", at + 1)
        return taken


class Scope:
    """The names of one graph. `read` collects its constants in the order they are first read.

    outer: the scope around a body. owner: the slot that the op with the body now has there. mapped: it is
    the body of a SequenceMap, or in one.
    """

    def __init__(
        self, graph: Graph, names: Names, outer: Scope | None = None, owner: int = -1, mapped: bool = False
    ) -> None:
        self.graph, self.names, self.outer, self._owner_slot = graph, names, outer, owner
        self.mapped: bool = mapped or (outer is not None and outer.mapped)
        self.read: dict[str, str] = {}
        self._prefix = graph.base.prefix
        self._inputs = frozenset(graph.base.inputs)
        self._constants = graph.base.constants
        self._known: dict[str, str] = {"": ""}

    def name(self, path: str) -> str:
        """The name of a value in the file; a constant counts as read from now on."""
        known = self._known.get(path)
        if known is None:
            owner = self._owner(path)
            known = owner._own_name(path) if owner is self else owner.name(path)
            self._known[path] = known
        return known

    def of(self, paths: Iterable[str]) -> list[str]:
        """The names of several values."""
        if self.outer is not None:
            return [self.name(path) for path in paths]
        # Nothing is renamed in the whole model's graph, which has nearly all of its nodes.
        names = list(paths)
        for path in names:
            if path in self._constants:
                self.read[path] = path
        return names

    def owns(self, path: str) -> bool:
        """Whether the value belongs to this graph and not to one around it."""
        return self._owner(path) is self

    def _owner(self, path: str) -> Scope:
        scope = self
        while scope.outer is not None and not path.startswith(scope._prefix):
            scope = scope.outer
        return scope

    def _own_name(self, path: str) -> str:
        name = path[len(self._prefix) :]
        if self._is_seen(name):
            # Inside a body the file allows no second value of a name that the body sees.
            name = self.names.fresh(name)
        if path in self._constants:
            self.read[path] = name
        return name

    def _is_seen(self, name: str) -> bool:
        """Whether a graph around this one has a value of that name where the owner stands.

        What is made later, and the owner's own results, cannot be seen: exporters often call the
        results of an If as its branches do.
        """
        outer = self.outer
        if outer is None:
            return False
        base, path = outer.graph.base, outer._prefix + name
        if path in base.constants or path in outer._inputs:
            return True
        made = base.producer.get(path)
        if made is not None and outer.graph.into[made] < self._owner_slot:
            return True
        return outer._is_seen(name)
