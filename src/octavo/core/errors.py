"""The error tree. Three kinds of failure, told apart by how they are reported:

* does not fit *now*: no error, the callee answers ``None`` and is asked again later;
* our bug: ``assert``;
* the user's mistake: one of the classes below.

    OctavoError                the user's mistake, always with a remedy
    ├── ConfigError            a flag or setting has a wrong value, or two contradict each other
    ├── ModelError             a model file is missing, damaged, or of a family we do not run
    └── RequestError           one request is wrong; the others go on
        └── ContextLengthError the request can never fit the model or the pool
"""

from __future__ import annotations


class OctavoError(Exception):
    """A user's mistake.

    ``message`` names the number that was wrong; ``param`` names the flag or field that changes it
    (for example ``"--block-size"`` or ``"temperature"``), or is None where nothing the user can set would.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    @property
    def line(self) -> str:
        """The message, with the flag where it does not name it."""
        named = self.param is None or self.param in self.message
        return self.message if named else f"{self.message} (see {self.param})"


class ConfigError(OctavoError):
    """A flag or setting has a wrong value, or two settings contradict each other."""


class ModelError(OctavoError):
    """A model is missing, damaged or not supported."""


class RequestError(OctavoError):
    """One request is wrong. Every other request goes on."""


class ContextLengthError(RequestError):
    """The request can never fit: its tokens exceed the model's context or the pool's slots."""
