"""Other libraries' model files."""
