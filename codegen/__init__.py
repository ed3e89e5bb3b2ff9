"""Loop tree to native code: LLVM IR, object code, the host's description, calling and caching."""

if __name__ != "poly.codegen":
    raise ImportError(f"{__name__!r} is a source folder, not a package: import poly.codegen")
