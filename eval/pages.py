"""Self-contained HTML pages from the templates beside this file."""

import base64
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from arc_data.atomic import write_atomically


def write_page(template: str, path: Path, **values: Any) -> None:
    """Fill a template; a value that it lacks is an error, and text is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    page = environment.get_template(template).render(**values)
    write_atomically(path, page.encode("utf-8", errors="backslashreplace"))


def data_uri(content: bytes, kind: str) -> str:
    """Content as an address that a page can hold, of a media type such as ``image/png``."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
