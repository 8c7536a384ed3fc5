"""What growers are made of: binned tables, rows by node, splits of a level, whole subtrees, scans of sorted columns."""
