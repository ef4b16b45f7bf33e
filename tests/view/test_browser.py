"""The page in headless Chromium: it loads without errors and a network, shows what it should, follows clicks and keys."""

from __future__ import annotations

import csv
import functools
import io
import random
from collections.abc import Callable, Iterator, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.view.synthetic import large_document
from tools.chromium import Chromium
from vkep.view import Page
from vkep.view.document import new_document

TABS = ("overview", "graph", "timeline", "dispatches", "memory", "contexts", "model")
LAID_OUT = "V.graph.state.layout !== null"


@pytest.fixture(scope="module")
def url(page: Page, tmp_path_factory: pytest.TempPathFactory) -> str:
    return page.save(tmp_path_factory.mktemp("page") / "run.html").as_uri()


@pytest.fixture
def quiet(browser: Chromium) -> Iterator[Chromium]:
    """The browser; what pages log as errors or warnings fails the test."""
    browser.messages.clear()
    yield browser
    assert browser.messages == []


@pytest.mark.parametrize(("width", "height", "dark"), [(1360, 860, False), (390, 844, True)])
def test_every_view_shows_itself(quiet: Chromium, url: str, width: int, height: int, dark: bool) -> None:
    quiet.show(url, width, height, dark=dark)
    quiet.until("V.ready")
    assert quiet.run("V.dark()") is dark
    for number, tab in enumerate(TABS, 1):
        quiet.key(str(number))
        assert quiet.run(
            f"!V.tabs.{tab}.element.hidden && document.querySelectorAll('main > :not([hidden])').length === 1"
        )
        assert quiet.run("document.documentElement.scrollWidth <= innerWidth"), f"{tab} is wider than the window"
    text = quiet.run("V.open('overview'), V.tabs.overview.element.innerText")
    assert "StringConcat" in text
    assert "no Vulkan kernel for StringConcat" in text
    assert "Slowest dispatches" in text
    quiet.run("V.open('graph')")
    quiet.until("V.graph.state.layout !== null && V.graph.made.frames > 0")
    assert quiet.run("V.graph.state.ids.filter((n) => n >= 0).length") == quiet.run(
        "V.doc.nodes.filter((n) => n.where !== 'folded').length"
    )


def test_clicks_and_search_select(quiet: Chromium, url: str) -> None:
    quiet.show(url)
    quiet.until("V.ready")
    quiet.key("/")
    for letter in "string":
        quiet.key(letter)
    assert quiet.run("document.querySelectorAll('.result').length") == 1
    quiet.key("Enter")
    quiet.until("V.graph.state.layout !== null && V.doc.nodes[V.selected.node]?.op === 'StringConcat'")
    assert "no Vulkan kernel" in quiet.run("V.details.innerText")
    quiet.run("document.activeElement.blur()")
    quiet.key("Escape")
    assert quiet.run("V.details.hidden")
    # a node of the graph, by the mouse
    find = "V.doc.nodes.findIndex((n) => n.op === 'Softmax')"
    x, y = quiet.run(place_of(quiet.run(find)))
    quiet.click(x, y)
    assert quiet.run("V.doc.nodes[V.selected.node].op") == "Softmax"
    # a dispatch by its row, and the next one by the keyboard in the timeline
    quiet.run("V.open('dispatches'), document.querySelector('tr[data-dispatch]').click()")
    assert "Covers" in quiet.run("V.details.innerText")
    quiet.run("V.open('timeline'), V.select({ dispatch: 0 })")
    quiet.key("ArrowRight")
    assert quiet.run("V.selected.dispatch") == 1


