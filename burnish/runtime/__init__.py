"""Runs compiled models: linker, thread pool, module, artifact, object cache, paired timing. Loading needs no LLVM."""
