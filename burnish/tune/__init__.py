"""The learning tuner: finds schedules by a learned cost model and real measurements."""
