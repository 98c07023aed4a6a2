"""Chat templates: what they may use, and that a hostile one ends in an error."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pytest

from octavo.core.errors import RequestError
from octavo.text import chat_template
from octavo.text.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "Hé <b>"}, {"role": "assistant", "content": "ok"}]


def rendered(source: str, **kwargs: Any) -> str:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(MESSAGES, **kwargs)


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>Hé <b></s>"),
        (
            "{% for m in messages %}\n  {% if not loop.last %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}",
            "user\n",
        ),
        ("{{ messages[0]|tojson }}", '{"role": "user", "content": "Hé <b>"}'),
        (
            "{{ {'b': 1, 'a': [1, 2]}|tojson(indent=1, sort_keys=true) }}",
            '{\n "a": [\n  1,\n  2\n ],\n "b": 1\n}',
        ),
        ("{% if tools is none %}no tools{% endif %}", "no tools"),
        ("{{ missing }}{{ add_generation_prompt }}", "True"),
        ("{% for m in messages %}{% if loop.index0 %}{% break %}{% endif %}{{ m.role }}{% endfor %}", "user"),
        ("{% generation %}{{ messages[1].content }}{% endgeneration %}!", "ok!"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "2",
        ),
        (
            "{% for m in messages[::-1] %}{{ loop.index ~ m.role ~ loop.length }}{% endfor %}",
            "1assistant22user2",
        ),
        ("{% for m in messages if m.role == 'user' %}{{ loop.last }}{% else %}none{% endfor %}", "True"),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f('a') + f(2) }}", "[a][2]"),
        ("{% for k, v in messages[1].items() %}{{ k }}={{ v }};{% endfor %}", "role=assistant;content=ok;"),
        ("{{ messages|map(attribute='role')|join(',')|upper }}", "USER,ASSISTANT"),
        ("{{ ' x '.strip() * 3 }}{{ '%s-%02d' % ('a', 7) }}{{ '{:>3}'.format(1) }}", "xxxa-07  1"),
    ],
)
def test_what_templates_use(source: str, wanted: str) -> None:
    assert rendered(source) == wanted


def test_further_arguments_reach_the_template() -> None:
    source = "{{ enable_thinking }} {{ tools[0].name }} {{ add_generation_prompt }}"
    assert (
        rendered(source, enable_thinking=False, tools=[{"name": "f"}], add_generation_prompt=False)
        == "False f False"
    )


def test_the_date() -> None:
    assert rendered("{{ strftime_now('%Y') }}") in {str(datetime.now().year), str(datetime.now().year - 1)}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for x in %}", "Expected an expression"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[0].update({'a': 1}) }}", "unsafe"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe|undefined"),
        ("{{ 'x' + 1 }}", "concatenate"),
        ("{{ messages[5].content }}", "no element 5"),
        ("{{ 1 / 0 }}", "division"),
    ],
)
def test_refusals_say_why(source: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        rendered(source)


def repeated(action: str, start: str = "'ab'") -> str:
    return f"{{% set ns = namespace(x={start}) %}}{{% for i in range(100) %}}{action}{{% endfor %}}{{{{ ns.x }}}}"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% if messages == a %}{% endif %}" * 4 + "{% endfor %}" * 4,
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        repeated("{% set ns.x = ns.x ~ ns.x %}"),
        repeated("{% set ns.x = ns.x + ns.x %}"),
        repeated("{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
        repeated("{% set ns.x = ns.x|replace('a', 'aaaaaaaa') %}"),
        repeated("{% set ns.x = ns.x.replace('a', 'aaaaaaaa') %}"),
        repeated("{% set ns.x = [ns.x, ns.x] %}"),
        repeated("{% set ns.x = {'a': ns.x, 'b': ns.x} %}"),
        repeated("{% set ns.x = (ns.x, ns.x) %}"),
        repeated("{% set ns.x = dict(a=ns.x, b=ns.x) %}"),
        repeated("{% set ns.x = ns.x + ns.x %}", "[1]"),
        repeated("{% set ns.x = ns.x * ns.x %}", "3"),
        "{{ 'a' * 10**9 }}",
        "{{ 'aaaaaaaa' * 1000000 * 1000000 }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ 'a'.ljust(999999999) }}",
        "{{ 'a'|indent(999999999, true) }}",
        "{{ range(999999999)|list }}",
    ],
)
def test_a_hostile_template_ends(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr(chat_template, "MAX_CHARGE", 1 << 18)
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 2.0)
    start = time.monotonic()
    with pytest.raises(RequestError, match=r"it was stopped|without end|Range too big|too big"):
        rendered(source)
    assert time.monotonic() - start < 10


def test_a_long_chat_is_no_hostile_one() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('r') }}"
        "{% endif %}{{ '<|im_start|>' + m.role + '\\n' + m.content|trim + '<|im_end|>\\n' }}{% endfor %}"
    )
    messages = [{"role": ("user", "assistant")[i % 2], "content": "word " * 400} for i in range(400)]
    text = ChatTemplate(source).render(messages)
    assert text.count("<|im_start|>") == 400
    assert len(text) > 800_000


def test_a_huge_template_is_refused() -> None:
    with pytest.raises(RequestError, match="2,000,000 characters"):
        ChatTemplate("a" * 2_000_000).render([])
