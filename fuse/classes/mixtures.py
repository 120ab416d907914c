"""Classes of mixtures of experts: what a mixture carries, and its products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuse.classes.declare import MERGED, REQUIRED, Attr, declare

_MIXTURE = {
    "experts": Attr(REQUIRED, "experts in all"),
    "k": Attr(REQUIRED, "experts that each row is given to"),
    "scoring": Attr(
        "softmax", "what makes weights of scores: softmax; softmax_chosen (over the chosen); sigmoid; none"
    ),
    "routing_compute": Attr("", "element type the routing computes in; empty: the type of scores"),
    "selection": Attr(
        "scores",
        "what the k are chosen by: scores (their weights); biased (plus choice, one an expert); "
        "grouped (biased, in the best groups only); separate (choice, a row of values an expert)",
    ),
    "groups": Attr(0, "groups of experts (grouped)"),
    "kept_groups": Attr(0, "groups that experts are chosen from"),
    "group_best": Attr(2, "experts whose values sum to a group's own"),
    "group_fill": Attr(0.0, "what replaces the values of experts outside the kept groups"),
    "renormalize": Attr(False, "the weights of the chosen are divided by their sum"),
    "sum_eps": Attr(0.0, "added to that sum"),
    "route_scale": Attr(1.0, "scales the weights"),
    "stacked": Attr(True, "the experts' weights are one tensor with a leading expert axis, not one each"),
    "gating": Attr(
        "halves",
        "none: down(act(first)); two: down(act(first) second); halves, lanes: first gives gate then "
        "up, in halves or in turn; halves_up_first, lanes_up_first: up then gate",
    ),
    "act": Attr("silu", "the activation, of the gate where there is one"),
    "act_alpha": Attr(1.0, "its slope (quick_gelu)"),
    "limit": Attr(0.0, "gate is at most this, up between this and its negative; 0: no limit"),
    "up_offset": Attr(0.0, "added to up"),
    "trans_first": Attr(0, "1: an expert's first weight is [out, in]"),
    "trans_second": Attr(0, "1: an expert's second weight is [out, in]"),
    "trans_down": Attr(0, "1: an expert's last weight is [out, in]"),
    "weight_bits": Attr(0, "bits of a weight, packed low first along in (4 or 8); 0: as it is used"),
    "weight_block": Attr(0, "weights of one scale along in; 0: a row of an expert's [out, in] has one"),
    "expert_zeros": Attr(
        (0, 0, 0), "1 where the first, second and last product have zero points, packed alike (else 8 or 128)"
    ),
    "expert_biases": Attr((0, 0, 0), "1 where the first, second and last product of an expert have a bias"),
}
_EXPERTS = (
    "first* second* down* first_bias* second_bias* down_bias* "
    "first_scale* second_scale* down_scale* first_zero* second_zero* down_zero*"
)


def expert_counts(attrs: Mapping[str, Any]) -> dict[str, int]:
    """How many operands stand for each operand of a mixture that ends in `*`, in order."""
    each = 1 if attrs.get("stacked", True) else int(attrs["experts"])
    products = (1, int(attrs.get("gating", "halves") == "two"), 1)
    quantized = (int(bool(attrs.get("weight_bits", 0))),) * 3
    flags = (
        (1, 1, 1),
        attrs.get("expert_biases", (0, 0, 0)),
        quantized,
        attrs.get("expert_zeros", (0, 0, 0)),
    )
    counts = [each * product * flag for row in flags for product, flag in zip(products, row, strict=True)]
    return {name.removesuffix("*"): count for name, count in zip(_EXPERTS.split(), counts, strict=True)}


MIXTURES = (
    declare(
        "moe",
        f"x scores choice {_EXPERTS}",
        "each row of x through the k experts its scores choose, the results weighted and summed",
        attrs=_MIXTURE,
        composed_of=("moe_gather_in_operand",),
    ),
    declare(
        "moe_shared",
        f"x scores choice shared shared_gate {_EXPERTS}",
        "a mixture plus what a shared expert gives, perhaps times the sigmoid of its gate's score",
        attrs=_MIXTURE,
        composed_of=("moe",),
    ),
    declare(
        "router_shared_gate_merge",
        "x weight* bias*",
        "a router's product and the product of a shared expert's gate, of one x, as one",
        "router gate",
        MERGED,
    ),
    declare(
        "moe_gather_in_operand",
        "x weight indices",
        "each row of x times the weight of the expert that its index names, read in place",
        attrs={
            "repeats": Attr(1, "indices a row of x: row n // repeats of x meets index n"),
            "trans_weight": Attr(0, "1: an expert's weight is [out, in]"),
        },
    ),
    declare(
        "moe_block",
        f"x router router_bias choice shared shared_gate {_EXPERTS}",
        "the router's product, the mixture and what a shared expert gives, as one",
        attrs=_MIXTURE
        | {
            "trans_router": Attr(0, "1: the router's weight is [experts, in]"),
            "trans_shared_gate": Attr(0, "1: the shared gate's weight is [1, in]"),
        },
        composed_of=("moe",),
    ),
)
