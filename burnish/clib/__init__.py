"""C libraries: a compiled model as an archive, a shared library and headers that need neither Python nor LLVM."""
