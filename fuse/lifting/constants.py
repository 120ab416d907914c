"""`Constant` nodes, in every form their value takes."""

from __future__ import annotations

import numpy as np

from fuse.ir import Tensor
from fuse.lifting.draft import Node
from fuse.types import FuseError

#: Attribute -> (element type, numpy type) of the tensor it stands for.
_FORMS = {
    "value_int": ("i64", np.int64),
    "value_ints": ("i64", np.int64),
    "value_float": ("f32", np.float32),
    "value_floats": ("f32", np.float32),
    "value_string": ("str", np.object_),
    "value_strings": ("str", np.object_),
}


def constant_node(node: Node, path: str) -> Tensor:
    """The constant that a `Constant` node makes."""
    if node.inputs or len(node.outputs) != 1 or len(node.attrs) != 1:
        raise FuseError(
            f"{node} has {len(node.inputs)} inputs, {len(node.outputs)} outputs and "
            f"{len(node.attrs)} values; a Constant has none, one and one"
        )
    ((form, value),) = node.attrs.items()
    if form in ("value", "sparse_value") and isinstance(value, Tensor):
        return value
    if form not in _FORMS:
        raise FuseError(f"{node} has a value of an unknown form: {form!r}")
    dtype, numpy_type = _FORMS[form]
    dims = (len(value),) if form.endswith("s") else ()
    array: np.ndarray = np.array(value, numpy_type).reshape(dims)
    nbytes = sum(map(len, array.reshape(-1))) if dtype == "str" else array.nbytes
    return Tensor(path, dtype, dims, nbytes, array.copy)
