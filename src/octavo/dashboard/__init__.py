"""The page: what the pool looks like now (frames), how it travels (feed), and the files that draw it (static)."""
