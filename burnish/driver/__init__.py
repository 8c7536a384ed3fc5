"""The compiler put together: from a model to a module, by every door there is."""
