"""For mkdocs: pages that lie outside docs/ are part of the site, and links between them lead there."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
# Files of the repository that the site has no page for: the link is left out, its text stays.
NOT_ON_THE_SITE = r"\[([^\]]*)\]\((?:\.\./)*(?:benchmarks|examples|recipes|tests|src|SECURITY|CITATION|\.github)[^)]*\)"


def on_files(files: Files, config: Any) -> Files:
    """Add them."""
    for path, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Links to files of the repository become links to pages of the site, or plain text where there is none."""
    up = "../" * page.file.src_uri.count("/")
    for path, name in OUTSIDE.items():
        markdown = re.sub(rf"\]\((?:\.\./)*{re.escape(path)}", f"]({up}{name}", markdown)
    if page.file.src_uri in OUTSIDE.values():
        markdown = markdown.replace("](docs/", "](")
        markdown = re.sub(r"\]\(decisions/?\)", "](decisions/README.md)", markdown)
    return re.sub(NOT_ON_THE_SITE, r"\1", markdown)
