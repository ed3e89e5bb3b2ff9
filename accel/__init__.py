"""Tensor accelerator: commands, streams, tokens, verifier, simulator, machine profiles."""

if __name__ != "poly.accel":
    raise ImportError(f"{__name__!r} is a source folder, not a package: import poly.accel")
