"""The OpenAPI document as one page for a person: made here, without a script, and complete offline."""

import base64
import hashlib
import json
from html import escape
from typing import Any, Final

_STYLE: Final = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1b1f}
h1{font-size:1.6rem}h2{margin-top:2.5rem;border-bottom:1px solid #ccc}
details{margin:.4rem 0;border:1px solid #ddd;border-radius:6px;padding:.4rem .8rem}
summary{cursor:pointer}summary code{font-weight:600}
code,pre{font:14px/1.4 ui-monospace,monospace}pre{background:#f6f6f8;padding:.8rem;overflow:auto}
table{border-collapse:collapse;margin:.5rem 0}td,th{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0}
.m{display:inline-block;min-width:4.2rem;font-weight:700}.d{color:#555}
@media(prefers-color-scheme:dark){body{background:#17171a;color:#e4e4e8}pre{background:#232327}
details{border-color:#3a3a40}.d{color:#aaa}a{color:#8ab4ff}}
"""
POLICY: Final = (
    "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; style-src "
    f"'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"
)


def page(document: dict[str, Any]) -> str:
    """The whole page."""
    info = document["info"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width'>",
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style>",
        f"<h1>{escape(info['title'])} <span class=d>{escape(info['version'])}</span></h1>",
        f"<p>{escape(info.get('description', ''))}</p>",
        "<p>The same for a program: <a href='/openapi.json'>openapi.json</a>.</p>",
    ]
    tags: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = (operation.get("tags") or ["other"])[0]
            tags.setdefault(tag, []).append(_operation(method, path, operation))
    for tag, operations in tags.items():
        parts += [f"<h2>{escape(tag)}</h2>", *operations]
    parts.append("<h2>Messages</h2>")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts.append(
            f"<details id='{escape(name)}'><summary><code>{escape(name)}</code> "
            f"<span class=d>{escape(_line(schema.get('description', '')))}</span></summary>"
            f"{_schema(schema)}</details>"
        )
    parts.append("</html>")
    return "\n".join(parts)


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [
        f"<details><summary><span class=m>{escape(method.upper())}</span> "
        f"<code>{escape(path)}</code> <span class=d>{escape(operation.get('summary', ''))}</span>"
        "</summary>"
    ]
    if description := operation.get("description"):
        parts.append(f"<p>{escape(description)}</p>")
    if parameters := operation.get("parameters"):
        rows = "".join(
            f"<tr><td><code>{escape(one['name'])}</code><td>{escape(one['in'])}"
            f"<td>{escape(_line(one.get('description', '')))}"
            for one in parameters
        )
        parts.append(f"<table><tr><th>parameter<th>in<th>{rows}</table>")
    for kind, body in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<p>Body: <code>{escape(kind)}</code> {_link(body.get('schema', {}))}</p>")
        if "example" in body:
            parts.append(f"<pre>{escape(json.dumps(body['example'], indent=2))}</pre>")
    rows = ""
    for status, response in operation["responses"].items():
        content = ", ".join(
            f"<code>{escape(kind)}</code> {_link(body.get('schema', {}))}"
            for kind, body in response.get("content", {}).items()
        )
        rows += (
            f"<tr><td>{escape(status)}<td>{escape(response.get('description', ''))}<td>{content}"
        )
    parts.append(f"<table><tr><th>status<th><th>{rows}</table></details>")
    return "".join(parts)


def _schema(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return "<p>" + ", ".join(f"<code>{escape(str(one))}</code>" for one in schema["enum"])
    required = schema.get("required", ())
    rows = ""
    for name, field in schema.get("properties", {}).items():
        notes = [_line(field.get("description", ""))]
        notes += [
            f"{word} {json.dumps(field[word])}"
            for word in ("default", "minimum", "maximum", "maxLength")
            if field.get(word) is not None
        ]
        rows += (
            f"<tr><td><code>{escape(name)}</code>{'' if name in required else ' ?'}"
            f"<td>{_link(field)}<td class=d>{escape('; '.join(filter(None, notes)))}"
        )
    return f"<table>{rows}</table>" if rows else f"<p>{_link(schema)}</p>"


def _link(schema: dict[str, Any]) -> str:
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"<a href='#{escape(name)}'>{escape(name)}</a>"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(_link(one) for one in schema[several])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {_link(schema.get('items', {}))}"
    if "const" in schema:
        return f"<code>{escape(json.dumps(schema['const']))}</code>"
    return escape(f"{kind} ({schema['format']})" if "format" in schema else kind)


def _line(text: str) -> str:
    return text.split("\n\n", maxsplit=1)[0].replace("\n", " ")
