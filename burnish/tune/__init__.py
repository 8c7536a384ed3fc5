"""Tuning: schedules of one task are proposed, built, measured, learned from and remembered."""
