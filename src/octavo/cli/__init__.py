"""The command line: the only reader of flags and environment, and the place where user errors become exit codes."""
