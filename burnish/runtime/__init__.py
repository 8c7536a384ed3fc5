"""Runs compiled models: linker, thread pool, module, artifact, object cache. Loading needs no LLVM."""