def test_rows_name_their_nodes_and_totals_agree(quiet: Chromium, url: str) -> None:
    quiet.show(url)
    quiet.until("V.ready")
    quiet.run("V.open('dispatches')")
    names = quiet.run("V.doc.dispatches.map((d, k) => V.names(d).map(V.ownName).join(' + '))")
    text = quiet.run("V.tabs.dispatches.element.innerText")
    assert len(names) > 3
    assert all(name in text for name in names)
    assert "encoder/mix" in text
    parts = "[...V.modules.children.values()].flatMap((m) => m.nodes)"
    inside = quiet.run(f"{parts}.reduce((sum, n) => sum + V.index.ns[n], 0)")
    for kind, wanted in (("operators", "V.totalNs"), ("kernel", "V.totalNs"), ("module", repr(inside))):
        quiet.run(f"V.dispatches.picker.value = '{kind}', V.dispatches.picker.dispatchEvent(new Event('change'))")
        rows = quiet.run(f"V.dispatches.kinds.{kind}.csv()").split("\r\n")
        head, *rest = (row.split(",") for row in rows if row)
        assert head[:3] == [kind, "dispatches", "time"]
        rest = [row for row in rest if row[0].count("/") == 0]  # of modules the outermost
        assert sum(float(row[2]) for row in rest) == pytest.approx(quiet.run(wanted))
    assert [m.strip() for m in quiet.run("V.tabs.dispatches.element.innerText").split("\n")].count("encoder") == 1
    # a total's row shows its dispatches alone
    row = "[...V.tabs.dispatches.element.querySelectorAll('tbody tr')].find((r) => r.innerText.includes('mix'))"
    quiet.run(f"{row}.click()")
    only = quiet.run("[...document.querySelectorAll('tr[data-dispatch]')].map((r) => r.innerText)")
    assert 0 < len(only) < len(names)
    assert all("MatMul" in row or "Mul" in row for row in only)


def test_a_notebook_shows_the_page_in_a_frame(quiet: Chromium, page: Page, tmp_path: Path) -> None:
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><title>cell</title>{page._repr_html_()}", encoding="utf-8")
    quiet.show(path.as_uri())
    frame = "document.querySelector('iframe').contentWindow"
    quiet.until(f"{frame}.eval('V.ready')")
    quiet.run(f"{frame}.eval(\"V.open('graph')\")")
    quiet.until(f"{frame}.eval('V.graph.state.layout !== null')")


def random_document(count: int, seed: int) -> dict[str, Any]:
    """Nodes that read values of any nodes before them, in modules that have nothing to do with that."""
    draw = random.Random(seed)
    document = new_document("random.onnx", "a device", "default:0")
    document["values"] = [{"name": f"v{k}"} for k in range(count + 1)]
    for k in range(count):
        module = "/".join(draw.choice("ab") for _ in range(draw.randrange(4)))
        inputs = sorted({draw.randrange(max(0, k - 12), k + 1) for _ in range(2)})
        node = {"name": f"n{k}", "op": "Add", "where": "vulkan", "inputs": inputs, "outputs": [k + 1]}
        document["nodes"].append({**node, "module": module})
    return document


def test_closed_modules_make_no_cycle(quiet: Chromium, tmp_path: Path) -> None:
    document = random_document(400, seed=3)
    quiet.show(Page([document]).save(tmp_path / "random.html").as_uri())
    quiet.until("V.ready")
    counts = []
    for depth in range(-1, 3):
        boxes = quiet.run(
            f"V.folding.boxes(V.doc.nodes.map((_, n) => n), V.folding.atDepth({depth}))"
            ".boxes.map((one) => typeof one === 'number' ? [null, [one]] : [one.module.path, one.nodes])"
        )
        counts.append(len(boxes))
        of = {n: k for k, (_, nodes) in enumerate(boxes) for n in nodes}
        assert sorted(of) == list(range(400))
        for module, nodes in boxes:
            assert module is None or all(f"{document['nodes'][n]['module']}/".startswith(f"{module}/") for n in nodes)
        before: dict[int, set[int]] = {k: set() for k in range(len(boxes))}
        for n, node in enumerate(document["nodes"]):
            before[of[n]] |= {of[v - 1] for v in node["inputs"] if v} - {of[n]}
        list(TopologicalSorter(before).static_order())  # raises CycleError
    assert counts[0] == 400
    assert max(counts[1:]) < 400


