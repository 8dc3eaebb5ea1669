"""metrics.py - asks a running Prometheus whether every rule and every query of the dashboard has an answer.

  metrics.py wait URL TARGETS SECONDS    until TARGETS targets are up
  metrics.py ask URL DASHBOARD           all rules, and all queries of the dashboard; 1 if one has no answer
  metrics.py firing URL ALERT SECONDS    until that alert is pending or firing
  metrics.py strict < PAGE               reads an OpenMetrics page with the reference parser

A healthy job raises no alert, so the query for each alert is the part before its threshold.
"""
import json
import re
import sys
import time
import urllib.parse
import urllib.request


def get(url, path, **query):
    with urllib.request.urlopen(f"{url}{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
        return json.load(answer)["data"]


def value(url, expression):
    return get(url, "/api/v1/query", query=expression)["result"]


def until(seconds, done):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if done():
                return True
        except (OSError, KeyError, ValueError):
            pass
        time.sleep(0.3)
    return False


def wait(url, targets, seconds):
    ok = until(float(seconds), lambda: len(value(url, 'up{job="penstock"} == 1')) >= int(targets))
    if not ok:
        for target in get(url, "/api/v1/targets")["activeTargets"]:
            print(target["scrapeUrl"], target["health"], target["lastError"])
    return ok


def without_threshold(expression):
    parts = re.split(r"\s+and\s+(?:on\s*\([^)]*\)\s*)?", expression)
    return [re.sub(r"\s*(==|!=|>=|<=|>|<)\s*[-+0-9.e]+$", "", part) for part in parts]


def expressions(url, dashboard):
    for group in get(url, "/api/v1/rules")["groups"]:
        for rule in group["rules"]:
            if rule.get("lastError"):
                yield rule["name"], "error: " + rule["lastError"]
            parts = without_threshold(rule["query"]) if rule["type"] == "alerting" else [rule["query"]]
            for part in parts:
                yield rule["name"], part
    for panel in json.load(open(dashboard))["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "15s")


def ask(url, dashboard):
    asked, bad = 0, 0
    for name, expression in expressions(url, dashboard):
        asked += 1
        try:
            answer = value(url, expression)
        except OSError as error:
            answer = []
            print(error)
        numbers = [sample["value"][1] for sample in answer]
        if not numbers or all(number == "NaN" for number in numbers):
            print(f"no answer: {name}: {expression}: {numbers}")
            bad += 1
    print(f"{asked} expressions asked, {asked - bad} answered")
    return bad == 0 and asked > 50


def firing(url, alert, seconds):
    return until(float(seconds), lambda: value(url, f'ALERTS{{alertname="{alert}"}}'))


def strict():
    from prometheus_client.openmetrics.parser import text_string_to_metric_families
    page = sys.stdin.read()
    families = list(text_string_to_metric_families(page))
    declared = page.count("\n# TYPE ")
    print(len(families), "families of", declared)
    return len(families) == declared > 10


sys.exit(0 if {"wait": wait, "ask": ask, "firing": firing, "strict": strict}[sys.argv[1]](*sys.argv[2:]) else 1)
