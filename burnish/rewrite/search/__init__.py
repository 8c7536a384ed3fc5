"""Search for the cheapest equal graph: values, matches, moves, costs."""
