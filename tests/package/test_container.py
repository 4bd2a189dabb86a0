"""The image without an engine: what its files say, and what the documents say about it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import tomllib
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ["KDA_PROGRAM"])
DOCKERFILE = (ROOT / "Dockerfile").read_text()
#: words that only names of secrets have
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)


def instructions() -> list[tuple[str, str]]:
    """(instruction, its words), continued lines joined."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE)
    rows = [row for row in text.splitlines() if row.strip() and not row.startswith("#")]
    return [(row.split()[0], row.split(maxsplit=1)[1]) for row in rows]


def last_stage() -> list[tuple[str, str]]:
    rows = instructions()
    start = max(i for i, (name, _) in enumerate(rows) if name == "FROM")
    return rows[start:]


def as_regex(pattern: str) -> str:
    """** goes over folders, * and ? do not."""
    out = re.escape(pattern)
    for glob, regex in (("**/", "(.*/)?"), ("**", ".*"), ("*", "[^/]*"), ("?", "[^/]")):
        out = out.replace(re.escape(glob), regex.replace("*", "\0"))
    return out.replace("\0", "*")


def ignored(path: str) -> bool:
    """As Docker reads .dockerignore: the last line that matches the path or a parent decides."""
    parts = path.split("/")
    parents = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    out = False
    for row in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = row.strip()
        if not pattern or pattern.startswith("#"):
            continue
        regex = as_regex(pattern.removeprefix("!"))
        if any(re.fullmatch(regex, parent) for parent in parents):
            out = not pattern.startswith("!")
    return out


