"""A real browser for pages: Debian's chromium, headless."""

import html
import json
import os
import re
import shutil
import subprocess

import pytest

# Runs beside the page, in an iframe of the width of a screen: what its reader would see, as numbers.
_PROBE = """
<!DOCTYPE html><html><body style="margin:0">
<iframe id="page" style="width:{width}px;height:800px;border:0" srcdoc="{page}"></iframe>
<pre id="found"></pre>
<script>
const frame = document.getElementById("page");
frame.onload = () => {{
  const view = frame.contentWindow, root = frame.contentDocument.documentElement;
  const inside = (e) => e.closest(".scroll");
  const out = [], small = [], cut = [];
  for (const e of root.querySelectorAll("body *")) {{
    const box = e.getBoundingClientRect();
    if (!inside(e) && box.width && (box.right > {width} + 0.5 || box.left < -0.5))
      out.push(e.tagName + ": " + e.textContent.slice(0, 40));
  }}
  for (const e of root.querySelectorAll("svg text")) {{
    const box = e.getBoundingClientRect(), area = e.closest("svg").getBoundingClientRect();
    const size = parseFloat(view.getComputedStyle(e).fontSize) * area.width / 360;
    if (size < 9.5) small.push(e.textContent + " " + size.toFixed(1));
    const sideways = box.right > area.right + 1 || box.left < area.left - 1;
    if (sideways || box.bottom > area.bottom + 1 || box.top < area.top - 1)
      cut.push(e.textContent);
  }}
  document.getElementById("found").textContent = JSON.stringify({{
    width: root.scrollWidth, height: root.scrollHeight, out, small, cut,
    text: root.innerText, headings: [...root.querySelectorAll("h1,h2")].map((e) => e.textContent),
    svgs: root.querySelectorAll("svg").length,
    outside: [...root.querySelectorAll("[src],link[href]")].map((e) => e.src || e.href)
      .filter((u) => !u.startsWith("data:")),
  }});
}};
</script></body></html>
"""


def find_browser() -> str:
    """The path of a browser; skips the test where there is none, unless CURVI_NEEDS_BROWSER says that there must be."""
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if (path := shutil.which(name)) is not None:
            return path
    if os.environ.get("CURVI_NEEDS_BROWSER"):
        pytest.fail("no chromium found, but CURVI_NEEDS_BROWSER is set: apt-get install chromium")
    pytest.skip("no chromium found, so the page is not looked at in a browser: apt-get install chromium")


def look(page: str, width: int, folder) -> dict:
    """What a browser makes of a page on a screen of this width; its console in "console"."""
    probe = folder / "probe.html"
    probe.write_text(_PROBE.format(width=width, page=html.escape(page, quote=True)), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr"]
    flags += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run(
        [find_browser(), *flags, probe.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert found and found[1], f"the page did not load: {done.stderr[-2000:]}"
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return {**json.loads(html.unescape(found[1])), "console": console}
