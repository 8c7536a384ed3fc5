"""A toy accelerator: what a back end from outside of Burnish is made of."""
