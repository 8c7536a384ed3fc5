"""Plans for many devices: machines, strategies, simulation, search for a plan, and its execution."""
