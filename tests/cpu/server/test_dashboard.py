"""The dashboard and the documentation speak of metrics that exist, and of all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from server_process import ServerProcess

ROOT = Path(__file__).parents[3]


def families(server: ServerProcess) -> set[str]:
    """Names as a dashboard queries them; of a histogram, without its suffixes."""
    kinds = dict(re.findall(r"^# TYPE octavo:(\w+) (\w+)$", server.http.get("/metrics").text, re.MULTILINE))
    assert set(kinds.values()) == {"gauge", "counter", "histogram"}
    return set(kinds)


def test_every_query_of_the_dashboard_finds_its_metric(server: ServerProcess) -> None:
    dashboard = json.loads((ROOT / "grafana" / "octavo.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) > 20
    found = families(server)
    for query in queries:
        names = re.findall(r"octavo:(\w+)", query)
        assert names, query
        for name in names:
            assert name.removesuffix("_bucket") in found, query
            assert name.endswith("_bucket") == ("histogram_quantile" in query), query


def test_every_metric_is_documented_and_no_other(server: ServerProcess) -> None:
    text = (ROOT / "docs" / "server.md").read_text()
    documented = set(re.findall(r"`octavo:(\w+)(?:\{\w+\})?`", text))
    assert documented == families(server)
