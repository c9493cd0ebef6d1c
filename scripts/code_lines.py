"""Count lines of code: without blank lines, docstrings and comments.

python scripts/code_lines.py [FOLDER …]
"""

import ast
import sys
import tokenize
from pathlib import Path

NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
FOLDERS = ("asr", "optim", "werdict", "recipes", "scripts", "tests")


def code_lines(path: Path) -> int:
    """Return how many lines of a file hold code."""
    with tokenize.open(path) as file:
        text = file.read()
    lines: set[int] = set()
    for token in tokenize.generate_tokens(iter(text.splitlines(keepends=True)).__next__):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            lines.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))  # type: ignore[operator]
    return len(lines)


def main(folders: list[str]) -> None:
    """Print a line per folder."""
    if {"-h", "--help"} & set(folders):
        sys.exit(__doc__)
    for folder in folders or FOLDERS:
        # links into other folders, such as asr/recipes, are not counted twice
        files = [
            path for path in sorted(Path(folder).rglob("*.py")) if path.resolve().is_relative_to(Path(folder).resolve())
        ]
        print(f"{folder}: {sum(map(code_lines, files)):,} lines of code in {len(files)} files")


if __name__ == "__main__":
    main(sys.argv[1:])
