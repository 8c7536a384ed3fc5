"""Index expressions, tensor expressions and the loop program they lower to. Knows no graph."""
