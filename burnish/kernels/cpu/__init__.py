"""Templates for CPUs with vector registers; the first that matches a task schedules it."""
