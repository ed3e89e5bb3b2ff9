"""What comes in: einsum strings, Einstein notation, Python loop nests, ONNX graphs."""

if __name__ != "poly.frontend":
    raise ImportError(f"{__name__!r} is a source folder, not a package: import poly.frontend")
