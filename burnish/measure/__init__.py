"""What is measured, and where a crash harms nobody: made-up inputs, worker processes, models timed in turns."""
