"""The offline API, and the composition that it shares with the command line."""
