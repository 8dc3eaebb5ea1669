#!/usr/bin/env python3
"""How many functions and files a way through the code passes:  scripts/ways.py [--list] [WAY ...]

A way has legs, each from one function to another.  A leg passes every function that its first one calls, perhaps
through others, and that calls its last one, perhaps through others: functions that only answer a question are not on
it.  One leg ends and the next begins where a function pointer is called, or a task, an event or a message is left for
another thread.  What a way goes without is named beside it.

The calls are read from the text of the sources, which the pinned clang-format has formatted.

Ends with the totals of the product: its functions, its lines, and its files of C under 60 lines.  --list also prints
the functions of each way.
"""
import collections
import os
import pathlib
import re
import subprocess
import sys

FOLDERS = ("common", "proto", "membership", "scheduler", "server", "worker", "cli", "include")
SHORT_LINES = 60

# Each: what it goes without, then its legs.
WAYS = {
    # A gradient of host memory in ps-bsp, from the program to the connection of its server.
    "push": ({"io_report"},
             ("pen_ready", "api_ready.c:offer"),
             ("ps_ready", "ps_ready"),
             ("push_ready", "ps_client_send_later"),
             ("ps_client_flush", "ps_client_send.c:fill"),
             ("io_send", "transport_send")),
    # A message of a worker, a push or the decision that follows it, from a server's socket to the values.
    "update": ({"shard_receive_rows", "shard_receive_init", "shard_receive_inquiry", "take_update"},
               ("server_shard.c:receive", "optim_apply")),
    # A member that is gone, until SEAL is sent, and then the next view.
    "death": ({"core_announce"},
              ("core.c:follow_losses", "core_epoch_want"),
              ("core_epoch_advance", "core_send"),
              ("core_sealed", "core_sealed"),
              ("core_epoch_advance", "core_send_all")),
    # penstock run, until each process is started.
    "start": (set(), ("command_run", "process_start")),
}

KEYWORDS = {"if", "for", "while", "switch", "return", "sizeof", "defined", "_Alignof", "_Static_assert"}


class Function:
    def __init__(self, name, file, is_static, body):
        self.name, self.file, self.is_static, self.body = name, file, is_static, body

    def __str__(self):
        return f"{self.file}: {self.name}"


def sources():
    listed = subprocess.run(["git", "ls-files", *FOLDERS], check=True, capture_output=True, text=True).stdout
    return [f for f in listed.split() if f.endswith((".c", ".h", ".cu", ".cuh", ".inc"))]


def code_of(text):
    """The text without comments, and with empty strings; lines stay where they are."""
    def blank(match):
        token = match.group(0)
        return '""' if token[0] == '"' else "' '" if token[0] == "'" else re.sub(r"[^\n]", " ", token)

    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', blank, text, flags=re.S)


def functions_of(file, code):
    """Definitions: a line at the margin with NAME(, then "{" and "}" alone at the margin."""
    found = []
    for match in re.finditer(r"^(?![#}\s{])([^;{}=]*?)\b(\w+)(\([^;{}]*\)[^;{}=]*)\n\{\n(.*?)^\}", code, flags=re.S | re.M):
        if match.group(2) not in KEYWORDS and not match.group(1).startswith("typedef"):
            is_static = match.group(1).startswith("static") and not file.endswith((".h", ".inc"))
            found.append(Function(match.group(2), file, is_static, match.group(4)))
    for match in re.finditer(r"^static inline [^;{}=]*?\b(\w+)\([^;{}]*\) \{ ([^\n]*) \}$", code, flags=re.M):
        found.append(Function(match.group(1), file, False, match.group(2)))
    return found


class Graph:
    def __init__(self):
        self.lines, self.functions, self.short = 0, [], []
        codes = {}
        for file in sources():
            text = pathlib.Path(file).read_text()
            count = text.count("\n")
            self.lines += count
            if file.endswith(".c") and count < SHORT_LINES:
                self.short.append(file)
            codes[file] = code_of(text)
            self.functions += functions_of(file, codes[file])
        self.by_name = collections.defaultdict(list)
        for function in self.functions:
            self.by_name[function.name].append(function)
        self.calls = {f: self.calls_of(f) for f in self.functions}

    def calls_of(self, function):
        called = []
        for name in re.findall(r"(?<![\w.>])([a-z_]\w*)\(", function.body):
            here = [f for f in self.by_name[name] if f.file == function.file]
            called += here or [f for f in self.by_name[name] if not f.is_static]
        return [f for f in dict.fromkeys(called) if f is not function]

    def one(self, name):
        file, _, name = name.rpartition(":")
        found = [f for f in self.by_name.get(name, []) if not file or f.file.endswith(file)]
        if len(found) != 1:
            sys.exit(f"ways.py: {len(found)} functions are named {name}")
        return found[0]

    def reached(self, start, calls, without):
        seen, queue = {start: None}, collections.deque([start])
        while queue:
            for g in calls.get(queue.popleft(), ()):
                if g not in seen and g.name not in without:
                    seen[g] = None
                    queue.append(g)
        return seen

    def leg(self, start, goal, without):
        start, goal = self.one(start), self.one(goal)
        callers = collections.defaultdict(list)
        for f, called in self.calls.items():
            for g in called:
                callers[g].append(f)
        forth = self.reached(start, {f: called for f, called in self.calls.items() if f is not goal}, without)
        back = self.reached(goal, callers, without)
        if goal not in forth:
            sys.exit(f"ways.py: {start} does not lead to {goal}")
        return [f for f in forth if f in back]

    def way(self, legs, without):
        return list(dict.fromkeys(f for start, goal in legs for f in self.leg(start, goal, without)))


def main(words):
    os.chdir(pathlib.Path(__file__).resolve().parent.parent)
    lists = words[:1] == ["--list"]
    names = words[lists:] or list(WAYS)
    if not set(names) <= set(WAYS):
        sys.exit(f"ways.py: the ways are {', '.join(WAYS)}")
    graph = Graph()
    for name in names:
        without, *legs = WAYS[name]
        passed = graph.way(legs, without)
        print(f"{name:<9} {len(passed):>3} functions in {len({f.file for f in passed})} files")
        for f in passed if lists else []:
            print(f"    {f}")
    print(f"product  {len(graph.functions)} functions, {graph.lines} lines, {len(graph.short)} files of C "
          f"under {SHORT_LINES} lines")


main(sys.argv[1:])
