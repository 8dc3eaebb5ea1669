#!/usr/bin/env python3
"""python_docs.py - prints docs/python.md: every public class and function of the Python package, from its docstring.

Fails if one has no docstring, or if a name of __all__ is defined nowhere.
"""
import ast
import os
import sys
import textwrap

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python", "penstock")
PAGES = [
    (
        "penstock",
        [
            "__init__",
            "context",
            "step",
            "tensor",
            "_memory",
            "group",
            "requests",
            "table",
            "sampler",
            "watch",
            "errors",
        ],
    ),
    ("penstock.torch", sorted(f"torch/{f[:-3]}" for f in os.listdir(os.path.join(ROOT, "torch")) if f.endswith(".py"))),
]


def body_of(module):
    with open(os.path.join(ROOT, module + ".py")) as file:
        return ast.parse(file.read())


def public_names(tree):
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return []


class Unquoted(ast.NodeTransformer):
    """Names of classes that stand in quotes, because they come later."""

    def visit_Constant(self, node):
        return ast.parse(node.value, mode="eval").body if isinstance(node.value, str) else node


def signature(node):
    """`def` as it is written, without `self` and the body."""
    copy = ast.parse(ast.unparse(node)).body[0]
    copy.body, copy.decorator_list = [ast.Pass()], []
    for argument in copy.args.args + copy.args.kwonlyargs:
        argument.annotation = Unquoted().visit(argument.annotation) if argument.annotation else None
    copy.returns = Unquoted().visit(copy.returns) if copy.returns else None
    line = ast.unparse(copy).removesuffix(":\n    pass").removeprefix("def ")
    line = line.replace("(self, ", "(").replace("(self)", "()")
    return "\n".join(textwrap.wrap(line, 116, subsequent_indent="    "))


def print_docs(node, where):
    text = ast.get_docstring(node)
    if text is None:
        sys.exit(f"python_docs.py: {where} has no docstring")
    print(f"\n```text\n{text}\n```")


def decorators(node):
    return {getattr(d, "id", getattr(d, "attr", "")) for d in node.decorator_list}


def print_class(node, prefix):
    init = next((m for m in node.body if isinstance(m, ast.FunctionDef) and m.name == "__init__"), None)
    bases = [ast.unparse(b) for b in node.bases if ast.unparse(b) not in ("Exception", "Generic[T]")]
    print(f"\n### `{prefix}.{node.name}`" + (f" ({', '.join(bases)})" if bases else ""))
    if node.name in ("Sampler",) and init is not None:
        print(f"\n```python\n{signature(init).replace('__init__', node.name).removesuffix(' -> None')}\n```")
    print_docs(node, node.name)
    if any(base.startswith(("dist.", "c10d.")) for base in bases):
        return  # its calls are torch's
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
            words = decorators(member)
            if "property" in words and ast.get_docstring(member) is None:
                continue  # its name and the class's docstring say it
            shown = member.name if "property" in words else signature(member)
            print(f"\n#### `{node.name}.{member.name}`\n\n```python\n{shown}\n```")
            print_docs(member, f"{node.name}.{member.name}")


def main():
    print("# The Python interface\n")
    print("<!-- Written by scripts/docs.sh from the docstrings of python/penstock; edit those instead. -->\n")
    print("Everything means what [the C interface](api.md) says of it. [guides/python.md](guides/python.md) begins.")
    for prefix, modules in PAGES:
        trees = [(m, body_of(m)) for m in modules]
        names = public_names(next(t for m, t in trees if m.endswith("__init__")))
        renamed, found = {"KeyValueStore": "Store"}, set()
        print(f"\n## {prefix}")
        for module, tree in trees:
            for node in tree.body:
                if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                    continue
                name = node.name
                shown = next((n for n in names if renamed.get(n) == name), name) if module == "context" else name
                if shown not in names or shown in found:
                    continue
                found.add(shown)
                if isinstance(node, ast.ClassDef):
                    node.name = shown
                    print_class(node, prefix)
                else:
                    print(f"\n### `{prefix}.{shown}`\n\n```python\n{signature(node)}\n```")
                    print_docs(node, name)
        constants = {"ALL", "ANY", "EVERY", "FORWARD", "BACKWARD"}
        missing = set(names) - found - constants
        if missing:
            sys.exit(f"python_docs.py: defined nowhere: {', '.join(sorted(missing))}")


main()
