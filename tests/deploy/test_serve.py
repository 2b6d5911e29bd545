import copy
import io
import json
import shutil
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Timer
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from PIL import Image

from command_line import run
from incseg.deploy import serve as serving
from incseg.deploy import served_page
from incseg.deploy import viewer as viewing
from incseg.deploy.model import Model, open_model
from incseg.deploy.serve import serve
from incseg.deploy.served_page import build_app
from incseg.deploy.viewer import LiveViewer, ModelViewer
from incseg.deploy.visitors import Visitors
from incseg.engine.checkpoint import FinishedStep
from incseg.errors import IncompleteError, InputError
from incseg.run_folder import RunFolder

needs_gradio = pytest.mark.skipif(find_spec("gradio") is None, reason="the extra incseg[serve] is not installed")


@pytest.fixture
def viewer(tiny_run: Path) -> ModelViewer:
    return ModelViewer.load([tiny_run], device="cpu")


@pytest.fixture
def noise() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8))


def test_every_finished_step_can_be_chosen(viewer: ModelViewer, tiny_run: Path, noise: Image.Image) -> None:
    assert list(viewer.models) == ["step 0", "step 1"]
    assert viewer.classes == ("background", "disc", "square", "triangle", "cross")
    predictions = viewer.predict(noise)
    for name, model in viewer.models.items():
        assert (predictions[name].ids == model.predict(np.asarray(noise)).ids).all()
    several = ModelViewer.load([tiny_run, tiny_run / "step-2"], device="cpu")
    assert list(several.models) == [f"{tiny_run} · step 0", f"{tiny_run} · step 1", f"{tiny_run / 'step-2'}"]


def test_equal_models_are_shown_once(tiny_run: Path, tmp_path: Path) -> None:
    again, renamed = tmp_path / "again.safetensors", tmp_path / "renamed.safetensors"
    model = Model.open(tiny_run, 0, "cpu")
    replace(model, history=[{"new_classes": [], "method": "none"}]).save(again)
    replace(model, classes=("background", "ring", "square")).save(renamed)
    viewer = ModelViewer.load([tiny_run, again, renamed], device="cpu")
    assert list(viewer.models) == [f"{tiny_run} · step 0", f"{tiny_run} · step 1", str(renamed)]
    assert viewer.repeated == [str(again)]
    assert viewer.refreshed() is viewer
    finish_third_step(tiny_run)
    later = viewer.refreshed()
    assert [name for name in later.models if name not in viewer.models] == [f"{tiny_run} · step 2"]
    assert later.repeated == [str(again)]


def finish_third_step(run: Path) -> None:
    """Its model is written already; scores make it a finished step."""
    FinishedStep({}, {"step": 2}).save(RunFolder(run), 2)


def test_a_step_finished_meanwhile_appears_and_the_others_stay_loaded(viewer: ModelViewer, tiny_run: Path) -> None:
    assert viewer.refreshed() is viewer
    finish_third_step(tiny_run)
    later = viewer.refreshed()
    assert list(later.models) == ["step 0", "step 1", "step 2"]
    assert later.models["step 1"] is viewer.models["step 1"]
    assert later.refreshed() is later


def test_a_replaced_file_is_read_again(tiny_run: Path, tmp_path: Path, noise: Image.Image) -> None:
    file = tmp_path / "mine.safetensors"
    shutil.copy(tiny_run / "step-0" / "model.safetensors", file)
    viewer = ModelViewer.load([file], device="cpu")
    shutil.copy(tiny_run / "step-1" / "model.safetensors", file)
    later = viewer.refreshed()
    assert (len(viewer.classes), len(later.classes)) == (3, 5)
    expected = ModelViewer.load([tiny_run], device="cpu").predict(noise)["step 1"]
    assert (later.predict(noise)[str(file)].ids == expected.ids).all()


