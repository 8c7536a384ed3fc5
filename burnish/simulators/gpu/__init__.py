"""GPU emulator: grids of threads as coroutines on the CPU, checked for races."""