def test_a_state_is_read_before_it_is_written(quiet: Chromium, tmp_path: Path) -> None:
    document = new_document("counter.pte", "a device", "default:0")
    document["values"] = [{"name": "one"}, {"name": "state"}, {"name": "next"}]
    for op, inputs, outputs in (("add", [0, 1], [2]), ("copy", [2], [1])):
        document["nodes"].append({"name": op, "op": op, "where": "cpu", "inputs": inputs, "outputs": outputs})
    quiet.show(Page([document]).save(tmp_path / "counter.html").as_uri() + "#graph")
    quiet.until("V.ready && V.graph.state.layout !== null")
    assert quiet.run("V.graph.state.layout.pieces.flatMap((p) => p.nodes).length") == 2


def test_modules_close_and_open(quiet: Chromium, url: str) -> None:
    quiet.show(url)
    quiet.until("V.ready")
    quiet.run("V.open('graph')")
    laid_out = "V.graph.state.layout !== null"
    quiet.until(laid_out)
    everything = quiet.run("V.graph.state.ids.length")
    quiet.run("V.graph.close(V.folding.all.get('encoder'))")
    quiet.until(laid_out)
    inside = quiet.run("V.folding.all.get('encoder').nodes.length")
    boxes = quiet.run("V.graph.state.groups.map((g) => [g.module.path, g.nodes.length])")
    assert sum(count for path, count in boxes if path == "encoder") <= inside
    assert quiet.run("V.graph.state.ids.length") < everything
    # a click selects the module; its details open it, and its modules are closed then
    item = quiet.run("V.graph.state.ids.find((item) => V.graph.within(item).length > 1)")
    x, y = quiet.run(place_of(item))
    quiet.click(x, y)
    assert quiet.run("V.selected.module") == "encoder"
    assert "open in the graph" in quiet.run("V.details.innerText")
    quiet.run("[...V.details.querySelectorAll('button')].find((b) => b.innerText === 'open in the graph').click()")
    quiet.until(laid_out)
    assert quiet.run("[...V.graph.state.closed]") == ["encoder/mix"]
    # a node that is searched for is shown, whatever is closed
    quiet.run("V.graph.choose(V.doc.nodes.findIndex((n) => n.name === '/encoder/mix/MatMul'))")
    quiet.until(laid_out)
    assert quiet.run("[...V.graph.state.closed]") == []
    assert quiet.run("V.graph.state.ids.length") == everything


def place_of(item: int) -> str:
    """An expression for the place of the graph's item in the window."""
    return f"""(() => {{
        const {{ state, view, made }} = V.graph, box = made.canvas.getBoundingClientRect();
        V.graph.reveal(V.graph.within({item}));
        const k = state.layout.position.get({item});
        const at = (edge, place, corner) => edge + (place[k] - corner) * view.scale;
        return [at(box.left, state.layout.x, view.x), at(box.top, state.layout.y, view.y)];
    }})()"""


def test_a_large_graph_is_closed_and_has_a_map(quiet: Chromium, tmp_path: Path) -> None:
    quiet.show(Page([large_document(3_000)]).save(tmp_path / "large.html").as_uri() + "#graph")
    quiet.until("V.ready && V.graph.state.layout !== null")
    assert 12 <= quiet.run("V.graph.state.ids.length") <= 160
    quiet.until("V.graph.made.frames > 0")
    box = "document.querySelector('.minimap').getBoundingClientRect()"
    before = quiet.run("V.graph.view.y")
    x, y = quiet.run(f"[{box}.left + {box}.width / 2, {box}.bottom - 12]")
    quiet.click(x, y)
    assert quiet.run("V.graph.view.y") > before + quiet.run("V.graph.state.layout.height") / 2


