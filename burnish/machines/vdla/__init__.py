"""A decoupled access-execute accelerator (thesis-chen sections 4.3.4 and 4.6.4): instructions, simulator, code."""
