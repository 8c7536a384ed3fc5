"""The PyTorch frontend: functional ATen programs, of torch.export or of torch.compile, into a Graph."""
