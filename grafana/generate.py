#!/usr/bin/env python3
"""Writes the dashboards of grafana/dashboards from the tables in grafana/panels.

    python3 grafana/generate.py           writes them
    python3 grafana/generate.py --check   says which are not as they would be written

What a dashboard shows stands in its file in panels/; here is only how Grafana wants it said.
"""

import json
import pathlib
import sys

sys.dont_write_bytecode = True
# Not there by itself under PYTHONSAFEPATH.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from panels import engine, health, where
from panels.kinds import SOURCE

OUT = pathlib.Path(__file__).parent / "dashboards"
BOARDS = {"where": where, "engine": engine, "health": health}
COLUMNS = 24


def board(of):
    """A dashboard as Grafana reads it."""
    return {
        "uid": of.UID,
        "title": of.TITLE,
        "description": of.ABOUT,
        "tags": ["queuescope"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [
            {
                "type": "dashboards",
                "tags": ["queuescope"],
                "title": "queuescope",
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
                "targetBlank": False,
                "icon": "external link",
                "tooltip": "",
                "url": "",
            }
        ],
        "templating": {"list": [source_variable()] + [variable(*each) for each in of.VARIABLES]},
        "panels": placed(of.PANELS),
    }


def source_variable():
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "current": {"text": "Prometheus", "value": "prometheus"},
        "hide": 0,
    }


def variable(name, label, metric, of, filters):
    query = f"label_values({metric}, {of})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "description": f"Filters: {filters}",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "refresh": 2,
        "sort": 1,
        "hide": 0,
    }


def placed(panels):
    """The panels in rows from left to right, with ids."""
    x = y = height = 0
    out = []
    for number, panel in enumerate(panels, 1):
        width, tall = panel.pop("size")
        if x + width > COLUMNS:
            x, y = 0, y + height
            height = 0
        out.append({"id": number, **panel, "gridPos": {"x": x, "y": y, "w": width, "h": tall}})
        x, height = x + width, max(height, tall)
    return out


def main():
    stale = []
    for name, of in BOARDS.items():
        text = json.dumps(board(of), indent=1) + "\n"
        path = OUT / f"queuescope-{name}.json"
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.name)
    if stale:
        sys.exit(f"not fresh: {', '.join(stale)}: run `python3 grafana/generate.py`")


if __name__ == "__main__":
    main()
