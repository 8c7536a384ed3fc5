"""Tables of every kind, brought to one form: dense or compressed rows of float32, with what belongs to their rows."""
