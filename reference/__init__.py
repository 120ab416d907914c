"""The reference: evaluates graphs by numpy, holds fused ops against their definitions.

Three ways to the same values: the lifted graph, fused ops by their parts (equal bit for bit), and
fused ops by their class's closed form (equal within a tolerance by element type).
"""

from reference.alone import Each, check_each
from reference.check import Check, Mismatch, check
from reference.eval import eval
from reference.feeds import feeds

__all__ = ["Check", "Each", "Mismatch", "check", "check_each", "eval", "feeds"]
