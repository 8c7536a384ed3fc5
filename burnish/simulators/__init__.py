"""Simulators and emulators of machines that are not at hand: GPUs, CPUs of other instruction sets."""
