"""Dependences, legality, checked schedule edits, footprints, promotion, memory planning, search."""

if __name__ != "poly.scheduling":
    raise ImportError(f"{__name__!r} is a source folder, not a package: import poly.scheduling")
