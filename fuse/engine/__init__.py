"""The engine: the steps of the table, one rule over one graph, what nearly matched, what is written down."""
