"""In a real browser: nothing on the console, and no sideways scrolling on a phone or a screen."""

import re
import shutil
import subprocess

import pytest

from quietgrad.report import write_for_folder

from .helpers import audit

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run"
    " --disable-background-networking --disable-component-update --disable-sync"
    " --allow-file-access-from-files --hide-scrollbars --enable-logging=stderr --dump-dom"
).split()
WIDTHS = (360, 1100)
SECONDS = 600  # only a browser that hangs takes as long
# The report as wide as a phone and as a screen. The load event waits for the frames.
FRAMES = """<!DOCTYPE html>
%s
<p id="found"></p><script>onload = () => {
  found.textContent = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument;
    const wide = [...page.querySelectorAll("main *")].filter(
      each => !each.closest(".scroll") && each.getBoundingClientRect().right > frame.clientWidth);
    return `width ${page.documentElement.scrollWidth}, ${wide.length} beyond`;
  }).join("; ");
}</script>"""
FRAME = '<iframe src="report.html" style="width:%dpx; height:800px; border:0"></iframe>'


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
def test_on_a_phone_and_on_a_screen(folder, tmp_path):
    write_for_folder(folder, audit=audit())
    page = folder / "frames.html"
    page.write_text(FRAMES % "\n".join(FRAME % width for width in WIDTHS))
    command = [BROWSER, *OPTIONS, f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert "CONSOLE" not in shown.stderr
    found = re.search(r'<p id="found">(.*?)</p>', shown.stdout)
    assert found is not None, shown.stderr
    assert found[1] == "; ".join(f"width {width}, 0 beyond" for width in WIDTHS)
