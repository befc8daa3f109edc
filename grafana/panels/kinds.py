"""The kinds of panels, and the queries that several of them share."""

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
RATE = "$__rate_interval"


def rate(metric, select=""):
    return f"rate({metric}{braces(select)}[{RATE}])"


def total(metric, by="", select=""):
    """What a counter gains a second, added up."""
    return f"sum{grouped(by)} ({rate(metric, select)})"


def quantile(q, histogram, by="", select=""):
    labels = ", ".join(filter(None, ["le", by]))
    return f"histogram_quantile({q}, sum by ({labels}) ({rate(histogram + '_bucket', select)}))"


def mean(histogram, by="", select=""):
    return f"{total(histogram + '_sum', by, select)} / {total(histogram + '_count', by, select)}"


def cells(histogram, select=""):
    """How many fell into each bucket."""
    return f"sum by (le) (increase({histogram}_bucket{braces(select)}[{RATE}]))"


def braces(select):
    return "{" + select + "}" if select else ""


def grouped(by):
    return f" by ({by})" if by else ""


def lines(
    title,
    about,
    *queries,
    unit="short",
    size=(12, 8),
    stack=None,
    colors=None,
    limit=None,
    most=None,
    least=0,
    dashed=None,
):
    """Curves over time. `queries` are (PromQL, legend); `stack` is None, "normal" or "percent"; `limit` a dashed line;
    curves whose name begins with `dashed` are dashed."""
    custom = {
        "drawStyle": "line",
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "fillOpacity": 70 if stack else 8,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": stack or "none", "group": "A"},
    }
    defaults = {"unit": unit, "custom": custom, "color": {"mode": "palette-classic"}}
    if least is not None:
        defaults["min"] = least
    if most is not None:
        defaults["max"] = most
    if limit is not None:
        custom["thresholdsStyle"] = {"mode": "dashed"}
        defaults["thresholds"] = steps(("green", None), ("red", limit))
    legend = {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []}
    overrides = [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
        }
        for name, color in (colors or {}).items()
    ]
    if dashed:
        style = {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [6, 6]}}
        overrides.append({"matcher": {"id": "byRegexp", "options": f"/^{dashed}/"}, "properties": [style]})
    return {
        **panel("timeseries", title, about, queries, size),
        "fieldConfig": {"defaults": defaults, "overrides": overrides},
        "options": {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}},
    }


def figure(title, about, query, unit="short", size=(4, 4), colors=(("green", None),), decimals=None):
    """One number, with its curve. `colors` are (colour, from this value on)."""
    defaults = {"unit": unit, "color": {"mode": "thresholds"}, "thresholds": steps(*colors), "noValue": "–"}
    if decimals is not None:
        defaults["decimals"] = decimals
    return {
        **panel("stat", title, about, [(query, "")], size),
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "colorMode": "value",
            "graphMode": "area",
            "justifyMode": "auto",
            "orientation": "auto",
            "textMode": "value",
            "percentChangeColorMode": "standard",
            "showPercentChange": False,
            "wideLayout": True,
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        },
    }


def heatmap(title, about, query, unit="s", size=(12, 8), scheme="Oranges"):
    """A column an interval, a cell a bucket: the darker, the more."""
    made = panel("heatmap", title, about, [(query, "{{le}}")], size)
    made["targets"][0]["format"] = "heatmap"
    return {
        **made,
        "fieldConfig": {"defaults": {"custom": {"scaleDistribution": {"type": "linear"}}}, "overrides": []},
        "options": {
            "calculate": False,
            "cellGap": 1,
            "color": {"mode": "scheme", "scheme": scheme, "fill": "dark-orange", "exponent": 0.5, "steps": 64, "reverse": False},
            "filterValues": {"le": 1e-9},
            "legend": {"show": True},
            "rowsFrame": {"layout": "auto"},
            "showValue": "never",
            "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": False},
            "yAxis": {"axisPlacement": "left", "reverse": False, "unit": unit},
        },
    }


def heading(title):
    return {"type": "row", "title": title, "collapsed": False, "panels": [], "size": (24, 1)}


def panel(kind, title, about, queries, size):
    return {
        "type": kind,
        "title": title,
        "description": about,
        "datasource": SOURCE,
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": query, "legendFormat": legend, "range": True}
            for number, (query, legend) in enumerate(queries)
        ],
        "size": size,
    }


def steps(*colors):
    return {"mode": "absolute", "steps": [{"color": color, "value": value} for color, value in colors]}
