"""The rule table: each rule runs to its fixed point over the slots before the next begins.

Names and order are API: `report.fired("add_norm")` stands in people's tests for years.
"""

from __future__ import annotations

from fuse.rule import Rule
from fuse.rules.activations import fast_gelu, gelu, quick_gelu, silu, softcap
from fuse.rules.attention import attention
from fuse.rules.norms import l2_norm, layer_norm, rms_norm
from fuse.rules.rotation import rope

RULES: tuple[Rule, ...] = (
    rms_norm,
    layer_norm,
    l2_norm,
    gelu,
    fast_gelu,
    quick_gelu,
    silu,
    softcap,
    rope,
    attention,
)
