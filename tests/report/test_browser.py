"""In a real browser: nothing on the console, and no sideways scrolling on a phone."""

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
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking"
    " --disable-component-update --disable-sync --allow-file-access-from-files"
    " --hide-scrollbars --enable-logging=stderr --dump-dom"
).split()
# A page as wide as a phone, which reports how wide its content is.
PHONE = """<!DOCTYPE html>
<iframe id="page" src="report.html" style="width:360px; height:800px; border:0"></iframe>
<p id="found"></p><script>page.onload = () => {
  const root = page.contentDocument.documentElement;
  const wide = [...page.contentDocument.querySelectorAll("main *")]
    .filter(each => !each.closest(".scroll") && each.getBoundingClientRect().right > 360);
  found.textContent = `width ${root.scrollWidth}, ${wide.length} beyond`;
}</script>"""


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
def test_on_a_phone(folder, tmp_path):
    write_for_folder(folder, audit=audit())
    (folder / "phone.html").write_text(PHONE)
    command = [BROWSER, *OPTIONS, f"--user-data-dir={tmp_path / 'profile'}"]
    shown = subprocess.run(
        [*command, (folder / "phone.html").as_uri()], capture_output=True, text=True, timeout=60
    )
    assert "CONSOLE" not in shown.stderr
    found = re.search(r'<p id="found">(.*?)</p>', shown.stdout)
    assert found is not None, shown.stderr
    assert found[1] == "width 360, 0 beyond"