def test_a_long_graph_is_laid_out_in_columns(quiet: Chromium, tmp_path: Path) -> None:
    quiet.show(Page([large_document(3_000)]).save(tmp_path / "large.html").as_uri() + "#graph")
    quiet.until("V.ready && V.graph.state.layout !== null")
    quiet.run("V.graph.state.closed.clear(), V.graph.arrange()")
    quiet.until(LAID_OUT)
    width, height, column = quiet.run("(({ width, height, column }) => [width, height, column])(V.graph.state.layout)")
    assert column < width / 4
    assert 0.3 < height / width < 1.2  # the window is 1360 to 860
    xs, ys = quiet.run("[[...V.graph.state.layout.x], [...V.graph.state.layout.y]]")
    assert len(set(zip(xs, ys, strict=True))) == len(xs) == quiet.run("V.graph.state.ids.length")
    assert max(ys) < height
    # lines lead from and to the nodes that they belong to, across columns too
    ends = quiet.run(
        "V.graph.state.layout.pieces.flatMap((piece) => piece.lines.filter((line) => line.to >= 0)"
        ".map((line) => [line.to, line.points.at(-2), line.points.at(-1)]))"
    )
    assert len(ends) > 3_000
    assert all(abs(xs[to] - x) < 100 and -40 < y - ys[to] < 40 for to, x, y in ends)


def test_a_span_is_measured(quiet: Chromium, url: str) -> None:
    quiet.show(url)
    quiet.until("V.ready")
    quiet.run("V.open('timeline'), V.select({ dispatch: 1 })")
    quiet.key("m")
    start, end = quiet.run("[V.timeline.state.marked.start, V.timeline.state.marked.end]")
    gpu = quiet.run("V.medianRun(V.doc).gpu.filter((s) => s.dispatch === 1).map((s) => s.end - s.start)")
    assert end - start == pytest.approx(gpu[0])
    text = quiet.run("V.timeline.measured.innerText")
    assert "GPU busy" in text
    assert "(100 %)" in text
    quiet.run("[...document.querySelectorAll('main button')].find((b) => b.innerText === 'measure').click()")
    box = "V.timeline.made.canvas.getBoundingClientRect()"
    quiet.until("V.timeline.made.frames > 0")
    left, top = quiet.run(f"[{box}.left, {box}.top]")
    view = quiet.run("V.timeline.view.x")
    quiet.drag(left + 200, top + 60, left + 420, top + 60)
    start, end = quiet.run("[V.timeline.state.marked.start, V.timeline.state.marked.end]")
    assert end - start == pytest.approx(220 / quiet.run("V.timeline.view.scale"))
    assert quiet.run("V.timeline.view.x") == view


@pytest.mark.parametrize("tab", ["graph", "timeline", "memory"])
def test_pictures_are_saved(quiet: Chromium, url: str, tab: str) -> None:
    quiet.show(url)
    quiet.until("V.ready")
    quiet.run("globalThis.saved = {}, V.save = (name, type, content) => { saved[name] = [type, content]; }")
    quiet.run(f"V.open('{tab}')")
    quiet.until("V.graph.state.layout !== null || V.graph.state.worker === null")
    quiet.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    quiet.run(f"V.tabs.{tab}.element.querySelectorAll('.save').forEach((button) => button.click())")
    name = {"memory": "slab"}.get(tab, tab)
    quiet.until("Object.keys(saved).length === 2")
    kind, text = quiet.run(f"[saved['{name}.svg'][0], saved['{name}.svg'][1].join('')]")
    assert kind == "image/svg+xml"
    root = ElementTree.fromstring(text)
    said = " ".join(root.itertext())
    assert {"graph": "StringConcat", "timeline": "of the limit", "memory": "dispatches 0 to"}[tab] in said
    assert len(root.findall(".//{http://www.w3.org/2000/svg}path")) + len(root.findall(".//{*}rect")) >= 5
    size = quiet.run(f"createImageBitmap(saved['{name}.png'][1]).then((bitmap) => [bitmap.width, bitmap.height])")
    assert min(size) > 100


