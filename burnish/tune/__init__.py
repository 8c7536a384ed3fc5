"""The learning tuner: which schedule of a kernel is fastest, from measurements and from models fitted on them."""
