"""Write src/vitrail/model/config_keywords.py: the fields of `ViTConfig` as typed keywords, with their docstrings.

    python docs/keywords_of_create.py

Type checkers and editors show the keywords of a function only from a class that is written out.
"""

from __future__ import annotations

import ast
from pathlib import Path

MODEL = Path(__file__).parents[1] / "src" / "vitrail" / "model"
PAGE = MODEL / "config_keywords.py"
OTHER_TYPES = dict.fromkeys(("image_size", "patch"), "int | tuple[int, int]")
"""What a keyword takes beside the type of the field: one number for a square."""
HEAD = '''"""The fields of `ViTConfig` as typed keywords of `vitrail.create`, written by docs/keywords_of_create.py."""

from __future__ import annotations

from typing import TypedDict

from .config import {names}


class ViTKeywords(TypedDict, total=False):
    """Fields of `ViTConfig`; those that are not given are those of the named model."""
'''


def main() -> None:
    """Write the file anew."""
    PAGE.write_text(source(), encoding="utf-8")
    print(f"wrote {PAGE.name}")


def source() -> str:
    """The content of the file, from the source of `ViTConfig`."""
    text = (MODEL / "config.py").read_text(encoding="utf-8")
    (config,) = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == "ViTConfig")
    rows, known = text.splitlines(), {"int", "float", "bool", "str", "tuple", "None"}
    lines, names = [], set()
    for field, docs in zip(config.body, config.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            name = field.target.id
            kind = OTHER_TYPES.get(name, ast.unparse(field.annotation))
            names |= {node.id for node in ast.walk(ast.parse(kind)) if isinstance(node, ast.Name)} - known
            lines += [f"    {name}: {kind}", *rows[docs.lineno - 1 : docs.end_lineno]]
    listed = ", ".join(sorted(names, key=str.lower))
    if len(listed) > 90:
        listed = "(\n" + "".join(f"    {name},\n" for name in sorted(names)) + ")"
    return HEAD.format(names=listed) + "\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