def test_the_model_and_its_weights_are_described(quiet: Chromium, url: str) -> None:
    quiet.show(url)
    quiet.until("V.ready")
    text = quiet.run("V.open('model'), V.tabs.model.element.innerText")
    assert "ai.onnx" in text
    row = next(line for line in text.split("\n") if line.startswith("w\t")).split("\t")
    assert row[:5] == ["w", "float32 8×8", "256 B", "-1", "1"]
    assert quiet.run("V.tabs.model.element.querySelectorAll('.histogram i').length") == 24
    quiet.run("V.graph.choose(V.doc.nodes.findIndex((n) => n.op === 'MatMul'))")
    assert "-1 to 1, mean 0, deviation 0.5864" in quiet.run("V.details.innerText")


def test_tables_are_saved(quiet: Chromium, url: str) -> None:
    quiet.show(url)
    quiet.until("V.ready")
    quiet.run("V.open('dispatches')")
    head, *rows = csv.reader(io.StringIO(quiet.run("V.dispatches.each.csv()"), newline=""))
    assert head[:4] == ["dispatch", "nodes", "operators", "module"]
    assert sorted(int(row[0]) for row in rows) == list(range(quiet.run("V.doc.dispatches.length")))
    assert quiet.run("V.csv([['=1+1', 'a\"b', -2, 'x,y']])") == '\'=1+1,"a""b",-2,"x,y"\r\n'


def compared(quiet: Chromium, tmp_path: Path, now: dict[str, Any], before: dict[str, Any]) -> str:
    """The text of the view that compares two documents."""
    quiet.show(Page([now, before]).save(tmp_path / "two.html").as_uri())
    quiet.until("V.ready")
    return str(quiet.run("V.tabs.compare.element.innerText"))


