"""The page in a real browser: shows a job live, harmless and usable whatever the text in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, Route, expect, sync_playwright

from api.server import service_in_thread
from store import Settings, Store, open_store
from tests.api import jobs_in_store
from tests.api.jobs_in_store import candidate, claim, finish, judge, propose, submit, verdict

pytestmark = pytest.mark.slow

# Generous, because the machine may be busy; a page that works is never waited for this long.
expect.set_options(timeout=20_000)

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
HOSTILE = '</pre><script>window.owned=1</script><img src=x onerror="window.owned=1">&lt;b&gt;'


@dataclass
class Seen:
    """A browser's page on a running service, and what went wrong in it."""

    page: Page
    url: str
    store: Store
    errors: list[str] = field(default_factory=list)

    def open(self, address: str = "") -> None:
        """Open an address of the page's own."""
        self.page.goto(f"{self.url}/{address}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless browser."""
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)


@pytest.fixture
def seen(browser: Browser, tmp_path: Path) -> Iterator[Seen]:
    """The page on a service of its own; fails when the browser complained of anything."""
    settings = Settings(home=tmp_path / "home", port=0)
    with (
        service_in_thread(settings, work=False) as url,
        open_store(settings) as store,
        browser.new_page(viewport={"width": 1280, "height": 1400}) as page,
    ):
        seen = Seen(page, url, store)
        page.on("pageerror", lambda error: seen.errors.append(str(error)))
        page.on(
            "console",
            lambda message: seen.errors.append(message.text) if message.type == "error" else None,
        )
        yield seen
    assert seen.errors == []


def test_without_jobs_it_says_how_to_submit_one(seen: Seen) -> None:
    seen.open()
    expect(seen.page.locator("#jobs-note")).to_contain_text("pkforge job submit")
    expect(seen.page.locator("#connection")).to_have_text("service answers")


def test_a_job_is_followed_live(seen: Seen) -> None:
    page, store = seen.page, seen.store
    job_id = submit(store)
    seen.open()
    page.locator("#jobs a").first.click()
    expect(page.locator("#job-title")).to_have_text("gemm_reducescatter on sim:h200x4")
    expect(page.locator("#connection")).to_have_text("live")
    expect(page.locator("#job-best")).to_have_text("No correct attempt yet.")

    claimed = claim(store, job_id)
    first, second = candidate(), candidate(stages=4)
    number = propose(store, job_id, first)
    expect(page.locator("#attempts tr")).to_have_count(1)
    expect(page.locator("#attempts")).to_contain_text("pending")
    judge(store, job_id, number, verdict(first, 900.0))
    for text in ("1.111\u00d7 as fast", "900 \u00b5s against 1000 \u00b5s (both simulated)"):
        expect(page.locator("#job-best")).to_contain_text(text)
    judge(store, job_id, propose(store, job_id, second, parent=1), verdict(second, 500.0))
    expect(page.locator("#job-best")).to_contain_text("2.000\u00d7")
    expect(page.locator("#chart circle")).to_have_count(2)
    expect(page.locator("#chart .baseline")).to_have_count(1)
    expect(page.locator("#chart .roofline")).to_have_count(1)
    row = page.locator("#attempts tr").nth(1)
    for text in ("1", "correct", "stages=4", "500 \u00b5s", "simulated", "2.000\u00d7", "nvlink"):
        expect(row).to_contain_text(text)
    finish(store, claimed)
    expect(page.locator("#connection")).to_have_text("the job has ended")
    expect(page.locator("#job-state")).to_contain_text("succeeded (exhausted)")
    with page.expect_download() as download:
        page.locator("#download").click()
    assert download.value.suggested_filename.endswith(".zip")
    assert Path(download.value.path()).read_bytes() == b"a zip"


def test_an_attempt_has_an_address_of_its_own(seen: Seen) -> None:
    page = seen.page
    job_id = jobs_in_store.succeeded(seen.store)
    seen.open(f"#/jobs/{job_id}/attempts/2")
    expect(page.locator("#attempt-title")).to_have_text("Attempt 2: correct")
    expect(page.locator("#attempt-diff")).to_contain_text("knob stages: 3 \u2192 4")
    expect(page.locator("#attempt-source")).to_contain_text("#include <pk/pk.h>")
    expect(page.locator("#attempt-timings")).to_contain_text("500 \u00b5s simulated")
    expect(page.locator("#attempt-why")).to_contain_text("nvlink is the busiest")
    expect(page.locator("#attempt-why")).to_contain_text("busy nvlink_out 90 %, tensor 40 %")
    page.get_by_role("button", name="Show attempt 3").click()
    expect(page.locator("#attempt-title")).to_have_text("Attempt 3: build_failed")
    expect(page.locator("#attempt-diff")).to_contain_text("+oops")
    assert page.url.endswith(f"#/jobs/{job_id}/attempts/3")
    page.go_back()
    expect(page.locator("#attempt-title")).to_have_text("Attempt 2: correct")


