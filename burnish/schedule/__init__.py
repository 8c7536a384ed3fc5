"""Schedule primitives: pure functions from loop program to loop program, and the recorder that replays them."""