def measured(document: dict[str, Any], times: Sequence[float], pace: float = 1.0) -> dict[str, Any]:
    """The document with these times of the run and of each dispatch, in nanoseconds."""
    median = sorted(times)[(len(times) - 1) // 2]
    return {
        **document,
        "nodes": [dict(node) for node in document["nodes"]],
        "dispatches": [{**d, "ns": median, "samples": list(times)} for d in document["dispatches"]],
        "runs": [{**document["runs"][0], "end": document["runs"][0]["start"] + ns} for ns in times],
        "pace": [pace] * len(times),
    }


def test_two_runs_are_compared(quiet: Chromium, page: Page, tmp_path: Path) -> None:
    now, before = (measured(page.document, [f * ns for ns in (95, 100, 105)]) for f in (1e3, 3e3))
    moved = next(n for n in before["nodes"] if n["op"] == "Softmax")
    moved["where"] = "cpu"
    text = compared(quiet, tmp_path, now, before)
    assert "1 node moved" in text
    assert text.count("3.00× faster") == 2 + len(now["dispatches"])
    assert "Softmax" in text
    assert "(noise 1.10×)" in text


@pytest.mark.parametrize(
    ("times", "pace", "said"),
    [
        ([100, 609, 650], 1.0, "within the noise"),  # one measurement as fast as before
        ([580, 609, 640], 1 / 6, "The device itself was 6.00× slower"),
        ([609], 1.0, "too few runs to tell"),
    ],
)
def test_noise_is_no_change(
    quiet: Chromium, page: Page, tmp_path: Path, times: list[float], pace: float, said: str
) -> None:
    now, before = measured(page.document, times, pace), measured(page.document, [95, 100, 105])
    text = compared(quiet, tmp_path, now, before)
    assert said in text
    assert "× slower (" not in text
    assert "6.09× slower" not in text
    assert "No dispatch changed by more than the noise" in text


def test_times_add_up_and_name_their_spread(quiet: Chromium, page: Page, url: str) -> None:
    quiet.show(url)
    quiet.until("V.ready")
    text = quiet.run("V.tabs.overview.element.innerText")
    assert "the median of 2, from " in text
    assert "GPU: Vulkan" in text
    assert "measured" in text
    table = "[...document.querySelectorAll('main tr')].filter((r) => /^(GPU|host, the GPU idle): /.test(r.innerText))"
    parts = quiet.run(f"{table}.map((r) => parseFloat(r.cells[1].innerText))")
    assert sum(parts) == pytest.approx(100, abs=0.5 * len(parts))
    assert "± " in quiet.run("V.open('dispatches'), V.tabs.dispatches.element.innerText")


def test_a_mixed_timeline_has_no_empty_charts(quiet: Chromium, page: Page, tmp_path: Path) -> None:
    span = {"name": "vgf: Conv", "start": 100.0, "end": 5100.0, "island": -1, "dispatch": -1, "region": 0}
    host = [{"name": "run", "start": 0, "end": 6000, "depth": 0}]
    mixed = {
        **page.document,
        "regions": [{"kind": "vgf", "nodes": [0], "about": "1 node in 2 TOSA operations"}],
        "runs": [{"start": 0, "end": 6000, "uncertainty": 1, "host": host, "gpu": [span]}] * 3,
    }
    quiet.show(Page([mixed]).save(tmp_path / "mixed.html").as_uri() + "#timeline")
    quiet.until("V.ready")
    assert quiet.run("V.timeline.strips()") == []
    quiet.until("V.timeline.made.frames > 0")
    find = """(() => {
        const { state, view, made } = V.timeline, bar = state.bars.find((b) => b.kind === 'gpu');
        const box = made.canvas.getBoundingClientRect();
        return [box.left + ((bar.start + bar.end) / 2 - view.x) * view.scale, box.top + 26 + 24 * bar.row + 12];
    })()"""
    quiet.click(*quiet.run(find))
    assert quiet.run("V.selected.node") == 0
    text = quiet.run("V.open('overview'), V.tabs.overview.element.innerText")
    assert "GPU: vgf" in text
    row = next(line for line in text.split("\n") if "TOSA operations" in line)
    assert "5.0 µs" in row


#: processor time in milliseconds that no task of the page may take: a third more than the longest on the slowest machine that was
#: used (233)
LONGEST = 310


def test_ten_thousand_nodes_stay_fluent(quiet: Chromium, tmp_path: Path) -> None:
    url = Page([large_document(10_000)]).save(tmp_path / "large.html").as_uri()
    longest: dict[str, float] = {}

    def watch(what: str, act: Callable[[], object]) -> None:
        with quiet.tasks() as tasks:
            act()
            quiet.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert tasks, "the browser tells no processor time of tasks"
        longest[what] = max(tasks)

    def load() -> None:
        quiet.show(url)
        quiet.until("V.ready")

    def lay_out() -> None:
        quiet.run("V.open('graph')")
        quiet.until(LAID_OUT)

    def open_all() -> None:
        quiet.run("V.graph.state.closed.clear(), V.graph.arrange()")
        quiet.until(LAID_OUT)

    def look() -> None:
        quiet.key("/")
        for letter in "gelu":
            quiet.key(letter)
        quiet.key("Enter")

    watch("load", load)
    watch("graph", lay_out)
    watch("graph, all open", open_all)
    watch("graph as SVG", lambda: quiet.run("V.graph.drawing().then(() => null)"))
    watch("whole graph", lambda: quiet.run("document.activeElement.blur(), V.tabs.graph.key({ key: 'f' })"))
    watch("search", look)
    for tab in TABS[2:]:
        watch(tab, functools.partial(quiet.run, f"V.open('{tab}')"))
        watch(f"{tab}, selecting", lambda: quiet.run("V.select({ dispatch: 5000 })"))
        watch(f"{tab}, selecting a module", lambda: quiet.run("V.select({ module: 'model' })"))
    slow = {what: round(ms) for what, ms in longest.items() if ms >= LONGEST}
    assert not slow, f"milliseconds of the longest task: {slow}"
