"""The reference: evaluates graphs by numpy, holds fused ops against their definitions.

Three ways to the same values: the lifted graph, fused ops by their parts (equal bit for bit), and
fused ops by their class's closed form (equal within a tolerance by element type).
"""

from reference.eval import eval

__all__ = ["eval"]
