"""Parts of growers: binned tables, rows by node, splits of a level, whole subtrees, scans of sorted columns."""
