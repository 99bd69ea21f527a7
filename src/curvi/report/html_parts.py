"""Pieces of the page of a fit."""

from html import escape


def section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>\n{body}\n</section>"


def figure(picture: str, caption: str) -> str:
    words = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{picture}{words}</figure>"


def sentence(words: str) -> str:
    # q stays in lower case.
    first = words[:1] if words.startswith("q ") else words[:1].upper()
    return first + words[1:] + ("" if words.endswith(".") else ".")
