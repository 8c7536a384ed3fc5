"""Measurement: made-up inputs, worker processes that may crash, models timed in turns."""
