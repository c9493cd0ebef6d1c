"""Hooks of mkdocs: pages of the repository outside docs/, and notebooks, become pages of the site."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any

from griffe import Extension
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parents[1]
# file of the repository → page or picture of the site
ON_SITE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "AGENTS.md": "agents.md",
    "optim/README.md": "optim/index.md",
    "optim/RESULTS.md": "optim/results.md",
    "optim/HEAVYBALL.md": "optim/heavyball.md",
    "benchmark/problems/RESULTS.md": "benchmark/problems.md",
    **{
        str(path.relative_to(ROOT)): f"recipes/{path.parent.name}/index.md" for path in ROOT.glob("recipes/*/README.md")
    },
    **{
        str(path.relative_to(ROOT)): f"recipes/{path.parent.name}/results.md"
        for path in ROOT.glob("recipes/*/RESULTS.md")
    },
    **{str(path.relative_to(ROOT)): str(path.relative_to(ROOT)) for path in ROOT.glob("recipes/*/pictures/*")},
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]*)(#[^)\s]*)?\)")
SIZED_PICTURE = re.compile(r"<img src=\"([^\"]+)\" width=\"(\d+)\" alt=\"([^\"]*)\">")


class DeclaredOptions(Extension):
    """Documents transforms of `optim` that declare options as the dataclasses that they become."""

    def on_class_node(self, *, node: Any, agent: Any, **kwargs: Any) -> None:
        """Decorate a class with such options, whose constructor is then shown."""
        attributes = [child for child in getattr(node, "body", ()) if isinstance(child, ast.AnnAssign)]
        declares = any(ast.unparse(child.annotation).startswith("Annotated[") for child in attributes)
        if isinstance(node, ast.ClassDef) and declares and agent.current.path.startswith("optim"):
            node.decorator_list.append(ast.parse("dataclasses.dataclass", mode="eval").body)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/, and the notebooks with their outputs."""
    for path, page in ON_SITE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        # the key begins the names of pictures, which notebooks would share
        key = {"unique_key": Path(notebook.src_uri).stem}
        body, resources = MarkdownExporter().from_filename(str(notebook.abs_src_path), resources=key)
        files.remove(notebook)
        files.append(File.generated(config, notebook.src_uri.replace(".ipynb", ".md"), content=body))
        for name, picture in resources["outputs"].items():
            files.append(File.generated(config, f"tutorials/{name}", content=picture))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at pages of the site; a link to another file of the repository becomes its text."""
    source = {there: here for here, there in ON_SITE.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def on_site(link: re.Match[str]) -> str:
        picture, text, target, anchor = link.groups()
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        there = ON_SITE.get(path) or path.removeprefix("docs/").replace(".ipynb", ".md")
        if files.get_file_from_path(there) is None:
            if not (ROOT / path).exists():
                return link[0]  # mkdocs warns of it
            return text
        relative = os.path.relpath(there, os.path.dirname(page.file.src_uri))
        return f"{picture}[{text}]({relative}{anchor or ''})"

    return LINK.sub(on_site, SIZED_PICTURE.sub(r"![\3](\1){ width=\2 }", markdown))
