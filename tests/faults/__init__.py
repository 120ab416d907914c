"""A planter of faults: one thing changed in a model that fuses, and what a true report says of it."""
