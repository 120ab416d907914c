"""The pieces of the lift. With `fuse.lift` and the lowering, the only importers of onnx."""
