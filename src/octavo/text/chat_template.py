"""Renders a model's chat template. Templates come with model files, so they are programs by strangers.

They run in jinja2's immutable sandbox (no attribute that leads out of it, no change to the messages), and under a
budget: every loop turn, call, range element and character built is charged, so that a hostile template ends in an error
within seconds instead of hanging the server or filling its memory. A thread with a time limit cannot do this (Python
cannot stop one), and a process for each render would cost more than the render.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.core.errors import RequestError

MAX_TEMPLATE_CHARS = 1 << 20
MAX_CHARGE = 1 << 24
"""Loop turns, calls, range elements and characters of one render, together; a chat of 64,000 tokens takes a tenth."""
TURN_CHARGE = 16
"""For one turn of a loop; its time is that of building some sixteen characters or more."""
MAX_SECONDS = 5.0
"""Of one render: the backstop for slow operations that each charge little."""
MAX_NUMBER = 1 << 20
"""Largest number a template may pass to a function or filter (a width, a repetition)."""
_WIDE_FORMAT = re.compile(r"\d{6,}|\*")
_TEXT_FILTERS = (
    *(
        "capitalize",
        "e",
        "escape",
        "forceescape",
        "indent",
        "join",
        "lower",
        "replace",
        "string",
        "striptags",
    ),
    *("title", "tojson", "trim", "truncate", "upper", "urlencode", "wordcount"),
)
"""Filters that print their operands."""
_UNUSED_FILTERS = ("center", "format", "pprint", "random", "urlize", "wordwrap", "filesizeformat", "xmlattr")


class _Budget:
    """What one render may still spend."""

    def __init__(self) -> None:
        self._left = MAX_CHARGE
        self._deadline = time.monotonic() + MAX_SECONDS

    def charge(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0 or time.monotonic() > self._deadline:
            raise _TooMuchError("the chat template does more work than any chat needs; it was stopped")


class _TooMuchError(Exception):
    """The budget is spent. Not a TemplateError: no construct of the language catches it."""


_budget: ContextVar[_Budget | None] = ContextVar("octavo_chat_template_budget", default=None)


def _charge(amount: int) -> None:
    if (budget := _budget.get()) is not None:  # None while jinja2 folds constants
        budget.charge(amount)


def _charged(value: Any) -> Any:
    """``value``, after its size was charged: characters, or elements at every depth.

    Elements are counted as often as they can be reached: [x, x] in a loop builds 2 ** turns of them in no memory, and
    comparing or printing them would never end.
    """
    if isinstance(value, (str, bytes)):
        _charge(len(value))
    else:
        _charge_elements(value, text=False)
    return value


def _charge_elements(value: Any, *, text: bool) -> None:
    """Charge every element reached from ``value``, and with ``text`` the characters of each (it will be printed)."""
    stack, unpaid = [value], 0
    while stack:
        top = stack.pop()
        unpaid += 1 + (len(top) if text and isinstance(top, str) else 0)
        if unpaid > 4096:  # paying for each element alone would take longer than visiting it
            _charge(unpaid)
            unpaid = 0
        if isinstance(top, (list, tuple)):
            stack.extend(top)
        elif isinstance(top, Mapping):
            stack.extend(top)
            stack.extend(top.values())
    _charge(unpaid)


def _printed(value: Any) -> Any:
    """``value``, which is about to become text: ``_charged``, but by its characters."""
    _charge_elements(value, text=True)
    return value


def _concatenated(values: list[Any]) -> str:
    """What ``~`` does, charged."""
    return "".join(str(_printed(value)) for value in values)


def _check_numbers(values: Iterable[Any]) -> None:
    if any(isinstance(value, int) and abs(value) > MAX_NUMBER for value in values):
        raise _TooMuchError(f"the chat template uses a number above {MAX_NUMBER:,}; it was stopped")


class _Metered:
    """An iterable whose turns are charged. Keeps ``len`` so that ``loop.length`` and ``loop.last`` stay lazy."""

    def __init__(self, items: Iterable[Any], literal_chars: int) -> None:
        self._items = items
        self._cost = TURN_CHARGE + literal_chars

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]  # TypeError tells jinja2 that there is no length

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            _charge(self._cost)
            yield item


class _Generation(Extension):
    """``{% generation %}``, with which training templates mark the answer, changes nothing here."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's interface)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox under a budget."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
            finalize=_printed,
        )
        self.filters["tojson"] = _tojson
        for name in _UNUSED_FILTERS:
            del self.filters[name]
        self.filters = {name: _metered_filter(name, function) for name, function in self.filters.items()}
        self.filters["_octavo_metered"] = _Metered
        self.filters["_octavo_charged"] = _charged
        self.filters["_octavo_concatenated"] = _concatenated
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["range"] = _range

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The parsed template, with every loop, literal and ``~`` wrapped in a filter that charges."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            literal_chars = sum(len(data.data) for data in loop.find_all(nodes.TemplateData))
            loop.iter = nodes.Filter(
                loop.iter, "_octavo_metered", [nodes.Const(literal_chars)], [], None, None
            )
        for node in list(tree.find_all(nodes.Node)):
            for field, value in node.iter_fields():
                if isinstance(value, nodes.Node):
                    setattr(node, field, _metered_node(value))
                elif isinstance(value, list):
                    value[:] = [_metered_node(one) for one in value]
        tree.set_environment(self)
        return tree

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        _check_numbers((*args, *kwargs.values()))
        method = getattr(obj, "__wrapped__", obj)  # jinja2 wraps str.format
        if isinstance(owner := getattr(method, "__self__", None), str) and method.__name__.startswith(
            "format"
        ):
            _check_format(owner)
            _printed([*args, *kwargs.values()])
        # A macro's literal text is at most the template's; its loops charge for themselves.
        _charge(MAX_TEMPLATE_CHARS >> 10 if isinstance(obj, Macro) else 1)
        return _charged(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            sizes = [len(side) if isinstance(side, (str, list, tuple)) else 1 for side in (left, right)]
            _check_numbers((left, right))
            _charge(max(sizes) * max(1, *(side for side in (left, right) if isinstance(side, int)), 0))
        elif operator == "**":
            _check_numbers((left, right))
            _charge(MAX_CHARGE if isinstance(right, int) and abs(right) > 64 else 1)
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
            _printed(right)
        return _charged(super().call_binop(context, operator, left, right))


def _check_format(pattern: str) -> None:
    if _WIDE_FORMAT.search(pattern):
        raise _TooMuchError("the chat template formats to a huge width; it was stopped")


def _metered_node(node: Any) -> Any:
    """``node``, wrapped in a filter that charges where it builds text or a container."""
    if isinstance(node, nodes.Concat):
        return nodes.Filter(nodes.List(node.nodes), "_octavo_concatenated", [], [], None, None)
    if isinstance(node, (nodes.List, nodes.Dict)) or (isinstance(node, nodes.Tuple) and node.ctx == "load"):
        return nodes.Filter(node, "_octavo_charged", [], [], None, None)
    return node


def _metered_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, charged for its result. ``wraps`` also copies the mark by which jinja2 passes its context."""

    @functools.wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        _check_numbers((*args, *kwargs.values()))
        if name in _TEXT_FILTERS:
            _printed(
                [one for one in (*args, *kwargs.values()) if isinstance(one, (str, list, tuple, Mapping))]
            )
        return _charged(function(*args, **kwargs))

    return metered


def _range(*args: int) -> range:
    result = range(*args)
    _charge(len(result))
    return result


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers renders it, and unlike jinja2's own: nothing is escaped for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class ChatTemplate:
    """One model's template, compiled at first use (a plain prompt needs none)."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        self.source = source
        self._special = {"bos_token": bos_token, "eos_token": eos_token}

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **kwargs: Any
    ) -> str:
        """The conversation as the model expects it. ``kwargs`` (``tools``, ...) reach the template.

        Raises RequestError where the template does not compile, refuses the messages or does not end.
        """
        values = {"tools": None, "documents": None, **self._special, **kwargs}
        token = _budget.set(_Budget())
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **values
            )
        except _TooMuchError as error:
            raise RequestError(str(error), param="messages") from error
        except RecursionError as error:
            raise RequestError("the chat template calls itself without end", param="messages") from error
        except Exception as error:  # whatever the template does wrong with these messages, it is not our bug
            raise RequestError(
                f"the chat template refuses these messages: {error}", param="messages"
            ) from error
        finally:
            _budget.reset(token)

    @functools.cached_property
    def _template(self) -> jinja2.Template:
        if len(self.source) > MAX_TEMPLATE_CHARS:
            raise RequestError(
                f"the chat template has {len(self.source):,} characters; {MAX_TEMPLATE_CHARS:,} are allowed",
                param="messages",
            )
        # jinja2 keeps compiled templates by source in the environment's own cache only for loaders; we keep ours here.
        return _ENVIRONMENT.from_string(self.source)


_ENVIRONMENT = _Environment()
