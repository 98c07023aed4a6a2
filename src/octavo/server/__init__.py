"""The server: OpenAI's HTTP API over one engine thread.

A request's way: decoded and checked (``protocol``), tokenized in a worker thread (``prepare``), handed to the thread
that owns the engine (``engine_thread``), and told token by token (``chat``, ``completions``, ``events``).
"""
