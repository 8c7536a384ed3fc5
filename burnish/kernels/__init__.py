"""Schedule templates: for each target, how an operator's loop program becomes a fast one."""
