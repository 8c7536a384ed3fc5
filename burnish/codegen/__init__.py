"""Machine code from lowered loop programs."""
