#!/usr/bin/env python3
"""python_declarations.py - prints python/penstock/_c.py, made from include/penstock.h as clang reads it:
scripts/python_declarations.py > python/penstock/_c.py
"""
import json
import keyword
import os
import re
import subprocess
import textwrap

HEADER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "include", "penstock.h")
CLANG = ["clang", "-std=c99", "-x", "c", HEADER]
SCALARS = {
    "void": "None",
    "int": "c_int",
    "char": "c_char",
    "double": "c_double",
    "float": "c_float",
    "size_t": "c_size_t",
    "int32_t": "c_int32",
    "uint32_t": "c_uint32",
    "int64_t": "c_int64",
    "uint64_t": "c_uint64",
}


def read_header():
    tree = subprocess.run(
        CLANG[:1] + ["-fsyntax-only", "-Xclang", "-ast-dump=json"] + CLANG[1:], check=True, capture_output=True
    )
    macros = subprocess.run(CLANG[:1] + ["-E", "-dM"] + CLANG[1:], check=True, capture_output=True, text=True).stdout
    return json.loads(tree.stdout)["inner"], macros


class Types:
    """What the header has declared so far, and how ctypes says it."""

    def __init__(self):
        self.opaque, self.structs, self.enums, self.functions = set(), set(), set(), set()

    def of(self, text):
        """The ctypes expression of a C type, as clang writes it."""
        text = re.sub(r"\b(const|restrict|struct|enum)\b", "", text).strip()
        array = re.fullmatch(r"(.*?)\s*\[(\d+)\]", text)
        if array:
            return f"{self.of(array[1])} * {array[2]}"
        function = re.fullmatch(r"(.*?)\s*\(\*\s*\)\((.*)\)", text)
        if function:
            return self.prototype(function[1], function[2])
        if text.endswith("*"):
            return self.pointer(text[:-1].strip())
        if text in SCALARS:
            return SCALARS[text]
        if text in self.enums:
            return "c_int"
        if text in self.structs or text in self.functions:
            return text
        raise SystemExit(f"python_declarations.py: type '{text}' is not known")

    def pointer(self, to):
        if to == "void" or to in self.opaque:
            return "c_void_p"
        return "c_char_p" if to == "char" else f"POINTER({self.of(to)})"

    def prototype(self, result, arguments):
        """A function pointer.  No argument of ours has a function as its own argument, so a comma separates."""
        return f"CFUNCTYPE({', '.join([self.of(result)] + [self.of(a) for a in arguments.split(',') if a != 'void'])})"


PYTHON_TYPES = {"c_double": "float", "c_float": "float", "c_char_p": "Optional[bytes]", "c_void_p": "Optional[int]"}


def annotation(ctype):
    if ctype.startswith("c_char * "):
        return "bytes"
    if "(" in ctype or " * " in ctype or ctype.startswith("pen_"):
        return "Any"
    return PYTHON_TYPES.get(ctype, "int")


def print_struct(name, record, types):
    fields = [(f["name"], types.of(f["type"]["qualType"])) for f in record["inner"] if f["kind"] == "FieldDecl"]
    types.structs.add(name)
    print(f"\n\nclass {name}(Structure):")
    for field, ctype in fields:
        if not keyword.iskeyword(field):
            print(f"    {field}: {annotation(ctype)}")
    print("    _fields_ = [")
    for field, ctype in fields:
        print(f"        (\"{field}\", {ctype}),")
    print("    ]")


def print_enum(name, enum):
    print(f"\n# {name}")
    value = -1
    for constant in enum["inner"]:
        if constant["kind"] == "EnumConstantDecl":
            given = [i for i in constant.get("inner", []) if "value" in i]
            value = int(given[0]["value"]) if given else value + 1
            print(f"{constant['name']} = {value}")


def line(begin, rest):
    """One line, or two where it would be longer than 120 characters."""
    if len(begin + rest) <= 120:
        return begin + rest
    return begin + "\n        " + "\n        ".join(textwrap.wrap(rest, 108))


def main():
    nodes, macros = read_header()
    ours = [n for n in nodes if n.get("name", "").startswith("pen_") or n["kind"] in ("RecordDecl", "EnumDecl")]
    types, bodies, functions = Types(), {}, []
    numbers = dict(re.findall(r"^#define (PEN_\w+) \(?(-?\d+)u?\)?$", macros, re.M))
    print('"""_c.py - the declarations of penstock.h, for ctypes.')
    print("\nWritten by scripts/python_declarations.py from include/penstock.h; edit the header instead.\n\"\"\"")
    print(
        "from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t,"
    )
    print("                    c_uint32, c_uint64, c_void_p)")
    print("from typing import Any, Dict, List, Optional, Tuple\n")
    print('VERSION = "' + ".".join(numbers[f"PEN_VERSION_{part}"] for part in ("MAJOR", "MINOR", "PATCH")) + '"')
    for name, value in sorted(numbers.items()):
        print(f"{name} = {value}")
    for node in ours:
        if node["kind"] in ("RecordDecl", "EnumDecl"):
            bodies[node["id"]] = node
        elif node["kind"] == "TypedefDecl":
            tag = node["inner"][0].get("ownedTagDecl")
            name = node["name"]
            if not tag:
                types.functions.add(name)
                kind = re.fullmatch(r"(.*?)\s*\(\*\s*\)\((.*)\)", node["type"]["qualType"])
                print(f"\n{name} = {types.prototype(kind[1], kind[2])}")
            elif tag["kind"] == "EnumDecl":
                types.enums.add(name)
                print_enum(name, bodies[tag["id"]])
            elif bodies[tag["id"]].get("completeDefinition"):
                print_struct(name, bodies[tag["id"]], types)
            else:
                types.opaque.add(name)
        elif node["kind"] == "FunctionDecl" and node["name"] != "pen_plugin":
            result = re.match(r"(.*?)\s*\(", node["type"]["qualType"])[1]
            arguments = [types.of(p["type"]["qualType"]) for p in node.get("inner", []) if p["kind"] == "ParmVarDecl"]
            functions.append(line(f"    \"{node['name']}\": ({types.of(result)}, [", f"{', '.join(arguments)}]),"))
    print("\n# name: result, arguments")
    print("FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {")
    print("\n".join(functions))
    print("}")


main()
