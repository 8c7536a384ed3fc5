"""AArch64: 16-byte NEON vectors."""