def tracked() -> list[str]:
    done = subprocess.run(
        ["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return done.stdout.split()


def test_stages_user_and_command() -> None:
    stages = [words for name, words in instructions() if name == "FROM"]
    assert [words.split(" AS ")[1] for words in stages] == ["build", "test", "packed", "run"]
    final = last_stage()
    names = [name for name, _ in final]
    assert dict(final)["USER"] == "kda"
    assert json.loads(dict(final)["CMD"]) == ["container_help"]
    assert "ENTRYPOINT" not in names
    assert dict(final)["WORKDIR"] == "/workspace/kda"
    assert not [row for row in final[names.index("USER") :] if row[0] in ("RUN", "COPY", "ADD")]


def test_every_step_is_in_the_script() -> None:
    """Nothing is done in the Dockerfile that a root without an engine would not do too."""
    script = (ROOT / "scripts/container_build.sh").read_text()
    for name, words in instructions():
        if name != "RUN":
            continue
        command = re.sub(r"^--mount=\S+\s*", "", words)
        found = re.fullmatch(r"\S*container_build\.sh (\w+)( image)?", command)
        assert found is not None, command
        assert f"{found.group(1)}() {{" in script


def test_sources_of_copies_exist_and_are_in_the_context() -> None:
    for name, words in instructions():
        if name != "COPY" or words.startswith("--from=") or words == ". .":
            continue
        for source in words.split()[:-1]:
            assert (ROOT / source).is_file(), source
            assert not ignored(source), source


def test_base_has_the_cuda_of_torch() -> None:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.submodule_search_locations
    text = (Path(spec.submodule_search_locations[0]) / "version.py").read_text()
    found = re.search(r"^cuda[^=]*= '([\d.]+)'", text, re.MULTILINE)
    if found is None:
        pytest.skip("this torch is not a CUDA build")
    bases = re.findall(r"^ARG \w+_BASE=nvidia/cuda:([\d.]+)-(devel|base)-", DOCKERFILE, re.M)
    assert sorted(kind for _, kind in bases) == ["base", "devel"]
    assert {number.rpartition(".")[0] for number, _ in bases} == {found.group(1)}


def test_clients_of_the_image_are_the_extras_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    rows = (ROOT / "scripts/requirements-container.txt").read_text().splitlines()
    listed = {row for row in rows if row and not row.startswith("#")}
    assert listed == {
        row for name in ("report", "swanlab", "tensorboard", "wandb") for row in extras[name]
    }


def test_no_secret_in_the_image() -> None:
    for name, words in instructions():
        if name in ("ENV", "ARG"):
            assert not SECRET.search(words), words
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    for entry in compose["services"]["train"]["environment"]:
        assert "=" not in entry, entry  # taken from the shell, no value in the file
    assert not any(SECRET.search(word) for word in compose["services"]["train"]["build"]["args"])


@pytest.mark.parametrize(
    "path",
    ["data/x.txt", "runs/a/model.safetensors", "ckpts/k3.pt", ".env", "src/.env", ".git/HEAD",
     ".venv/bin/python", ".deps/x", "build/release/bin/kda", "dist/a.whl", "model.safetensors",
     "python/kda/lib/libkda_torch.so", "id.key", "scripts/my.pem", "python/kda/x.kdatok",
     "tests/python/__pycache__/a.pyc"],
)  # fmt: skip
def test_private_and_built_files_stay_outside(path: str) -> None:
    assert ignored(path)


def test_the_context_has_every_tracked_source() -> None:
    outside = [path for path in tracked() if ignored(path)]
    assert [path for path in outside if path.split("/")[0] not in ROOT_FILES_LEFT_OUT] == []


#: tracked, and of no use in a build
ROOT_FILES_LEFT_OUT = {".ci", ".dockerignore", ".gitignore", "Dockerfile", "compose.yaml"}


def test_compose_reserves_the_gpus() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    service = compose["services"]["train"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert "SWANLAB_API_KEY" in service["environment"]
    targets = {volume.split(":")[1] for volume in service["volumes"]}
    assert targets == {
        "/workspace/kda/data", "/workspace/kda/runs", "/workspace/kda/ckpts", "/cache",
    }  # fmt: skip
    named = {v.split(":")[0] for v in service["volumes"] if not v.startswith(".")}
    assert named == set(compose["volumes"])


def test_help_prints_every_entry_and_exits_two() -> None:
    environment = {**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [ROOT / "scripts/container_help.sh"],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    listed = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True)
    assert listed.stdout in done.stdout
    for entry in ("kda COMMAND", "python -m kda.monitor", "SWANLAB_API_KEY", "bash"):
        assert entry in done.stdout


def documented() -> list[list[str]]:
    """What the recipes of docs/containers.md run inside a container."""
    text = (ROOT / "docs/containers.md").read_text()
    out = []
    for row in re.findall(
        r"^\s*(?:\w+=\S+ )?docker .* run .*$|^\s*docker run .*$", text, re.MULTILINE
    ):
        words = shlex.split(row, comments=True)
        mark = "train" if "compose" in words else "kda:latest"
        if mark in words and words.index(mark) + 1 < len(words):
            out.append(words[words.index(mark) + 1 :])
    return out


def test_recipes_name_what_exists() -> None:
    recipes = documented()
    assert len(recipes) >= 12
    for words in recipes:
        if words[0] in ("bash", "nvidia-smi") or words[:2] == ["python", "-c"]:
            continue
        if words[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(words[2]) is not None, words
            continue
        assert words[0] == "kda", words
        verb = [word for word in words[1:3] if re.fullmatch(r"[a-z-]+", word) and word[0] != "-"]
        if verb[:1] in (["train"], ["generate"], ["doctor"]):
            verb = verb[:1]
        shown = subprocess.run([PROGRAM, *verb, "--help"], capture_output=True, text=True)
        assert shown.returncode == 0, (words, shown.stderr)
        for option in (word for word in words if word.startswith("--")):
            assert re.search(rf"(?<![\w-]){option}\b", shown.stdout), (words, option)


def test_compose_service_of_the_documents_is_there() -> None:
    text = (ROOT / "docs/containers.md").read_text()
    services = set(re.findall(r"docker compose run --rm (\w+)", text))
    assert services == set(yaml.safe_load((ROOT / "compose.yaml").read_text())["services"])
