"""The page in a real browser: it draws every kind of file, follows its sliders, fits the window,
and asks nobody but its server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

KDA = "model.layers.0.self_attn"


class Page:
    """A page that fails its test on any error or request to elsewhere."""

    def __init__(self, browser: Any, url: str, width: int, scheme: str) -> None:
        self.url = url
        self.faults: list[str] = []
        self.page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        self.page.set_default_timeout(60000)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("console", self._heard)
        self.page.on("request", self._asked)

    def _heard(self, message: Any) -> None:
        if message.type == "error":
            self.faults.append(f"console: {message.text}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.faults.append(f"asked elsewhere: {request.url}")

    def open(self, address: str) -> Any:
        # Between two addresses that differ in their fragment only nothing would be loaded.
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}{address}")
        self.page.wait_for_selector("body[data-ready]")
        assert self.page.inner_text("#status") == ""
        self.settle()
        return self.page

    def settle(self) -> None:
        """Until two frames in a row find the same number of drawn things."""
        self.page.evaluate(
            """async () => {
              let last = -1;
              for (let i = 0; i < 200; ++i) {
                await new Promise((done) => setTimeout(done, 100));
                const now = document.querySelectorAll('svg *').length;
                if (now === last) return;
                last = now;
              }
            }"""
        )

    def shot(self, name: str) -> None:
        folder = os.environ.get("KDA_VIEW_SHOTS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=f"{folder}/{name}.png", full_page=True)

    def no_sideways_scroll(self) -> bool:
        return bool(
            self.page.evaluate(
                "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
            )
        )


OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Any, server: Any) -> Iterator[OpenPage]:
    pages: list[Page] = []

    def make(width: int = 1280, scheme: str = "light") -> Page:
        pages.append(Page(browser, server.url, width, scheme))
        return pages[-1]

    yield make
    for page in pages:
        page.page.close()
        assert page.faults == []


def plot_values(page: Any, title: str, field: str = "z") -> list[Any]:
    """Data of the plot in the panel of this title, as Plotly holds it."""
    return page.evaluate(
        """([title, field]) => {
          const panel = [...document.querySelectorAll('.panel')].find(
              (one) => one.querySelector('h3').textContent === title);
          return panel.querySelector('.plot').data.map((trace) => trace[field]);
        }""",
        [title, field],
    )


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (800, "dark")])
def test_every_view_draws_and_fits(open_page: OpenPage, width: int, scheme: str) -> None:
    page = open_page(width, scheme)
    views = {
        "graph": "#file=example.trace.json&view=graph",
        "quantities": "#file=tensors.safetensors&view=quantities",
        "list": "#file=model.safetensors&view=tensors",
        "curve": "#file=model.safetensors&view=tensor&key=model.safetensors:odd",
        "heat": "#file=model.safetensors&view=tensor"
        "&key=model.safetensors:model.embed_tokens.weight",
        "volume": "#file=model.safetensors&view=tensor&axes=0,1,2"
        "&key=model.safetensors:conv.weight",
        "scalar": "#file=model.safetensors&view=tensor&key=model.safetensors:scalar",
        "empty": "#file=model.safetensors&view=tensor&key=model.safetensors:empty",
        "metrics": "#file=run/metrics.jsonl&view=metrics",
    }
    for name, address in views.items():
        page.open(address)
        page.page.wait_for_selector("main h2")
        assert page.no_sideways_scroll(), name
        page.shot(f"{name}-{width}-{scheme}")
        labels = page.page.eval_on_selector_all(
            ".plot[role=img]", "plots => plots.map((plot) => plot.getAttribute('aria-label'))"
        )
        assert all(labels), name
        if name not in ("graph", "list", "scalar", "empty"):
            assert labels, name
            assert page.page.locator(".plot .main-svg").count() > 0, name


def test_first_view_is_the_most_telling(open_page: OpenPage) -> None:
    page = open_page().open("")
    assert page.inner_text("main h2") == "What the model computes: tensors.safetensors"
    assert page.locator("nav a[aria-current]").inner_text() == "What the model computes"


def test_sliders_move_all_panels(open_page: OpenPage) -> None:
    opened = open_page()
    page = opened.open("#file=tensors.safetensors&view=quantities")
    decay = plot_values(page, "Decay")[0]
    assert len(decay) == 32 and len(decay[0]) == 16
    # Panels start at the last token, which the orange line marks.
    assert plot_values(page, "Decay at the token", "y")[0] == [row[15] for row in decay]
    assert page.inner_text(".tokens mark").strip() == "."
    slider = page.get_by_label("Token", exact=True)
    slider.focus()
    slider.press("Home")
    slider.press("ArrowRight")
    opened.settle()
    assert plot_values(page, "Decay at the token", "y")[0] == [row[1] for row in decay]
    assert page.inner_text(".tokens mark").strip() == "you"
    attention = plot_values(page, "Effective attention")[0]
    assert plot_values(page, "Effective attention of the token", "y")[0] == attention[1]
    assert all(attention[t][s] == 0 for t in range(16) for s in range(t + 1, 16))
    page.get_by_label("Head", exact=True).press("End")
    opened.settle()
    assert plot_values(page, "Decay")[0] != decay
    page.get_by_label("Module").select_option("model.layers.1.block_sparse_moe")
    page.wait_for_selector("text=Load of the experts")
    opened.settle()
    assert sum(plot_values(page, "Load of the experts", "y")[0]) == 32
    page.get_by_label("Module").select_option("model.layers.2.mlp_res")
    page.wait_for_selector("text=Attention residual")
    opened.settle()
    weights = plot_values(page, "Attention residual")[0]
    assert abs(sum(row[0] for row in weights) - 1) < 1e-4


def test_graph_opens_down_to_the_stages(open_page: OpenPage) -> None:
    page = open_page().open("#file=example.trace.json&view=graph")
    operator = page.locator("[data-id='node chunk_kda_1_4:1']")
    assert operator.get_attribute("aria-expanded") == "false"
    assert page.locator(".graph [data-kind=stage]").count() == 0
    operator.press("Enter")
    assert page.locator(".graph [data-kind=stage]").count() == 6
    page.wait_for_selector(".details h3:text-is('chunk_kda_1_4:1')")
    assert page.locator("[data-id='node chunk_kda_1_4:1/gate']").count() == 1
    page.locator("[data-id='node linear_1_3:1']").click()
    page.wait_for_selector(".details h3:text-is('linear_1_3:1')")
    assert "model.layers.0.self_attn" in page.inner_text(".details")
    assert page.locator(".edge.lit").count() >= 2
    page.get_by_text("Close all").click()
    closed = page.locator(".graph [role=button]").count()
    page.get_by_label("Find").fill("linear_2_5:1")
    page.get_by_label("Find").press("Enter")
    assert page.locator(".graph [role=button]").count() > closed
    assert page.locator("[aria-pressed=true]").count() == 1


def test_large_tensor_says_what_was_reduced_and_zooms(open_page: OpenPage) -> None:
    opened = open_page()
    page = opened.open(
        "#file=model.safetensors&view=tensor&key=model.safetensors:model.embed_tokens.weight"
    )
    assert "means of blocks of [4, 1]" in page.inner_text(".note:visible")
    assert len(plot_values(page, "Values")[0]) == 512
    # What dragging a frame over the plot does.
    page.evaluate(
        "Plotly.relayout(document.querySelector('.plot'),"
        "{'yaxis.range[0]': 99.5, 'yaxis.range[1]': -0.5})"
    )
    page.wait_for_selector("text=Whole range")
    opened.settle()
    assert len(plot_values(page, "Values")[0]) == 101
    page.get_by_text("Whole range").click()
    opened.settle()
    assert len(plot_values(page, "Values")[0]) == 512


def test_names_from_files_stay_text(open_page: OpenPage) -> None:
    page = open_page().open("#file=run/metrics.jsonl&view=metrics")
    assert page.locator("td", has_text="The <b>file</b>").count() == 5
    assert page.locator("td b").count() == 0


def test_a_run_without_a_point_says_so_until_it_has_one(browser: Any, young_run: Any) -> None:
    server, log = young_run
    opened = Page(browser, server.url, 1280, "light")
    page = opened.open("")
    assert page.get_by_text("no points yet").is_visible()
    log.write_text('{"kind": "step", "step": 1, "loss": 2.5}\n')
    page.get_by_role("button", name="Refresh").click()
    page.wait_for_selector("text=1 records")
    opened.settle()
    assert page.locator(".panels .panel").count() == 1
    assert page.get_by_text("no points yet").count() == 0
    page.close()
    assert opened.faults == []


def test_theme_is_kept(open_page: OpenPage) -> None:
    page = open_page(scheme="light").open("")
    dark = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(dark)
    page.get_by_label("Theme").select_option("dark")
    assert page.evaluate(dark) != light
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_wrong_address_is_told(open_page: OpenPage) -> None:
    for address in ("#file=none&view=graph", "#file=model.safetensors&view=tensor&key=none"):
        opened = open_page()
        opened.page.goto(opened.url + address)
        opened.page.wait_for_selector("#status.error")
        assert "none" in opened.page.inner_text("#status")
