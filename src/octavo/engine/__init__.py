"""The loop that ties scheduler and executor together."""
