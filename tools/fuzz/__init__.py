"""The generator of random models: what the compiler makes of them, against oracles. `python -m tools.fuzz`."""
