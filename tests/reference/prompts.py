"""The prompts whose greedy answers are compared with transformers': chat, code, other scripts, emoji, long ones."""

from __future__ import annotations

_STORY = (
    "The lighthouse keeper wrote one line in the log every evening: the weather, the ships, the state of the lamp. "
    "On the first night of {month} the wind came from the {wind}, and {count} ships passed before midnight. "
)
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October")
_WINDS = ("north", "east", "south", "west")


def _log(entries: int) -> str:
    """A text of about 52 tokens an entry."""
    return "".join(
        _STORY.format(month=_MONTHS[i % 10], wind=_WINDS[i % 4], count=3 + 7 * i % 11) for i in range(entries)
    )


CODE = """def binary_search(items, wanted):
    low, high = 0, len(items) - 1
    while low <= high:
        middle = (low + high) // 2
        if items[middle] == wanted:
            return middle
        if items[middle] < wanted:
            low = middle + 1
        else:
            high = middle - 1
    return None
"""

PROMPTS: dict[str, list[dict[str, str]]] = {
    name: [{"role": "user", "content": content}]
    for name, content in {
        "capital": "What is the capital of France?",
        "colours": "Name three primary colours.",
        "sum": "What is 2 + 3? Answer with the number.",
        "sky": "Why is the sky blue? Explain it to a child.",
        "haiku": "Write a haiku about autumn leaves.",
        "recipe": "How do I boil an egg? Give me the steps.",
        "one_word": "Hi",
        "explain_code": "What does this function do?\n\n```python\n" + CODE + "```",
        "write_code": "Write a Python function that reverses a string.",
        "sql": "SELECT name, age FROM people WHERE age > 30 ORDER BY age DESC;\nWhat does this SQL query return?",
        "json": 'Turn this into a sentence: {"city": "Oslo", "temperature": -4.5, "unit": "C"}',
        "german": "Übersetze ins Englische: Der Fluss fließt durch die größte Straße.",
        "french": "Où se trouve la bibliothèque à côté de l'école ?",
        "chinese": "你好，请问北京在哪个国家？",
        "japanese": "日本の首都はどこですか？",
        "russian": "Как называется столица России?",
        "emoji": "What do these mean? 🙂🎉👩‍👩‍👧‍👦🇫🇷",
        "mathematics": "Let x ∈ ℝ with x² − 5x + 6 = 0. Which values can x have?",
        "whitespace": "  a   b    c\n\n\n\td  \n  Which letters are these?  ",
        "letter": "Write a short letter to a landlord about a broken heating. Be polite.",
        "log_600": _log(13) + "\nIn which month did the last entry fall?",
        "log_1000": _log(20) + "\nSummarise the log in two sentences.",
    }.items()
}
PROMPTS["system"] = [
    {"role": "system", "content": "You are a pirate. You answer in one short sentence."},
    {"role": "user", "content": "Where is the treasure?"},
]
PROMPTS["turns"] = [
    {"role": "user", "content": "My name is Ada and I like bridges."},
    {"role": "assistant", "content": "Nice to meet you, Ada. Bridges are wonderful."},
    {"role": "user", "content": "What is my name, and what do I like?"},
]
