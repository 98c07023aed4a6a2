"""The lab's controls: the article's at the start, checked with field and bound, one run for states that must agree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.core.errors import ConfigError
from octavo.dashboard.lab_settings import CONTROLS, POLICIES, LabSettings, described, settings_of
from octavo.simulation import article


def test_the_defaults_are_the_articles() -> None:
    settings = settings_of({})
    assert settings.pool_slots == article.POOL_SLOTS
    assert settings.spec.kv_bytes_per_token == article.BYTES_PER_TOKEN
    assert settings.run("reserved") == article.RUNS["contiguous_2048"]
    assert settings.run("paged") == article.RUNS["paged"]
    assert 1 - settings.kernel_penalty / 100 == article.KERNEL_FACTOR


def test_each_of_the_articles_runs_is_a_state_of_the_page() -> None:
    states = {
        "contiguous_16384": ("reserved", {"max_tokens": "16384"}),
        "contiguous_256": ("reserved", {"max_tokens": "256"}),
        "paged_block_256": ("paged", {"block_size": "256"}),
        "shared": ("paged", {"share": "true"}),
        "shared_block_256": ("paged", {"share": "true", "block_size": "256"}),
        "oracle_spread_100": ("oracle", {"spread": "100", "round_up": "false"}),
        "oracle_spread_0": ("oracle", {"spread": "0", "round_up": "false"}),
        "paged_spread_0": ("paged", {"spread": "0"}),
    }
    for name, (policy, values) in states.items():
        assert settings_of(values).run(policy) == article.RUNS[name], name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "field", "bound"),
    [
        ({"max_tokens": "16385"}, "max_tokens", "from 1 to 16384"),
        ({"max_tokens": 0}, "max_tokens", "from 1 to 16384"),
        ({"spread": "-1"}, "spread", "from 0 to 200"),
        ({"block_size": "3"}, "block_size", "1, 2, 4, 8"),
        ({"block_size": "512"}, "block_size", "256"),
        ({"seed": "4294967296"}, "seed", "4294967295"),
        ({"seed": "many"}, "seed", "a whole number"),
        ({"seed": "1.5"}, "seed", "a whole number"),
        ({"seed": True}, "seed", "a whole number"),
        ({"seed": [1]}, "seed", "a whole number"),
        ({"kernel_penalty": "91"}, "kernel_penalty", "from 0 to 90"),
        ({"round_up": "perhaps"}, "round_up", "true or false"),
        ({"allocator": "none"}, "allocator", "reserved, oracle, paged"),
        ({"compare": "buddy"}, "compare", "none"),
        ({"model": "gpt-5"}, "model", "qwen3-8b"),
        ({"pool_gib": "nan"}, "pool_gib", "a number"),
        ({"pool_gib": "1e400"}, "pool_gib", "a number"),
        ({"pool_gib": "0"}, "pool_gib", "from 0.1 to 1000"),
        ({"pool_gib": "1"}, "pool_gib", "at least 2.25"),
        ({"pool_gib": "900"}, "pool_gib", "2,000,000"),
        ({"max_token": "1"}, "max_token", "max_tokens"),
    ],
)
def test_a_wrong_value_is_named_with_its_bound(given: dict[str, object], field: str, bound: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_of(given)
    assert caught.value.param == field
    assert field in caught.value.message
    assert bound in caught.value.message


def test_the_smallest_pool_that_is_named_suffices() -> None:
    assert settings_of({"pool_gib": "2.25"}).pool_slots >= settings_of({}).largest_request


def test_texts_of_a_url_and_json_values_mean_the_same() -> None:
    settings = LabSettings(max_tokens=300, share=True, pool_gib=20.5, compare="none")
    assert settings_of(settings.as_dict()) == settings
    assert settings_of({name: str(value) for name, value in settings.as_dict().items()}) == settings
    assert settings.shown == ("reserved",)


def test_what_a_policy_does_not_look_at_does_not_run_it_again() -> None:
    settings = settings_of({})
    other = replace(settings, max_tokens=16_384, block_size=64, share=True, kernel_penalty=0, compare="none")
    assert other.run("oracle") == settings.run("oracle")
    assert replace(settings, max_tokens=16_384, round_up=False).run("paged") == settings.run("paged")
    assert other.run("reserved") != settings.run("reserved")
    assert replace(settings, max_tokens=2_047).run("paged") != settings.run("paged")


def test_declaring_more_than_any_answer_changes_nothing_for_paged_and_oracle() -> None:
    """Why the run above may be left out: the real thing, with and without it."""
    for policy in ("paged", "oracle"):
        short = article.ArticleSettings(allocator=policy, steps=400, warmup_steps=100)  # type: ignore[arg-type]
        assert article.run(replace(short, max_tokens=16_384)) == article.run(short)


def test_the_page_is_told_every_bound() -> None:
    told = described()
    assert [control["name"] for control in told["controls"]] == list(LabSettings().as_dict())
    for control in CONTROLS:
        assert control.label and control.help
        assert control.choices or (control.least is not None and control.most is not None and control.step)
    assert set(POLICIES) == {"reserved", "oracle", "paged"}
