"""A headless Chromium that looks at pages of ours. As a program it takes the picture for docs/:
`python -m tests.page.browser REPORT/report.html docs/report.png`, or installs Chromium: `--install`."""

from __future__ import annotations

import base64
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from dispatcher.errors import ConfigurationError
from dispatcher.nodes.installed import as_root, install

#: Debian's names of the browser and of the program that Selenium talks to.
PACKAGES = ["chromium", "chromium-driver"]
#: Nothing but the page: no look-ups of its own, no updates; root has no sandbox.
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-default-apps", "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb",
)  # fmt: skip


def ensure_chromium() -> None:
    """Installs it where it is missing and that is permitted. Raises ConfigurationError, which says what to
    install, where it isn't."""
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        install(PACKAGES, as_root(), lambda line: print(line, file=sys.stderr))


class Browser:
    """One window."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, page: Path, *, scheme: str = "light", width: int = 1_200, height: int = 900) -> None:
        """Show a page as a device of that width with that colour scheme does."""
        self.visit(page.absolute().as_uri(), scheme=scheme, width=width, height=height)

    def visit(self, url: str, *, scheme: str = "light", width: int = 1_200, height: int = 900) -> None:
        """The same of a page at an address."""
        self._tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._tell(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=width < 600,
        )  # fmt: skip
        self.driver.get(url)

    def ask(self, script: str, *values: Any) -> Any:
        """What a function's body returns, run beside the page: its own policy permits no scripts."""
        return self.driver.execute_script(script, *values)

    def console(self) -> list[dict[str, Any]]:
        """What the page has made the browser complain of since the last look."""
        return list(self.driver.get_log("browser"))

    def requests(self) -> list[str]:
        """Addresses that were asked for since the last look."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [
            event["params"]["request"]["url"]
            for event in events if event["method"] == "Network.requestWillBeSent"
        ]  # fmt: skip

    def picture(self, height: int | None = None) -> bytes:
        """A PNG of the page from its top, all of it or so high."""
        size = self._tell("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        made = self._tell("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(made["data"])

    def _tell(self, command: str, **parameters: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, parameters)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Chromium with a profile of its own, until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="dispatcher-browser-") as profile:
        options = ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            driver.get("about:blank")
            browser = Browser(driver)
            browser.requests()  # those of the first tab, which is the browser's own
            yield browser
        finally:
            driver.quit()


def main(page: str, picture: str = "") -> None:
    ensure_chromium()
    if page == "--install":
        return
    with open_browser() as browser:
        browser.open(Path(page))
        Path(picture).write_bytes(browser.picture(1_500))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ConfigurationError as error:
        sys.exit(f"{error} (only the tests of pages need it)")
