"""Trees packed for prediction: checked, walked by kernels, or written as LLVM IR."""