def test_a_model_that_cannot_be_read_any_more_stays_as_it_was(tiny_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.safetensors"
    shutil.copy(tiny_run / "step-0" / "model.safetensors", file)
    viewer = ModelViewer.load([file], device="cpu")
    file.write_bytes(b"half a fi")
    assert viewer.refreshed().models == viewer.models
    file.unlink()
    assert viewer.refreshed().models == viewer.models


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), IncompleteError("no room")])
def test_a_model_that_cannot_be_loaded_is_told_once_and_tried_again_when_it_changes(
    error: Exception, viewer: ModelViewer, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, said = list[Path](), list[str]()

    def full(file: Path, **_: object) -> Model:
        tried.append(file)
        raise error

    live, new = LiveViewer(viewer, said.append), RunFolder(tiny_run).model(2)
    finish_third_step(tiny_run)
    with monkeypatch.context() as patch:
        patch.setattr(viewing, "open_model", full)
        for _ in range(3):
            assert list(live.now().models) == ["step 0", "step 1"]
            assert live.now().repeated == []
        assert tried == [new]
        assert len(said) == 1
        assert str(new) in said[0]
        assert "no room" in said[0]
        new.touch()
        live.now()
        assert tried == [new, new]
        other = RunFolder(tiny_run).model(0)
        other.touch()
        live.now()
        assert tried == [new, new, other], "what has not changed is left alone although something else has"
        assert len(said) == 3
    assert list(live.now().models) == ["step 0", "step 1"]
    new.touch()
    assert list(live.now().models) == ["step 0", "step 1", "step 2"]


def test_a_path_that_is_gone_is_told_once_each_time(viewer: ModelViewer, tiny_run: Path) -> None:
    said, elsewhere = list[str](), tiny_run.with_name("elsewhere")
    live = LiveViewer(viewer, said.append)
    for times in (1, 2):
        tiny_run.rename(elsewhere)
        assert live.now().models == live.now().models == viewer.models
        assert len(said) == times
        assert f"there is no model {tiny_run}" in said[-1]
        elsewhere.rename(tiny_run)
        assert live.now().models == viewer.models
    assert len(said) == 2


def test_a_request_does_not_wait_for_a_model_that_another_one_loads(
    viewer: ModelViewer, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, begun, go_on, loaded = LiveViewer(viewer, print), Event(), Event(), list[Path]()

    def slow(file: Path, device: str) -> Model:
        loaded.append(file)
        begun.set()
        assert go_on.wait(20)
        return open_model(file, device=device)

    monkeypatch.setattr(viewing, "open_model", slow)
    finish_third_step(tiny_run)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(live.now)
        assert begun.wait(20)
        release = Timer(5, go_on.set)  # so that a wait fails the test and does not hang it
        release.start()
        assert threads.submit(live.now).result() is viewer
        assert not go_on.is_set()
        release.cancel()
        go_on.set()
        assert list(first.result().models) == ["step 0", "step 1", "step 2"]
    assert live.now() is first.result()
    assert loaded == [RunFolder(tiny_run).model(2)]


def test_the_hub_is_asked_once(tiny_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, asked = tiny_model.save_pretrained(tmp_path / "downloaded"), list[str]()

    def download(repository: str, **_: object) -> str:
        asked.append(repository)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    viewer = ModelViewer.load([Path("hf://me/shapes")], device="cpu")
    assert list(viewer.models) == [str(Path("hf://me/shapes"))]
    assert viewer.refreshed().refreshed() is viewer
    assert asked == ["me/shapes"]


def test_a_model_that_is_gone_does_not_keep_others_from_being_read(tiny_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.safetensors"
    Model.open(tiny_run, 1, "cpu").save(file)
    replaced = replace(Model.open(tiny_run, 0, "cpu"), classes=("background", "ring", "square"))
    replaced.save(file)
    viewer = ModelViewer.load([file, tiny_run], device="cpu")
    file.unlink()
    finish_third_step(tiny_run)
    later = viewer.refreshed()
    assert list(later.models) == [str(file), *(f"{tiny_run} · step {step}" for step in range(3))]
    assert later.models[str(file)] is viewer.models[str(file)]


def test_a_model_that_is_gone_and_was_not_shown_does_not_keep_others_from_being_read(
    tiny_run: Path, tmp_path: Path
) -> None:
    equal = tmp_path / "equal.safetensors"
    shutil.copy(tiny_run / "step-0" / "model.safetensors", equal)
    viewer = ModelViewer.load([tiny_run, equal], device="cpu")
    assert viewer.repeated == [str(equal)]
    equal.unlink()
    finish_third_step(tiny_run)
    assert list(viewer.refreshed().models) == [f"{tiny_run} · step {step}" for step in range(3)]


def test_classes_can_be_switched_off(viewer: ModelViewer, noise: Image.Image) -> None:
    predictions = viewer.predict(noise)
    (everything,) = viewer.overlays(predictions, viewer.classes, "step 1")
    (nothing,) = viewer.overlays(predictions, [], "step 1")
    assert nothing is not None
    assert everything is not None
    assert nothing.size == (400, 300)  # five times as large, to be seen
    assert (np.asarray(nothing)[2::5, 2::5] == np.asarray(noise)).all()
    assert (np.asarray(everything)[2::5, 2::5] != np.asarray(noise)).any()
    assert viewer.overlays({}, [], "step 0", "step 1") == [None, None]


def test_the_table_has_a_column_per_step_and_dashes_for_what_is_not_known_yet(
    viewer: ModelViewer, noise: Image.Image
) -> None:
    table = viewer.area_table(viewer.predict(noise))
    assert "<th>step 0</th><th>step 1</th>" in table
    row = next(row for row in table.split("<tr") if "triangle" in row)
    assert "<td>–</td><td>" in row
    assert "<div class='scrolled'><table" in table, "many models are wider than a phone"


def test_a_scale_far_from_training_is_told_on_the_page(tiny_model: Model, noise: Image.Image) -> None:
    segmenter = copy.copy(tiny_model.segmenter)
    segmenter.architecture = segmenter.architecture.model_copy(update={"seen_side": 20})
    viewer = ModelViewer({"mine": replace(tiny_model, segmenter=segmenter)})
    table = viewer.area_table(viewer.predict(noise))
    assert "This image has 80 pixels on the longer side" in table
    assert "reduce large images to about 20 pixels before" in table
    assert "pixels on the longer side" not in viewer.area_table(viewer.predict(noise.resize((40, 30))))


@pytest.fixture
def page(tiny_run: Path) -> Iterator[Any]:
    app = serve([tiny_run], "127.0.0.1", None, "cpu", block=False)
    yield app
    app.close()
    app.visitors.close()


@needs_gradio
def test_the_page_answers_on_this_machine_only(page: Any, noise: Image.Image, tmp_path: Path) -> None:
    from gradio_client import Client, handle_file

    noise.save(tmp_path / "x.png")
    client = Client(page.local_url, verbose=False, analytics_enabled=False)
    table = client.predict(handle_file(tmp_path / "x.png"), api_name="/look")
    assert "step 1" in str(table)
    assert "disc" in str(table)
    port = int(page.local_url.rstrip("/").rsplit(":", 1)[1])
    with socket.socket() as other:
        other.settimeout(2)
        address = next((found[4][0] for found in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)), "")
        if not str(address).startswith("127."):
            assert other.connect_ex((address, port)) != 0


@needs_gradio
def test_an_upload_that_cannot_be_read_is_explained(
    page: Any, noise: Image.Image, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from gradio_client import Client, handle_file
    from gradio_client.exceptions import AppError

    noise.save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:5000])
    (tmp_path / "text.png").write_text("not an image")
    client = Client(page.local_url, verbose=False, analytics_enabled=False)
    for name, sentence in (("cut", "this image cannot be read .*is the file complete"), ("text", "is not an image")):
        with pytest.raises(AppError, match=sentence):
            client.predict(handle_file(tmp_path / f"{name}.png"), api_name="/look")
    assert "Traceback" not in capfd.readouterr().err, "nothing went wrong with the server"


@needs_gradio
def test_the_page_shows_an_extended_model_without_a_restart(
    page: Any, tiny_run: Path, noise: Image.Image, tmp_path: Path
) -> None:
    from gradio_client import Client, handle_file

    noise.save(tmp_path / "x.png")
    client = Client(page.local_url, verbose=False, analytics_enabled=False)
    assert "step 2" not in str(client.predict(handle_file(tmp_path / "x.png"), api_name="/look"))
    finish_third_step(tiny_run)
    assert "step 2" in str(client.predict(handle_file(tmp_path / "x.png"), api_name="/look"))
    offers = [event for event in page.fns.values() if event.fn is not None and event.fn.__name__ == "offer"]
    assert len(offers) == 2  # when the page is opened, and after a prediction
    known, shown, left, right = offers[0].fn(["step 0", "step 1", "disc", "square"], ["square"], "step 0", "step 1")
    assert known[:3] == ["step 0", "step 1", "step 2"]
    assert shown.value == ["square", "triangle", "cross"]  # disc was switched off; the last two are new
    assert (left.value, right.value) == ("step 1", "step 2")
    assert [choice for choice, _ in right.choices] == ["step 0", "step 1", "step 2"]
    assert offers[0].fn(known, ["disc"], "step 0", "step 1")[1].value == ["disc"]
    assert offers[0].fn(known, ["disc"], "step 0", "step 1")[2].value == "step 0"


@needs_gradio
def test_a_new_model_is_loaded_once_for_the_page_and_for_programs(
    page: Any, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = list[Path]()

    def counted(file: Path, device: str) -> Model:
        loaded.append(file)
        return open_model(file, device=device)

    monkeypatch.setattr(viewing, "open_model", counted)
    finish_third_step(tiny_run)
    offer = next(event.fn for event in page.fns.values() if event.fn is not None and event.fn.__name__ == "offer")
    assert "step 2" in offer(["step 0", "step 1"], [], "step 0", "step 1")[0]
    with urllib.request.urlopen(f"{page.local_url}api/v1/models", timeout=30) as answer:
        assert [model["name"] for model in json.loads(answer.read())] == ["step 0", "step 1", "step 2"]
    assert loaded == [RunFolder(tiny_run).model(2)]


@needs_gradio
def test_what_cannot_be_loaded_is_told_on_the_console(
    page: Any, tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunFolder(tiny_run).model(2).write_bytes(b"half a fi")
    finish_third_step(tiny_run)
    for _ in range(2):
        with urllib.request.urlopen(f"{page.local_url}api/v1/models", timeout=30) as answer:
            assert len(json.loads(answer.read())) == 2
    assert capsys.readouterr().out.count("stay in use until it changes") == 1


@needs_gradio
def test_the_page_fetches_nothing_from_elsewhere(page: Any) -> None:
    import re
    import urllib.request

    with urllib.request.urlopen(page.local_url, timeout=10) as answer:
        text = answer.read().decode()
    fetched = re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=[\"'](https?://[^\"']+)", text)
    assert [address for address in fetched if "127.0.0.1" not in address] == []


@needs_gradio
def test_a_port_that_is_taken_is_named(tiny_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run("serve", tiny_run, "--port", str(port), "--device", "cpu") == 2
    assert f"port {port}" in capsys.readouterr().err


def test_bad_requests_get_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("serve") == 2
    assert "name at least one model" in capsys.readouterr().err
    assert run("serve", tmp_path / "nowhere") == 2
    assert "there is no model" in capsys.readouterr().err
    monkeypatch.setattr(served_page, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"pip install 'incseg\[serve\]'"):
        build_app(LiveViewer(ModelViewer({}), print), Visitors())


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_a_public_address_comes_with_a_warning(host: str, warns: bool) -> None:
    assert ("no password" in serving._warning(host)) == warns


def ask(address: str, picture: bytes) -> str:
    """Upload a picture and ask for its areas, as the page does; what the server says at last, whatever that is."""
    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="x.png"\r\n\r\n' + picture + b"\r\n--x--\r\n"
    multipart = {"Content-Type": "multipart/form-data; boundary=x"}
    upload = urllib.request.Request(f"{address}gradio_api/upload", body, multipart)
    with urllib.request.urlopen(upload, timeout=30) as answer:
        (path,) = json.loads(answer.read())
    return look(address, path)


def look(address: str, path: str) -> str:
    data = {"data": [{"path": path, "meta": {"_type": "gradio.FileData"}}]}
    call = urllib.request.Request(
        f"{address}gradio_api/call/look", json.dumps(data).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(call, timeout=30) as answer:
            event = json.loads(answer.read())["event_id"]
        with urllib.request.urlopen(f"{address}gradio_api/call/look/{event}", timeout=30) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


@needs_gradio
def test_fifty_clients_at_once_get_an_answer_or_a_refusal_and_leave_nothing(page: Any, noise: Image.Image) -> None:
    page.visitors.per_minute = 10
    buffer = io.BytesIO()
    noise.save(buffer, "PNG")
    with ThreadPoolExecutor(50) as clients:
        said = list(clients.map(lambda _: ask(page.local_url, buffer.getvalue()), range(50)))
    answered = [text for text in said if "event: complete" in text and "disc" in text]
    refused = [text for text in said if "at most 10 images a minute" in text or "full" in text.lower()]
    assert len(answered) + len(refused) == 50, [text for text in said if text not in answered + refused][:3]
    assert answered
    assert refused
    page.visitors.kept = 0
    page.visitors.clear()
    assert [path for path in page.visitors.folder.rglob("*") if path.is_file()] == []
    page.visitors.close()
    assert not page.visitors.folder.exists()


def uploads(page: Any) -> list[Path]:
    return [path for path in page.visitors.folder.rglob("*.png") if path.is_file()]


@needs_gradio
def test_an_upload_is_gone_when_its_answer_is_given(page: Any, noise: Image.Image) -> None:
    noise.save(buffer := io.BytesIO(), "PNG")
    assert "disc" in ask(page.local_url, buffer.getvalue())
    assert uploads(page) == []
    page.visitors.per_minute = 1
    assert "at most 1 images a minute" in ask(page.local_url, buffer.getvalue())
    assert "is not an image" in ask(page.local_url, b"not an image")
    assert uploads(page) == []


@needs_gradio
def test_an_upload_that_does_not_end_is_cut_off(page: Any) -> None:
    page.visitors.uploading = 0.2
    port = int(page.local_url.rstrip("/").rsplit(":", 1)[1])
    header = (
        f"POST /gradio_api/upload HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 100000\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(header.encode())
        answer = b"".join(iter(lambda: client.recv(4096), b""))  # until the server closes the connection
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"took too long" in answer


@needs_gradio
def test_what_a_client_may_not_send_is_refused_in_a_sentence(page: Any, tmp_path: Path, noise: Image.Image) -> None:
    page.visitors.most_pixels = 1000
    buffer = io.BytesIO()
    noise.save(buffer, "PNG")
    assert "this image is 80" in ask(page.local_url, buffer.getvalue())
    noise.convert("P").save(gif := io.BytesIO(), "GIF")
    assert "is not an image, or of a kind" in ask(page.local_url, gif.getvalue())
    noise.save(tmp_path / "secret.png")
    assert "disc" not in look(page.local_url, str(tmp_path / "secret.png"))


def test_limits_of_rate_time_size_and_place(tmp_path: Path) -> None:
    visitors, go_on = Visitors(per_minute=2, seconds=0.01), Event()
    for address in ("a", "a", "b"):
        visitors.admit(address)
    with pytest.raises(InputError, match="at most 2 images a minute"):
        visitors.admit("a")
    with pytest.raises(InputError, match=r"longer than 0\.01 seconds"):
        visitors.in_time(go_on.wait)
    go_on.set()
    visitors.seconds = 60
    assert visitors.in_time(lambda: 3) == 3
    with pytest.raises(InputError, match="this image is 6000×5000: this page takes at most 25 million pixels"):
        visitors.check_size(Image.new("1", (6000, 5000)))
    with pytest.raises(InputError, match="not paths"):
        visitors.check_upload(tmp_path / "x.png")
    with pytest.raises(InputError, match="not paths"):
        visitors.check_upload(visitors.folder / ".." / "x.png")
    (visitors.folder / "kept").touch()
    visitors.clear()
    assert (visitors.folder / "kept").exists()
    visitors.close()
    assert not visitors.folder.exists()
