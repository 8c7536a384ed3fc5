"""Networks of the rewriting benchmark as plain torch.nn modules, one file per family."""
