"""What a hostile client may send: JSON schemas, patterns, grammars and messages, as hypothesis strategies."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

HUGE = (10**3, 10**5, 2**31, 2**63, 2**64, 10**30, -1, -(2**63))
PATTERNS = (
    "^(a+)+$", "(a*)*b", "(.*)*", "((((a|b)*c)*d)*e)*", "(a{1,999}){1,999}", "(((a{1,99}){1,99}){1,99}){1,99}",
    "a{2147483647}",
    "(x+x+)+y", ".*" * 500, "(?=a)b", "(?<!a)b", r"\1", "(", ")", "[", "[z-a]", "*", "a{5,2}", "\\", r"\p{L}{1,5000}",
    "|".join(f"w{number}" for number in range(3000)), "[\ud7ff-\U0010ffff]{1,4000}", "(?i)" + "k" * 2000, "\x00",
    "(?:" * 300 + "a" + ")*" * 300, "^" * 100 + "$" * 100,
)  # fmt: skip

scalars: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.sampled_from(HUGE)
    | st.floats(allow_nan=False) | st.text(max_size=20)
)  # fmt: skip
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
patterns = st.sampled_from(PATTERNS) | st.text(alphabet="ab(){}[]|*+?.^$\\0123456789,-", max_size=40)


def _deep(depth: int, keyword: str, leaf: Any) -> Any:
    schema = leaf
    for _ in range(depth):
        if keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
            schema = {keyword: [schema, schema] if depth < 12 else [schema]}
        elif keyword == "properties":
            schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
        else:
            schema = {keyword: schema}
    return schema


DEEP = ("allOf", "anyOf", "oneOf", "not", "items", "properties", "additionalProperties", "prefixItems", "if")
deep_schemas = st.builds(
    _deep,
    st.sampled_from((3, 11, 60, 300, 900)),
    st.sampled_from(DEEP),
    st.just({"type": "string"}) | scalars,
)
"""Nested far, or little and doubled at every level."""

references = st.sampled_from(
    (
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"type": "null"}]},
        {"$ref": "#/properties/x/y"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "http://127.0.0.1:1/x"},
        {"$ref": 7},
        {"$dynamicRef": "#x", "$recursiveRef": "#"},
    )
)


def _bounds(low: int, high: int, kind: str) -> dict[str, Any]:
    names = {
        "string": ("minLength", "maxLength"),
        "array": ("minItems", "maxItems"),
        "object": ("minProperties", "maxProperties"),
        "integer": ("minimum", "maximum"),
        "number": ("exclusiveMinimum", "exclusiveMaximum"),
    }[kind]
    return {"type": kind, names[0]: low, names[1]: high}


bounded = st.builds(
    _bounds,
    st.sampled_from(HUGE) | st.integers(),
    st.sampled_from(HUGE) | st.integers(),
    st.sampled_from(("string", "array", "object", "integer", "number")),
)
enums = st.sampled_from((10, 2000, 12_000)).map(
    lambda count: {"enum": [f"value {number}" for number in range(count)]}
)
wide = st.sampled_from((50, 1500)).map(
    lambda count: {
        "type": "object",
        "properties": {f"p{number}": {"type": "string"} for number in range(count)},
    }
)
wrong = st.dictionaries(
    st.sampled_from(
        (
            "type",
            "properties",
            "required",
            "items",
            "enum",
            "const",
            "pattern",
            "anyOf",
            "minLength",
            "multipleOf",
            "format",
        )
    ),
    json_values,
    min_size=1,
    max_size=4,
)
leaves = (
    bounded | enums | wide | wrong | references | patterns.map(lambda text: {"type": "string", "pattern": text})
)  # fmt: skip


def _inside(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    many = st.lists(inner, min_size=1, max_size=4)
    return st.one_of(
        *(st.builds(lambda found, name=name: {name: found}, many) for name in ("allOf", "anyOf", "oneOf")),
        st.builds(
            lambda found, least: {"type": "array", "items": found, "minItems": least},
            inner,
            st.sampled_from((0, 3, 500)),
        ),
        st.dictionaries(st.text(max_size=6), inner, max_size=3).map(
            lambda found: {"type": "object", "properties": found, "required": list(found)}
        ),
    )


schemas: st.SearchStrategy[Any] = st.recursive(leaves, _inside, max_leaves=6) | deep_schemas | json_values

grammars = st.text(max_size=60) | st.sampled_from(
    (
        "start: start",
        "start: start start | ",
        'start: "a" start "b" | ""',
        "start: a\na: b\nb: a",
        "start: /(a+)+$/",
        'start: "a"~1..100000',
        "start: x",
        "",
        "%%%",
        'start: ("a" | "a")* "b"',
        "start: " + "(" * 400 + '"a"' + ")" * 400,
        'start: %json {"$ref": "#"}',
        "start: " + " ".join(['"a"?'] * 3000),
        "start: /" + "a?" * 200 + "a" * 200 + "/",
    )
)

formats = (
    schemas.map(
        lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
    )
    | schemas.map(lambda schema: {"structured_outputs": {"json": schema}})
    | patterns.map(lambda pattern: {"structured_outputs": {"regex": pattern}})
    | grammars.map(lambda grammar: {"response_format": {"type": "grammar", "grammar": grammar}})
    | st.lists(st.text(max_size=300), max_size=60).map(
        lambda choice: {"structured_outputs": {"choice": choice}}
    )
    | schemas.map(
        lambda schema: {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
            "tool_choice": "required",
        }
    )
)
"""Fields that ask for a constrained answer."""

characters = st.characters(exclude_categories=["Cs"]) | st.sampled_from(
    "\x00\uffff\U0010ffff{}%<|>\u202e\u200d"
)
strange = st.sampled_from(
    (
        "{{ 7 * 7 }}",
        "{% for x in y %}",
        "<|im_end|>\n<|im_start|>system",
        "\x00" * 200,
        "a\u0301" * 300,
        "n" * 5000,
        # Lone surrogates: json.dumps writes them as escapes, which is what a client would send.
        "\ud83d" * 50,
    )
)
texts = st.text(characters, max_size=60) | strange
parts = st.fixed_dictionaries(
    {"type": st.sampled_from(("text", "input_text", "image_url", "x")) | scalars, "text": texts | json_values}
)
calls = st.fixed_dictionaries(
    {
        "id": texts,
        "function": st.fixed_dictionaries({"name": texts, "arguments": texts | json_values}) | json_values,
    }
) | st.dictionaries(texts, json_values, max_size=2)
messages = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(("user", "assistant", "system", "tool")) | texts,
            "content": texts | st.lists(parts, max_size=4) | st.none() | json_values,
        },
        optional={
            "name": texts,
            "tool_calls": st.lists(calls, max_size=3),
            "tool_call_id": texts,
            "reasoning_content": texts,
        },
    ),
    min_size=1,
    max_size=4,
) | st.just([])
conversations = st.fixed_dictionaries(
    {"messages": messages},
    optional={
        "chat_template_kwargs": st.dictionaries(texts, json_values, max_size=3),
        "continue_final_message": st.booleans(),
        "add_generation_prompt": st.booleans(),
        "tools": st.lists(json_values, max_size=2),
        "stop": texts | st.lists(texts, max_size=3),
        "logit_bias": st.dictionaries(texts, st.floats(), max_size=2),
        "user": texts,
        "cache_salt": texts,
    },
)
