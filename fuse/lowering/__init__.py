"""The pieces of `fuse.lower`: how a graph becomes an ONNX model again, and how that is written.

scope      names of values in the file, one scope a graph
dims       shapes that are written as arithmetic over the graph inputs
functions  fused ops as ONNX local functions, one a structure
model      the graphs, node by node
tensors    where each constant's values lie: in the model or in the data file beside it
files      writing whole or not at all; copying weights without holding them
"""