def test_it_works_from_the_keyboard(seen: Seen) -> None:
    page = seen.page
    job_id = jobs_in_store.succeeded(seen.store)
    seen.open(f"#/jobs/{job_id}")
    expect(page.locator("#attempts tr")).to_have_count(3)
    page.get_by_role("button", name="Show attempt 1").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#attempt-title")).to_have_text("Attempt 2: correct")
    assert page.evaluate("document.activeElement.dataset.number") == "2"
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Show attempt 2")).to_have_attribute(
        "aria-pressed", "true"
    )


def test_a_job_can_be_cancelled(seen: Seen) -> None:
    page = seen.page
    job_id = submit(seen.store)
    claimed = claim(seen.store, job_id)
    seen.open(f"#/jobs/{job_id}")
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.get_by_role("button", name="Cancelling")).to_be_disabled()
    expect(page.locator("#job-state")).to_contain_text("cancelling")
    finish(seen.store, claimed, None, state="cancelled", stop_reason="cancelled", best_number=None)
    expect(page.locator("#job-state")).to_contain_text("cancelled")
    expect(page.locator("#cancel")).to_be_hidden()
    expect(page.locator("#download")).to_be_hidden()


def test_hostile_text_stays_text(seen: Seen) -> None:
    page, store = seen.page, seen.store
    job_id = submit(store)
    claim(store, job_id)
    what = candidate(jobs_in_store.SOURCE + f"// {HOSTILE}\n")
    number = propose(store, job_id, what, hypothesis=HOSTILE)
    given = verdict(what, None, "crashed", evidence={"summary": HOSTILE, "log": HOSTILE})
    judge(store, job_id, number, given)
    seen.open(f"#/jobs/{job_id}/attempts/1")
    for part in ("#attempt-hypothesis", "#attempt-summary", "#attempt-source"):
        expect(page.locator(part)).to_contain_text(HOSTILE)
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("window.owned") is None


def test_inline_scripts_would_not_run(seen: Seen) -> None:
    """The positive control of the page's policy: an inline script that is put there is refused."""
    seen.open()
    seen.page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.owned = 1';"
        " document.head.append(s); }"
    )
    assert seen.page.evaluate("window.owned") is None
    assert any("Content Security Policy" in error for error in seen.errors)
    seen.errors.clear()


def test_a_lost_service_is_said_and_found_again(seen: Seen) -> None:
    page = seen.page
    seen.open(f"#/jobs/{submit(seen.store)}")
    expect(page.locator("#connection")).to_have_text("live")

    def refuse(route: Route, _: Request) -> None:
        route.abort()

    page.route("**/v1/**", refuse)
    page.reload()
    expect(page.locator("#connection")).to_have_text("service does not answer")
    page.unroute("**/v1/**")
    page.reload()
    expect(page.locator("#connection")).to_have_text("live")
    seen.errors.clear()


def test_an_unknown_job_is_said(seen: Seen) -> None:
    seen.open("#/jobs/job_1")
    expect(seen.page.locator("#message")).to_contain_text("There is no job 'job_1'.")
    seen.errors.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(seen: Seen, scheme: str) -> None:
    page = seen.page
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    seen.open(f"#/jobs/{jobs_in_store.succeeded(seen.store)}/attempts/2")
    expect(page.locator("#attempt-title")).to_be_visible()
    for selector in (
        "body",
        "#connection",
        "#job-best",
        "td .status-good",
        "td .status-bad",
        "pre",
    ):
        assert contrast(page, selector) >= 4.5, selector
    page.emulate_media(color_scheme="light")


def contrast(page: Page, selector: str) -> float:
    """The WCAG contrast of an element's text on what lies behind it."""
    colours: list[list[float]] = page.evaluate(
        """(selector) => {
          const element = document.querySelector(selector);
          const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
          let behind = element;
          while (numbers(getComputedStyle(behind).backgroundColor)[3] === 0) {
            behind = behind.parentElement;
          }
          return [
            numbers(getComputedStyle(element).color),
            numbers(getComputedStyle(behind).backgroundColor),
          ];
        }""",
        selector,
    )
    bright, dark = sorted((luminance(colour) for colour in colours), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def luminance(colour: list[float]) -> float:
    """WCAG relative luminance of an RGB colour, 0 to 255 each."""
    parts = [value / 255 for value in colour[:3]]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
