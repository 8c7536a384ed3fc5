"""Programs of devices that a strategy stands for: messages, pipelines, compilation, calibration."""
