"""TensorLens from PyPI against this server: the same numbers, and its own page reads them."""

from __future__ import annotations

import importlib.metadata
import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import demo_files
import numpy as np
import pytest

from conftest import Server


@pytest.fixture(scope="module")
def package() -> Path:
    """The folder of the installed package. It is not imported as a whole: its server wants Flask,
    gunicorn and IPython, none of which is needed to compare with it."""
    try:
        found = importlib.metadata.distribution("tensorlens")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("TensorLens is not installed: pip install --no-deps tensorlens==0.0.3")
    return Path(str(found.locate_file("tensorlens")))


@pytest.fixture(scope="module")
def normalize(package: Path) -> Any:
    """`normalize_to_int8`, cut out of the package's source."""
    source = (package / "tensorlens.py").read_text()
    begin = source.index("def normalize_to_int8")
    end = source.index("\ndef ", begin + 1)
    names: dict[str, Any] = {"np": np, "Tuple": tuple, "NormalizationStrategy": str}
    exec(source[begin:end], names)
    return names["normalize_to_int8"]


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    return {
        "floats": (rng.normal(size=(7, 12)) * 0.7).astype(np.float32),
        "doubles": rng.normal(size=(5, 3, 4)),
        "integers": rng.integers(-100, 100, size=50),
        "constant": np.full((3, 3), 0.25, np.float32),
    }


@pytest.fixture(scope="module")
def lens(arrays: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("lens") / "t.safetensors"
    server = Server([demo_files.write_safetensors(path, arrays)])
    yield server
    server.end()


def ask(server: Server, path: str, **parameters: str) -> Any:
    query = urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(f"{server.url}{path}?{query}", timeout=30) as reply:
        return json.load(reply)


@pytest.mark.parametrize("rule", ["clip", "minmax", "zscore", "none"])
@pytest.mark.parametrize("name", ["floats", "doubles", "integers", "constant"])
def test_numbers_are_those_of_the_package(
    lens: Server, arrays: dict[str, np.ndarray], normalize: Any, rule: str, name: str
) -> None:
    array = arrays[name]
    if rule == "none":
        # The package asks for values in [-1, 1]; others overflow there.
        if np.abs(array).max() > 1:
            array = np.clip(array, -1, 1)
        wanted = normalize(array, (-1.0, 1.0), rule).astype(int)
    else:
        wanted = normalize(array, (-1.0, 1.0), rule).astype(int)
    reply = ask(lens, "api/get_tensor", tensor_key=name, normalization=rule)
    given = np.array(reply["data"])
    assert reply["shape"] == list(array.shape) and reply["dims"] == array.ndim
    # Mean and deviation are summed in another order: a value on the edge may fall to the other side.
    if rule == "zscore":
        assert np.abs(given - wanted).max() <= 1
        assert (given != wanted).mean() <= 0.02
    elif rule == "none" and np.abs(arrays[name]).max() > 1:
        inside = np.abs(arrays[name]) <= 1
        assert (given[inside] == wanted[inside]).all()
        assert (np.abs(given[~inside]) >= 127).all()
    else:
        assert (given == wanted).all()


@pytest.mark.parametrize(
    "code",
    [
        "tensor.T",
        "tensor.reshape(1,-1)",
        "tensor.transpose(2, 0, 1)[::-1, ..., 1:]",
        "np.transpose(tensor, (1, 2, 0)).reshape(-1, 5)",
        "tensor.swapaxes(0, 2)[1, -1]",
        "reshape(transpose(tensor), (3, 20))[1:3, ::7]",
        "tensor[3][1][2]",
    ],
)
def test_code_means_what_numpy_means(
    lens: Server, arrays: dict[str, np.ndarray], normalize: Any, code: str
) -> None:
    tensor = normalize(arrays["doubles"], (-1.0, 1.0), "clip")
    names = {"tensor": tensor, "np": np, "reshape": np.reshape, "transpose": np.transpose}
    wanted = eval(code, names)
    reply = ask(lens, "api/get_tensor", tensor_key="doubles", code=code)
    assert reply["shape"] == list(np.shape(wanted))
    assert (np.array(reply["data"]) == wanted).all()


def test_replies_have_the_fields_of_the_package(lens: Server, package: Path) -> None:
    assert set(ask(lens, "api/config")) == {
        "status",
        "max_points",
        "point_size",
        "refresh_interval",
        "disable_transforms",
    }
    listed = ask(lens, "api/list_tensors")
    assert listed["count"] == 4
    assert listed["available_tensors"][0] == {"key": "floats", "name": "floats", "shape": [7, 12]}
    for parameters, status in (({}, 400), ({"tensor_key": "x"}, 404)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(lens, "api/get_tensor", **parameters)
        assert refused.value.code == status
        assert "error" in json.load(refused.value)


def test_its_page_reads_from_here(lens: Server, package: Path, browser: Any) -> None:
    """The package's own page, put in the place of ours by the browser: all its data come from here."""
    page = browser.new_page()
    page.set_default_timeout(60000)
    static = package / "web" / "static"
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.route(lens.url, lambda route: route.fulfill(path=static / "index.html"))
    page.route(
        "**/assets/*",
        lambda route: route.fulfill(
            path=static / "assets" / route.request.url.rsplit("/", 1)[1],
            content_type="text/javascript",
        ),
    )
    page.goto(lens.url)
    page.wait_for_function("document.querySelectorAll('#tensorSelector option').length === 5")
    options = page.eval_on_selector_all(
        "#tensorSelector option", "all => all.map((one) => one.value).filter(Boolean)"
    )
    assert options == ["floats", "doubles", "integers", "constant"]
    drawn: list[str] = []
    page.on("console", lambda message: drawn.append(message.text))
    page.fill("#pythonCodeInput", "tensor.transpose(2, 0, 1)[:2]")
    with page.expect_response(lambda reply: "tensor_key=doubles" in reply.url) as asked:
        page.select_option("#tensorSelector", "doubles")
    assert asked.value.json()["shape"] == [2, 5, 3]
    assert page.inner_text("#tensorInfo") == "Tensor: doubles | Shape: 5,3,4"
    while not any("Rendering" in text for text in drawn):
        page.wait_for_timeout(50)
    assert any("30" in text for text in drawn if "Rendering" in text), drawn
    assert not any("Failed" in text for text in drawn), drawn
    # Its own slip after a drawing is done: the timer of its refresh goes into a constant.
    assert set(faults) <= {"Assignment to constant variable."}
    page.close()
