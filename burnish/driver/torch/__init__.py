"""The two doors for PyTorch: a compiled ``nn.Module``, and the backend of ``torch.compile``."""
