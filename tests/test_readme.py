"""The README's Python runs as it stands and prints what the README shows; its picture and commands are up to date."""

import importlib.util
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from poly.cli import main
from poly.compiler import machine_of
from poly.demo import network
from poly.frontend.onnx_import import from_onnx
from poly.pictures import schedule_tree
from poly.scheduling.grouping import group_program
from poly.scheduling.schedule import Schedule
from poly.scheduling.script import PRIMITIVES

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_contributing_names_files_that_exist_and_its_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert all((ROOT / name).exists() for name in re.findall(r"tests/test_\w+\.py", text))
    (block,) = blocks("python", text)
    exec(compile(block, "CONTRIBUTING.md", "exec"), {})
    printed = capsys.readouterr().out
    assert all(part in printed for part in ("C_update[i, k, j]", "script", "define ", "queue ", "why legal"))


@pytest.mark.parametrize("folder", ["poly", "frontend", "scheduling", "codegen", "accel"])
def test_contributing_has_every_module(folder: str) -> None:
    named = set(re.findall(rf"`(?:{folder}/)?(\w+)(?:\.py)?`", (ROOT / "CONTRIBUTING.md").read_text()))
    modules = {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__"}
    assert modules <= named


def test_the_folder_holds_no_empty_files() -> None:  # as `->` unquoted in a shell makes them
    assert not [path.name for path in ROOT.iterdir() if path.is_file() and not path.stat().st_size]


def test_every_decision_is_in_the_list() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    listed = re.findall(r"^- \[(\d{4})\]\((.+?)\): (.+?)(?: \*\(.+\)\*)?$", index, re.MULTILINE)
    titles = {p.name: p.read_text().partition("\n")[0] for p in folder.glob("[0-9]*.md")}
    assert {page: f"# {number}: {title}" for number, page, title in listed} == titles


def save_model(path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype("f4")
    shape: list[str | int] = ["n", 3, "h", "w"]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["input", "k"], ["c"], strides=[4, 4]), helper.make_node("Relu", ["c"], ["output"])],
        "model",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "k")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def test_python_blocks_run_and_print_what_they_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "model.onnx")
    space: dict[str, object] = {"image": np.ones((1, 3, 224, 224), "f4")}
    for k, block in enumerate(blocks("python")):
        file = tmp_path / f"block_{k}.py"  # a nest reads its source
        file.write_text(block)
        exec(compile(block, str(file), "exec"), space)
    assert np.allclose(np.asarray(space["c"]), np.asarray(space["a"]) @ np.asarray(space["b"]), rtol=1e-4)
    assert np.allclose(np.asarray(space["d"]), np.asarray(space["c"]), rtol=1e-4)
    assert np.allclose(np.asarray(space["product"]), np.asarray(space["panel"]))
    printed = capsys.readouterr().out
    shown = [line for block in blocks("text") for line in block.splitlines() if "just now" not in line]
    assert len(shown) > 10
    missing = [line for line in shown if line.strip() not in ("...", "") and line not in printed.splitlines()]
    assert not missing
    assert str(space["schedule"]) == str(readme_schedule()), "the picture is of another schedule"


def readme_schedule() -> Schedule:
    """What docs/make_pictures.py draws."""
    spec = importlib.util.spec_from_file_location("make_pictures", ROOT / "docs" / "make_pictures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.readme_schedule()


def test_picture_is_up_to_date() -> None:
    drawn = schedule_tree(readme_schedule()).text + "\n"
    assert (ROOT / "docs" / "schedule.svg").read_text() == drawn, "run python docs/make_pictures.py"


def test_shell_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "model.onnx")
    np.save("a.npy", np.ones((8, 12), "f4"))
    np.save("b.npy", np.ones((12, 4), "f4"))
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("poly ")]
    assert len(lines) >= 5
    for line in lines:
        arguments = shlex.split(line)[1:]
        if "--group" in arguments:  # the small model has fewer groups
            arguments[arguments.index("--group") + 1] = "0"
            arguments += ["--shape", "input=1,3,64,64"]
        assert main([a.replace("1,3,224,224", "1,3,64,64") for a in arguments]) == 0, line


def test_the_demo_shown_has_the_groups_that_the_network_has_now() -> None:
    """On the machines of the block, as far as they are known here."""
    (block,) = blocks("console")
    heads = next(line.split() for line in block.splitlines() if line.split()[-1] == "s16")
    counts = re.findall(r"(\d+), \d+ different", block)
    program = from_onnx(network()).to_program()
    machines = {m.name: m for m in (machine_of("cpu"), machine_of("s16"))}
    known = [(name, count) for name, count in zip(heads, counts, strict=True) if name in machines]
    assert known
    for name, count in known:
        assert len(group_program(program, machines[name]).groups) == int(count), f"{name}: run poly demo"


def test_every_setting_is_in_the_table() -> None:
    folders = ("poly", "frontend", "scheduling", "codegen", "accel", "tests", "benchmarks")
    texts = [path.read_text() for folder in folders for path in (ROOT / folder).glob("*.py")]
    names = {name for text in texts for name in re.findall(r"environ\S*[\"'](POLYLOOM_[A-Z]+)", text)}
    assert len(names) > 4 and not {name for name in names if f"`{name}" not in README}


def test_every_edit_is_in_the_table() -> None:
    assert not [name for name in PRIMITIVES if f"`{name}`" not in README]
