"""Reports of what was compiled and how long it takes: a profile against the roofline, a trace, and one page of HTML."""
